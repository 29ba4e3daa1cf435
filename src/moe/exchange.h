/* The exchange: rows of tokens go to the experts that took them, and the experts' rows come back. All movement of rows
 * between the owners of tokens and the owners of experts is in this file.
 *
 * A rank has a run of the tokens and a run of the experts. Everybody knows the whole routing record, and with it who
 * sends how many rows to whom: counts are never sent. An expert meets the rows of all tokens in the order of its slots,
 * as in one process. One process owns everything: dispatch is a gather, combine a sum over a token's slots.
 *
 * Where x->wire is bf16, every row is rounded on its way, once, wherever it goes: also those that stay on their rank,
 * and on one process. So what is learned depends on the config, not on who has which row. Their gradients are those
 * of rows that were not rounded. */
#ifndef CH_MOE_EXCHANGE_H
#define CH_MOE_EXCHANGE_H

#include "op/op.h"

/* A record in two views. In one process both are the record itself. */
typedef struct ch_exchange {
  int n, e;        /* tokens of every rank; experts of all */
  int first_row;   /* of this rank's tokens, the first that the record is about */
  ch_record local; /* the slots of this rank's tokens, with all experts; tokens count from first_row */
  ch_record owned; /* the slots of this rank's experts, with all tokens: expert_begin and sizes only */
  int64_t *slots;  /* [ranks,e] host: slots that the rank's tokens have of the expert; NULL: one process */
} ch_exchange;

/* Room from an arena for records of `max_slots`, `most` of one expert, over the tokens of all ranks, of which this one
 * has n. */
void ch_exchange_alloc(ch_exec *x, ch_arena *a, int n, int e, int max_slots, int most, ch_exchange *ex);

/* Splits a record about tokens `begin` and following of all. It needs no index, unless there is one process. */
void ch_exchange_split(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex);

/* rows [owned slots,d] = x[slot_token]: what the experts read. tokens [n,d]. Its transpose is ch_exchange_return. */
void ch_exchange_dispatch(ch_exec *x, const ch_exchange *ex, int d, const real CH_DEV *tokens, real CH_DEV *rows);

/* tokens [n,d] (=|+=) the sum over a token's slots of gate * rows. y [local slots,d] keeps the rows for backward; in
 * one process it is `rows`. */
void ch_exchange_combine(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *rows, real CH_DEV *y,
                         real CH_DEV *tokens, int accumulate);

/* Its backward: from dtokens [n,d] and y, which it writes over, to drows [owned slots,d] and dgate [local slots]. */
void ch_exchange_combine_backward(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *y, const real CH_DEV *dtokens,
                                  real CH_DEV *drows, real CH_DEV *dgate);

/* tokens [n,d] = the sum over a token's slots of rows: the backward of dispatch. */
void ch_exchange_return(ch_exec *x, const ch_exchange *ex, int d, real CH_DEV *rows, real CH_DEV *tokens);

/* One number a slot, of all ranks' slots: those of the record from those of every rank's local view, which in one
 * process are the same and may stand in the same place. */
void ch_exchange_gather_slots(ch_exec *x, const ch_exchange *ex, const ch_record *all, const real CH_DEV *local,
                              real CH_DEV *of_all);

#endif
