/* Parts of the exchange of rows between ranks (all_to_all.c): counts of slots (slots.c), conversion of rows to and from
 * travel format, the format in which they are sent (rows.c), rounds (rounds.c). */
#ifndef CH_DISPATCH_EXCHANGE_H
#define CH_DISPATCH_EXCHANGE_H

#include "dispatch/dispatch.h"

/* ---- numbers of slots by rank and expert: the same on all ranks ---- */

/* The experts on rank `rank` of the replica; in group `group` of `rank`; in group `group` of the calling rank. */
ch_range ch_experts_of(const ch_exec *x, int e, int rank);
ch_range ch_group_of(const ch_exec *x, const ch_dispatch *ex, int rank, int group);
ch_range ch_local_group(const ch_exec *x, const ch_dispatch *ex, int group);

/* Tokens of rank `rank` (its number in the whole job), clipped to the tokens of ex->all and numbered as in ex->all. */
ch_range ch_tokens_of(const ch_dispatch *ex, int rank);

/* Number of groups of every rank's experts. Each rank sends each other rank one message per group; the number of groups
 * is the largest with a mean message of at least `worth` bytes. owners: ranks that share the e experts. */
int ch_dispatch_groups(int64_t ranks, int64_t owners, int e, int64_t max_slots, int64_t row_bytes, int64_t worth);

/* Counts the slots of ex->all into ex->slots, and sets the beginnings of this rank's groups. */
void ch_slots_count(ch_exec *x, ch_dispatch *ex);

/* Number of slots that `experts` give to tokens of rank `rank` (its number in the whole job). */
int64_t ch_slots_at(const ch_dispatch *ex, int rank, ch_range experts);

/* ---- rounds: if a rank's tokens have more slots than its buffers, rows travel in several rounds (rounds.c) ---- */

/* Allocates a round's scratch if several rounds may be needed. */
void ch_rounds_alloc(ch_exec *x, ch_dispatch *ex);

/* Sets ex->round.several: whether the split record needs several rounds, without exchanges per group; equal on all
 * ranks. */
void ch_rounds_split(const ch_exec *x, ch_dispatch *ex);

/* Begin prepares the rounds; next goes to the following round, or returns 0 after the last. ex->round.part then has the
 * slots of this rank's tokens in the round, starting with token ex->round.first_token. */
void ch_rounds_begin(ch_exec *x, ch_dispatch *ex);
int ch_rounds_next(ch_exec *x, ch_dispatch *ex);

/* Number of rows of this rank's tokens in the round. */
int64_t ch_rounds_rows(const ch_exec *x, const ch_dispatch *ex);

/* The next three functions do nothing if there is one round only.
 *
 * Sends the round's rows, in travel format, from ex->local_rows [max_rows,d] to their places in `owned`, the rows of
 * the experts; with `back`, from every hidden shard back. what: name for messages. */
void ch_rounds_move(ch_exec *x, ch_dispatch *ex, const char *what, void CH_DEV *owned, int back);

/* Allocates scratch for one number per slot of the round; the second function copies it to `local` [slots of this
 * rank's tokens]. With one round it is `local` itself, without a copy. */
real CH_DEV *ch_rounds_numbers(ch_exec *x, const ch_dispatch *ex, real CH_DEV *local);
void ch_rounds_place(ch_exec *x, const ch_dispatch *ex, const real CH_DEV *of_round, real CH_DEV *local);

/* ---- rows ----
 * Experts read rows in the order of slots; rows travel in the order of ranks. */

/* Bytes of a row as it travels. */
int64_t ch_row_bytes(const ch_exec *x, int d);

/* Buffer for the rows that hidden shard `shard` returns for this rank's tokens. Hidden shards return partial sums of
 * the same rows, so each shard fills a separate buffer. Shard 0's buffer also holds the outgoing rows. */
char CH_DEV *ch_rows_of_shard(const ch_exec *x, const ch_dispatch *ex, int shard);

/* Computes, for each rank of the replica, the range of this rank's rows that are sent to (with `back`: return from) the
 * rank's group `group`, in the order of the local view. */
void ch_local_spans(const ch_exec *x, const ch_dispatch *ex, int group, int back, ch_bytes *span);

/* Computes, for each of `ranks`, the range of rows of the experts `some` whose tokens the rank owns; ranges are
 * consecutive. */
void ch_owned_spans(const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int64_t bytes, void *rows,
                    ch_bytes *span);

/* Copies rows of width d from travel order (by the owner of the token) to slot order (by expert), or back. */
void ch_rows_reorder(ch_exec *x, const ch_comm *ranks, const ch_dispatch *ex, ch_range some, int d,
                     ch_compute dispatch_dtype, real CH_DEV *by_slot, char CH_DEV *by_rank, int to_slots);

/* Address of a group's rows within `rows`, which holds the rows of all of this rank's experts. */
char CH_DEV *ch_rows_of_group(const ch_exec *x, const ch_dispatch *ex, int group, void CH_DEV *rows);

#endif
