/* The exchange: rows of tokens go to the experts that took them, and the experts' rows come back. All movement of rows
 * between the owners of tokens and the owners of experts is in this file. One process owns both: dispatch is a gather,
 * combine a sum over a token's slots. */
#ifndef CH_MOE_EXCHANGE_H
#define CH_MOE_EXCHANGE_H

#include "op/op.h"

/* rows [slots,d] = x[slot_token]: what the experts read. Its transpose is ch_exchange_return. */
void ch_exchange_dispatch(ch_exec *x, const ch_record *r, int d, const real CH_DEV *tokens, real CH_DEV *rows);

/* tokens [n,d] (=|+=) the sum over a token's slots of gate * rows. */
void ch_exchange_combine(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows, real CH_DEV *tokens,
                         int accumulate);

/* Its backward: from dtokens [n,d] to drows [slots,d], which may be rows itself, and dgate [slots]. */
void ch_exchange_combine_backward(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows,
                                  const real CH_DEV *dtokens, real CH_DEV *drows, real CH_DEV *dgate);

/* tokens [n,d] = the sum over a token's slots of rows: the backward of dispatch. */
void ch_exchange_return(ch_exec *x, const ch_record *r, int d, const real CH_DEV *rows, real CH_DEV *tokens);

#endif
