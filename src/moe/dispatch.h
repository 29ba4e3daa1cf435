/* Dispatch: rows of tokens go to the experts that took them, and the experts' rows come back. All movement of rows
 * between the owners of tokens and the owners of experts is behind one table of functions, with a row for one process
 * (dispatch_local.c) and one for several (dispatch_all_to_all.c, with rounds.h, rows.h).
 *
 * A rank has a run of the tokens and a run of the experts of its replica (comm/grid.h), whose ranks send each other
 * rows. Everybody knows the whole routing record, and with it who sends how many rows to whom: counts are never sent.
 * An expert meets the rows of its replica's tokens, with one replica of all, in the order of its slots, as in one
 * process.
 *
 * Where x->wire is bf16, every row is rounded on its way, once, wherever it goes: also those that stay on their rank,
 * and on one process. So what is learned depends on the config, not on who has which row. Their gradients are those
 * of rows that were not rounded. */
#ifndef CH_MOE_DISPATCH_H
#define CH_MOE_DISPATCH_H

#include "moe/slots.h"

typedef struct ch_dispatcher {
  /* ch_dispatch_alloc and ch_dispatch_split call these for their own parts. */
  void (*plan)(ch_exec *x, ch_arena *a, int max_slots, int most, ch_dispatch *ex);
  void (*split)(ch_exec *x, ch_dispatch *ex);
  /* Forward: y [room,d] = tokens[slot_token], for tokens [n,d], on their way to the experts. The rows that come back
   * replace them. It takes scratch, which is the caller's to release after `combine`. */
  void (*dispatch)(ch_exec *x, ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y);
  /* tokens [n,d] (=|+=) the sum over a token's slots of gate * y, or, not `gated`, of y, once all rows are back: the
   * end of forward, and of backward. */
  void (*combine)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, real CH_DEV *tokens, int gated, int accumulate);
  /* Before all of backward. Nonzero where y is not there any more, as rows went in rounds: experts compute theirs again
   * and send them back (experts.h). Scratch as for dispatch, until `combine`. */
  int (*begin_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y);
  /* From dtokens [n,d] and y, which dy takes the place of on its way to the experts, dgate [local slots]. */
  void (*combine_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *dtokens, real CH_DEV *dgate);
  /* Where a group's rows stand while they are multiplied [slots of the largest,d]: scratch, or y. */
  real CH_DEV *(*group_rows)(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y);
  /* Between the two, for one group after the other: waits for its rows, and has them in `rows`; the rows of forward
   * again; and sends those that stand in `rows` back. */
  void (*arrive)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  void (*read_again)(ch_exec *x, ch_dispatch *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows);
  void (*send_back)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  /* Moves on what is under way, and waits for nothing. */
  void (*progress)(ch_exec *x, ch_dispatch *ex);
  /* One number a slot, of all ranks' slots: those of the record `all`, from those of every rank's local view. Scratch,
   * or `local` itself. */
  real CH_DEV *(*gather_slots)(ch_exec *x, const ch_dispatch *ex, const ch_record *all, real CH_DEV *local);
} ch_dispatcher;

extern const ch_dispatcher ch_dispatch_local, ch_dispatch_all_to_all;

/* Room from an arena for records of `max_slots`, `most` of one expert, over the tokens of all ranks, of which this one
 * has n; and who dispatches them: ex->with. */
static inline void ch_dispatch_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int most,
                                     ch_dispatch *ex) {
  *ex =
      (ch_dispatch){.with = x->comm->size == 1 ? &ch_dispatch_local : &ch_dispatch_all_to_all, .n = n, .e = e, .d = d};
  ex->with->plan(x, a, max_slots, most, ex);
}

/* Splits a record about tokens `begin` and following of all, with its index. */
static inline void ch_dispatch_split(ch_exec *x, const ch_record *all, int begin, ch_dispatch *ex) {
  ex->all = *all;
  ex->begin = begin;
  ex->with->split(x, ex);
}

#endif
