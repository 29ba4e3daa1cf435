/* Dispatch: sends the rows of tokens to their experts, and the experts' outputs back. All transfers of rows between the
 * owners of tokens and the owners of experts use one table of functions, with an implementation for one process
 * (local.c) and one for several (all_to_all.c and exchange.h).
 *
 * A rank owns a contiguous range of the tokens and of the experts of its replica (comm/grid.h); rows are exchanged
 * within the replica. Every rank knows the whole routing record, and so the number of rows of every transfer: counts
 * are never sent. An expert processes the rows of its replica's tokens in the order of its slots, as in a single
 * process.
 *
 * If x->dispatch_dtype is bf16, every row is rounded once between token and expert, even if it stays on its rank and in
 * a single process, so that results depend on the config and not on the distribution of rows. Gradients pass through
 * the rounding unchanged. */
#ifndef CH_DISPATCH_DISPATCH_H
#define CH_DISPATCH_DISPATCH_H

#include "comm/collective.h"
#include "op/exec.h"
#include "op/op.h"

/* A contiguous group of a rank's experts. */
typedef struct ch_expert_group {
  int first;        /* index of the first expert among this rank's experts */
  int64_t slot;     /* index of the first slot among the slots of this rank's experts */
  ch_record record; /* the group's slots, renumbered from 0: expert_begin and sizes only */
  int *begin;       /* [experts+1] host: memory for the record's host_begin */
} ch_expert_group;

enum { CH_EXPERT_GROUPS = 4 }; /* at most */

/* The slots of this rank's tokens that are processed in one round: all slots, unless several rounds are needed
 * (rounds.c). */
typedef struct ch_round {
  int several;           /* 1: the record needs several rounds; 0: only `number` and `part` are set */
  int number;            /* rounds begun so far */
  const ch_record *part; /* the round's slots; token 0 is token first_token of ex->local */
  int first_token;
  ch_record piece;                     /* scratch [max_rows]: the storage of *part */
  const int *token_begin, *slot_token; /* host copies of the record's arrays */
  int *last;               /* [ranks] host: end of the round's tokens of each rank, by index in the record */
  int64_t *before, *slots; /* [ranks,e] host: slots of earlier rounds, and of this one */
} ch_round;

struct ch_dispatcher;

/* A record in two views: the slots of this rank's tokens, and the slots of this rank's experts. In a single process
 * both are the whole record. */
typedef struct ch_dispatch {
  const struct ch_dispatcher *with;
  int n, e, d;     /* tokens per rank; experts of all ranks; width of a row */
  int gates_input; /* 1: gates scale the experts' inputs, 0: their outputs */
  int rounds;      /* 1: rows are stored as bf16 in the memory of floats (on a device, in a single process, with bf16
                      products) */
  ch_record all;   /* the record that was split */
  int begin;       /* index of the record's first token */
  int first_row;   /* index of the record's first token among this rank's tokens */
  ch_record local; /* the slots of this rank's tokens, with all experts; tokens count from first_row */
  int max_rows;    /* capacity for rows of this rank's tokens, per round */
  int64_t owned;   /* capacity for rows of this rank's experts */
  int groups;      /* number of groups of a rank's experts: equal on all ranks; groups may be empty */
  ch_expert_group group[CH_EXPERT_GROUPS];
  /* The fields below are for several ranks. */
  int exchanges;  /* number of groups with separate exchanges: all groups; 0 with several rounds or in a counting run */
  int64_t *slots; /* [ranks,e] host: slots of the expert for the rank's tokens */
  ch_bytes *spans;       /* [groups,4,ranks] host: of the exchanges */
  ch_transfer *transfer; /* [2,groups] host: to the experts, and back */
  void CH_DEV *kept;     /* [owned,d] the experts' inputs in forward, in travel format, for backward */
  /* Valid from dispatch to combine: */
  ch_bf16 CH_DEV *rounded; /* [max_rows,d] scratch if dispatch_dtype is bf16 */
  ch_round round;
  void CH_DEV *stage;      /* [owned,d] scratch for rows in travel format */
  void CH_DEV *local_rows; /* send buffer of the rows of this rank's tokens, also the receive buffer of results */
  char CH_DEV
      *partial; /* [shards-1,max_rows,d] scratch: partial sums received from all hidden shards except the first */
  void CH_DEV *arrivals;        /* receive buffer of the rows of this rank's experts */
  const char *request, *answer; /* names of the transfers to the experts and back, for messages */
} ch_dispatch;

static inline int ch_min(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

typedef struct ch_dispatcher {
  /* The parts of ch_dispatch_alloc and ch_dispatch_split that depend on the implementation. */
  void (*plan)(ch_exec *x, ch_arena *a, int max_slots, int max, ch_dispatch *ex);
  void (*split)(ch_exec *x, ch_dispatch *ex);
  /* Forward: gathers y [max_rows,d] = tokens[slot_token] from tokens [n,d] (times gate with gates_input), and starts
   * sending y to the experts. The experts' results will replace y. Allocates scratch that the caller releases after
   * `combine`. */
  void (*dispatch)(ch_exec *x, ch_dispatch *ex, const real CH_DEV *tokens, real CH_DEV *y);
  /* End of forward: waits for all results, then tokens [n,d] (=|+=) the sum over a token's slots of gate * y (of y with
   * gates_input). */
  void (*combine)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, real CH_DEV *tokens, int accumulate);
  /* Begin of backward. Returns nonzero if y was overwritten because there were several rounds: the experts then
   * recompute y and send it back (layer.h). Allocates scratch as `dispatch` does, until `dispatch_backward`. */
  int (*begin_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y);
  /* Computes dy from dtokens [n,d], in place of y, and starts sending it to the experts; also dgate [local slots] (not
   * with gates_input). */
  void (*combine_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *dtokens, real CH_DEV *dgate);
  /* End of backward: waits for all rows, then computes dtokens [n,d] from y, which has the gradients of the experts'
   * inputs; with gates_input also dgate, from the `tokens` of forward. */
  void (*dispatch_backward)(ch_exec *x, ch_dispatch *ex, real CH_DEV *y, const real CH_DEV *tokens,
                            real CH_DEV *dtokens, real CH_DEV *dgate);
  /* Returns the buffer for a group's rows during products, [slots of the largest group,d]: scratch, or y. */
  real CH_DEV *(*group_rows)(ch_exec *x, const ch_dispatch *ex, real CH_DEV *y);
  /* For each group in order, between dispatch and combine: waits for the group's rows and writes them to `rows`; writes
   * the rows of forward again; sends `rows` back. */
  void (*arrive)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  void (*read_again)(ch_exec *x, ch_dispatch *ex, int group, const real CH_DEV *tokens, real CH_DEV *rows);
  void (*send_back)(ch_exec *x, ch_dispatch *ex, int group, real CH_DEV *rows);
  /* Makes progress on active transfers, without waiting. */
  void (*progress)(ch_exec *x, ch_dispatch *ex);
  /* Gathers one number per slot from all ranks: from the slots of each rank's local view to those of the record `all`.
   * Returns scratch, or `local` itself. */
  real CH_DEV *(*gather_slots)(ch_exec *x, const ch_dispatch *ex, const ch_record *all, real CH_DEV *local);
} ch_dispatcher;

/* Defines a table of a file's functions, which have the names of the members. */
#define CH_DISPATCHER(name)                                                                           \
  const ch_dispatcher name = {                                                                        \
      plan,       split,  dispatch,   combine,   begin_backward, combine_backward, dispatch_backward, \
      group_rows, arrive, read_again, send_back, progress,       gather_slots}
extern const ch_dispatcher ch_dispatch_local, ch_dispatch_all_to_all;

/* Allocates memory from an arena for records of max_slots slots, at most `max` of one expert, over the tokens of all
 * ranks (n of this rank), and sets the implementation, ex->with. */
static inline void ch_dispatch_alloc(ch_exec *x, ch_arena *a, int n, int e, int d, int max_slots, int max,
                                     ch_dispatch *ex) {
  *ex =
      (ch_dispatch){.with = x->comm->size == 1 ? &ch_dispatch_local : &ch_dispatch_all_to_all, .n = n, .e = e, .d = d};
  ex->with->plan(x, a, max_slots, max, ex);
}

/* dgate [slots] = <tokens[slot_token], y> with the old y, then y [slots,d] = gate * tokens[slot_token]. This is the
 * backward of combine. With gates_input, forward needs only y, and backward only dgate. */
static inline void ch_gates_apply(ch_exec *x, const ch_record *r, int d, int gated, const real CH_DEV *tokens,
                                  real CH_DEV *y, real CH_DEV *dgate) {
  CH_OP(x, combine_backward, .record = r, .d = d, .gated = gated, .y = y, .dout = tokens, .dy = y, .dgate = dgate);
}

/* y [slots,d] = tokens[slot_token], times gate with gates_input. */
static inline void ch_dispatch_gather(ch_exec *x, const ch_dispatch *ex, const ch_record *r, const real CH_DEV *tokens,
                                      real CH_DEV *y) {
  if (!ex->gates_input) {
    CH_OP(x, gather, .record = r, .d = ex->d, .x = tokens, .y = y);
    return;
  }
  CH_SCRATCH(x);
  ch_gates_apply(x, r, ex->d, 1, tokens, y, CH_NEW(&x->scratch, real, ex->max_rows)); /* dgate, which is not used */
}

/* Splits a record, with its index, that covers the tokens from `begin` on. */
static inline void ch_dispatch_split(ch_exec *x, const ch_record *all, int begin, ch_dispatch *ex) {
  ex->all = *all;
  ex->begin = begin;
  ex->with->split(x, ex);
}

#endif
