/* Rounds: rows of a rank's tokens that are more than it has room for go to the experts one part of the tokens after the
 * other, and come back so. A rank plans for twice the mean over ranks (ch_comm's `means`); how many slots its tokens
 * win is the router's to say, and in the worst case all that there are. Room for that on every rank would be the memory
 * of one process on each.
 *
 * All ranks know the record, so all find the same cuts. Where no rank has more slots than room, as usual, there is one
 * round. In several, nothing runs beside the experts' products: all rows go, in rounds, before the first one, and come
 * back, in rounds, after the last. Experts see the same rows in the same order, so results are the same bits. */
#ifndef CH_MOE_ROUNDS_H
#define CH_MOE_ROUNDS_H

#include "moe/slots.h"

/* Scratch for a round, where more than one may be needed. */
void ch_rounds_alloc(ch_exec *x, ch_dispatch *ex);

/* Whether the record that was split needs more than one: the same on all ranks. */
int ch_rounds_needed(const ch_exec *x, const ch_dispatch *ex);

/* Before the first round, and to the next one: 0 when there is none. ex->round.part has the slots of its tokens, of
 * this rank's, the first of which is ex->round.first_token. */
void ch_rounds_begin(ch_exec *x, ch_dispatch *ex);
int ch_rounds_next(ch_exec *x, ch_dispatch *ex);

/* The round's rows go from ex->local_rows [room], as they travel, to their places among all rows of the experts',
 * `owned`; or they come back, from every hidden shard. what: for messages. */
void ch_rounds_go(ch_exec *x, ch_dispatch *ex, const char *what, void CH_DEV *owned);
void ch_rounds_return(ch_exec *x, ch_dispatch *ex, const char *what, void CH_DEV *owned);

/* One number for each of the round's slots, to those of all of this rank's. */
void ch_rounds_place(ch_exec *x, const ch_dispatch *ex, const real CH_DEV *of_round, real CH_DEV *local);

/* ---- rows ----
 * Where they stand on both sides of an exchange: by slot, as the experts read them, and by rank, as they travel. */

/* Bytes of a row as it travels. */
int64_t ch_row_bytes(const ch_exec *x, int d);

/* Where the rows of this rank's tokens stand that a hidden shard sends back: each has a place for all of them, as what
 * it makes of a row is a part of the sum. They go from that of the first. */
char CH_DEV *ch_rows_of_shard(const ch_exec *x, const ch_dispatch *ex, int shard);

/* The rows of this rank's tokens, in the order of the local view: those of a group of every rank of the replica, as
 * they go, or come back. */
void ch_local_spans(const ch_exec *x, const ch_dispatch *ex, int group, int back, ch_bytes *span);

/* Rows of these experts one behind the other, by the owners of the tokens, who are `ranks`. */
void ch_owned_spans(const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int64_t bytes, void *rows,
                    ch_bytes *span);

/* Between rows of width d in the order of slots, expert by expert, and the same as they travel, by the owners of their
 * tokens. */
void ch_rows_reorder(ch_exec *x, const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int d, ch_compute wire,
                     real CH_DEV *by_slot, char CH_DEV *by_rank, int to_slots);

/* A group's rows among those of all this rank's experts. */
char CH_DEV *ch_rows_of_group(const ch_exec *x, const ch_dispatch *ex, int group, void CH_DEV *rows);

#endif
