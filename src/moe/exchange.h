/* The exchange: rows of tokens go to the experts that took them, and the experts' rows come back. All movement of rows
 * between the owners of tokens and the owners of experts is here and in rounds.h.
 *
 * A rank has a run of the tokens and a run of the experts of its replica (comm/grid.h), whose ranks send each other
 * rows. Everybody knows the whole routing record, and with it who sends how many rows to whom: counts are never sent.
 * An expert meets the rows of its replica's tokens, with one replica of all, in the order of its slots, as in one
 * process. One process owns everything: dispatch is a gather, combine a sum over a token's slots.
 *
 * Where experts are cut into hidden shards, all shards of an expert get its rows, and what they make of a row, parts of
 * a sum, is added up where the token is.
 *
 * A rank's experts are cut into groups, each with an exchange of its own: while one is multiplied, the rows of the next
 * come and the results of the last go. Messages make progress where ch_exchange_progress is called, between products.
 * Where a rank's tokens win far more slots than the mean, rows go in rounds instead (rounds.h).
 *
 * Where x->wire is bf16, every row is rounded on its way, once, wherever it goes: also those that stay on their rank,
 * and on one process. So what is learned depends on the config, not on who has which row. Their gradients are those
 * of rows that were not rounded. */
#ifndef CH_MOE_EXCHANGE_H
#define CH_MOE_EXCHANGE_H

#include "moe/slots.h"

/* How many groups the experts of every rank are cut into: as many as there are messages worth one of their own, in the
 * mean over the ranks of a replica, each of which has a message to each other one for every group. owners: among whom e
 * experts are shared out. */
int ch_exchange_groups(int64_t ranks, int64_t owners, int e, int64_t max_slots, int64_t row_bytes, int64_t worth);

/* Room from an arena for records of `max_slots`, `most` of one expert, over the tokens of all ranks, of which this one
 * has n. */
void ch_exchange_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int most, ch_exchange *ex);

/* Splits a record about tokens `begin` and following of all, with its index. */
void ch_exchange_split(ch_exec *x, const ch_record *all, int begin, ch_exchange *ex);

/* Forward: y [room,d] = tokens[slot_token], for tokens [n,d], on their way to the experts. The rows that come back
 * replace them. It takes scratch, which is the caller's to release after ch_exchange_combine. */
void ch_exchange_dispatch(ch_exec *x, ch_exchange *ex, const real CH_DEV *tokens, real CH_DEV *y);

/* tokens [n,d] (=|+=) the sum over a token's slots of gate * y, once all rows are back. */
void ch_exchange_combine(ch_exec *x, ch_exchange *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate);

/* Before all of backward. Nonzero where y is not there any more, as rows went in rounds: experts compute theirs again
 * and send them back (experts.h). Scratch as for dispatch, until ch_exchange_return. */
int ch_exchange_begin_backward(ch_exec *x, ch_exchange *ex, real CH_DEV *y);

/* From dtokens [n,d] and y, which dy takes the place of on its way to the experts, dgate [local slots]. */
void ch_exchange_combine_backward(ch_exec *x, ch_exchange *ex, real CH_DEV *y, const real CH_DEV *dtokens,
                                  real CH_DEV *dgate);

/* tokens [n,d] = the sum over a token's slots of y, once all rows are back: the backward of dispatch. */
void ch_exchange_return(ch_exec *x, ch_exchange *ex, real CH_DEV *y, real CH_DEV *tokens);

/* Between the two, for one group after the other: waits for its rows, and has them in `rows` [group's slots,d]; the
 * rows of forward again; and sends those that stand in `rows` back. In one process `rows` is y. */
void ch_exchange_arrive(ch_exec *x, ch_exchange *ex, int group, real CH_DEV *rows);
void ch_exchange_read_again(ch_exec *x, ch_exchange *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows);
void ch_exchange_send_back(ch_exec *x, ch_exchange *ex, int group, real CH_DEV *rows);

/* Moves on what is under way, and waits for nothing. */
void ch_exchange_progress(ch_exec *x, ch_exchange *ex);

/* One number a slot, of all ranks' slots: those of the record from those of every rank's local view, which in one
 * process are the same and may stand in the same place. */
void ch_exchange_gather_slots(ch_exec *x, const ch_exchange *ex, const ch_record *all, const real CH_DEV *local,
                              real CH_DEV *of_all);

#endif
