/* Where rows stand on both sides of an exchange: by slot, as the experts read them, and by rank, as they travel. */
#ifndef CH_MOE_ROWS_H
#define CH_MOE_ROWS_H

#include "moe/slots.h"

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
