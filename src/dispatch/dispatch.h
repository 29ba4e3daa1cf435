/* Dispatch: rows of tokens go to the experts that took them, and the experts' rows come back. All movement of rows
 * between the owners of tokens and the owners of experts goes through one table of functions, with an implementation
 * for one process (local.c) and one for several (all_to_all.c, with what exchange.h declares).
 *
 * A rank has a run of the tokens and a run of the experts of its replica (comm/grid.h), whose ranks send each other
 * rows. Everybody knows the whole routing record, and with it who sends how many rows to whom: counts are never sent.
 * An expert meets the rows of its replica's tokens, with one replica of all, in the order of its slots, as in one
 * process.
 *
 * If x->wire is bf16, every row is rounded once between token and expert, even if it stays on its rank and in a single
 * process, so that results depend on the config and not on the distribution of rows. Gradients pass through the
 * rounding unchanged. */
#ifndef CH_DISPATCH_DISPATCH_H
#define CH_DISPATCH_DISPATCH_H

#include "comm/collective.h"
#include "op/exec.h"
#include "op/op.h"

/* Some of a rank's experts, one after the other. */
typedef struct ch_expert_group {
  int first;        /* of this rank's experts */
  int64_t slot;     /* of this rank's experts' slots */
  ch_record record; /* their slots, from that one on: expert_begin and sizes only */
  int *begin;       /* [experts+1] host: room for the record's host_begin */
} ch_expert_group;

enum { CH_EXPERT_GROUPS = 4 }; /* at most */

/* The slots of this rank's tokens that are gathered, or added up, at a time: all, unless they need several rounds
 * (rounds.c). */
typedef struct ch_round {
  int several;           /* 1: the record needs several rounds; 0: only `number` and `part` are set */
  int number;            /* rounds begun so far */
  const ch_record *part; /* the round's slots; token 0 is token first_token of ex->local */
  int first_token;
  ch_record piece;                     /* scratch [max_rows]: what part points to */
  const int *token_begin, *slot_token; /* the record's, for the host */
  int *last;                           /* [ranks] host: of each rank's tokens the end, by their number in the record */
  int64_t *before, *slots;             /* [ranks,e] host: slots of rounds before, and of this one */
} ch_round;

struct ch_dispatcher;

/* A record in two views: of this rank's tokens, and of this rank's experts. In one process both are the record. */
typedef struct ch_dispatch {
  const struct ch_dispatcher *with;
  int n, e, d;     /* tokens of every rank; experts of all; width of a row */
  int gates_input; /* gates scale the rows that experts read, not those that they write */
  int rounds;      /* rows come as bf16 where floats would stand: on a device, in one process, for products in bf16 */
  ch_record all;   /* what was split */
  int begin;       /* the first token that it is about */
  int first_row;   /* of this rank's tokens, the first that the record is about */
  ch_record local; /* the slots of this rank's tokens, with all experts; tokens count from first_row */
  int max_rows;    /* rows of this rank's tokens that there is room for at a time */
  int64_t owned;   /* room for rows of this rank's experts, of its replica's tokens */
  int groups;      /* that these experts are cut into: as many on every rank, some perhaps empty */
  ch_expert_group group[CH_EXPERT_GROUPS];
  /* The rest is of several ranks. */
  int exchanges;         /* groups with exchanges of their own: all; none in several rounds or a counting run */
  int64_t *slots;        /* [ranks,e] host: slots that the rank's tokens have of the expert */
  ch_bytes *spans;       /* [groups,4,ranks] host: of the exchanges */
  ch_transfer *transfer; /* [2,groups] host: to the experts, and back */
  void CH_DEV *kept;     /* [owned,d] what experts read in forward, as it came */
  /* From dispatch to combine: */
  ch_bf16 CH_DEV *rounded; /* [max_rows,d] scratch, where dispatch_dtype is bf16 */
  ch_round round;
  void CH_DEV *stage;           /* [owned,d] scratch, as they travel */
  void CH_DEV *local_rows;      /* where rows of this rank's tokens go from, and come back to */
  char CH_DEV *partial;         /* [shards-1,max_rows,d] scratch: what comes back from hidden shards but the first */
  void CH_DEV *arrivals;        /* where rows of its experts come to */
  const char *request, *answer; /* what goes there, and back */
} ch_dispatch;

static inline int ch_min(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

typedef struct ch_dispatcher {
  /* ch_dispatch_alloc and ch_dispatch_split call these for their own parts. */
  void (*plan)(ch_exec *x, ch_arena *a, int max_slots, int max, ch_dispatch *ex);
  void (*split)(ch_exec *x, ch_dispatch *ex);
  /* Forward: y [max_rows,d] = tokens[slot_token], for tokens [n,d], on their way to the experts; with gates_input times
   * gate. The rows that come back replace them. It takes scratch, which is the caller's to release after `combine`. */
  void (*dispatch)(ch_exec *x, ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y);
  /* The end of forward: tokens [n,d] (=|+=) the sum over a token's slots of gate * y, or, with gates_input, of y, once
   * all rows are back. */
  void (*combine)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate);
  /* Before all of backward. Nonzero where y is not there any more, as rows went in rounds: experts compute theirs again
   * and send them back (layer.h). Scratch as for dispatch, until `dispatch_backward`. */
  int (*begin_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y);
  /* From dtokens [n,d] and y, which dy takes the place of on its way to the experts, dgate [local slots] (not with
   * gates_input). */
  void (*combine_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *dtokens, real CH_DEV *dgate);
  /* The end of backward: dtokens [n,d] = from y, by now the gradients of what experts read, once all rows are back;
   * with gates_input dgate, too, from `tokens`, those of forward. */
  void (*dispatch_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *tokens,
                            real CH_DEV *dtokens, real CH_DEV *dgate);
  /* Where a group's rows are while they are multiplied [slots of the largest,d]: scratch, or y. */
  real CH_DEV *(*group_rows)(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y);
  /* Between the two, for one group after the other: waits for its rows, and has them in `rows`; the rows of forward
   * again; and sends those that are in `rows` back. */
  void (*arrive)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  void (*read_again)(ch_exec *x, ch_dispatch *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows);
  void (*send_back)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  /* Moves on what is under way, and waits for nothing. */
  void (*progress)(ch_exec *x, ch_dispatch *ex);
  /* One number a slot, of all ranks' slots: those of the record `all`, from those of every rank's local view. Scratch,
   * or `local` itself. */
  real CH_DEV *(*gather_slots)(ch_exec *x, const ch_dispatch *ex, const ch_record *all, real CH_DEV *local);
} ch_dispatcher;

/* A file's functions, which are called as the members are. */
#define CH_DISPATCHER(name)                                                                           \
  const ch_dispatcher name = {                                                                        \
      plan,       split,  dispatch,   combine,   begin_backward, combine_backward, dispatch_backward, \
      group_rows, arrive, read_again, send_back, progress,       gather_slots}
extern const ch_dispatcher ch_dispatch_local, ch_dispatch_all_to_all;

/* Room from an arena for records of `max_slots`, `most` of one expert, over the tokens of all ranks, of which this one
 * has n; and who dispatches them: ex->with. */
static inline void ch_dispatch_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int max,
                                     ch_dispatch *ex) {
  *ex =
      (ch_dispatch){.with = x->comm->size == 1 ? &ch_dispatch_local : &ch_dispatch_all_to_all, .n = n, .e = e, .d = d};
  ex->with->plan(x, a, max_slots, max, ex);
}

/* y [slots,d] = gate * tokens[slot_token], and dgate [slots] = <tokens[slot_token], y> of what y was before: the
 * backward of a combine of y by gates, and what gates on the input take, forward (the first) and backward (the second).
 */
static inline void ch_gates_apply(ch_exec *x, const ch_record *r, int d, int gated, const real CH_DEV *tokens,
                                  real CH_DEV *y, real CH_DEV *dgate) {
  CH_OP(x, combine_backward, .record = r, .d = d, .gated = gated, .y = y, .dout = tokens, .dy = y, .dgate = dgate);
}

/* y [slots,d] = tokens[slot_token], with gates_input times gate. */
static inline void ch_dispatch_gather(ch_exec *x, const ch_dispatch *ex, const ch_record *r, const real CH_DEV *tokens,
                                      real CH_DEV *y) {
  if (!ex->gates_input) {
    CH_OP(x, gather, .record = r, .d = ex->d, .x = tokens, .y = y);
    return;
  }
  CH_SCRATCH(x);
  ch_gates_apply(x, r, ex->d, 1, tokens, y,
                 CH_NEW(&x->scratch, real, ex->max_rows)); /* products with what y held: unread */
}

/* Splits a record about tokens `begin` and following of all, with its index. */
static inline void ch_dispatch_split(ch_exec *x, const ch_record *all, int begin, ch_dispatch *ex) {
  ex->all = *all;
  ex->begin = begin;
  ex->with->split(x, ex);
}

#endif
