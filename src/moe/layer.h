/* The MoE layer: router, gather, expert FFN, combine, and all of it backwards. */
#ifndef CH_MOE_LAYER_H
#define CH_MOE_LAYER_H

#include "dispatch/dispatch.h"
#include "moe/route.h"

/* A rank has its own experts only (dispatch/dispatch.h): e is then their number. */
typedef struct ch_moe_weights {
  const real CH_DEV *w1, *w2, *w3;             /* [e,d,h] each; w3, what w1 gates, is NULL where nothing is gated */
  const ch_bf16 CH_DEV *w1_16, *w2_16, *w3_16; /* rounded copies for bf16 compute, or NULL */
} ch_moe_weights;

typedef struct ch_moe_gradients {
  real CH_DEV *router, *w1, *w2, *w3; /* router NULL where no gradient trains its weight */
} ch_moe_gradients;

/* Someone who looks at how each layer routed. What `call` is shown, scores too, lives until it returns; reading it is a
 * copy to the host. */
typedef struct ch_routing_hook {
  void (*call)(void *context, ch_exec *x, int layer, const ch_route_args *a, const ch_routing *routing);
  void *context;
} ch_routing_hook;

/* Arguments of one call, including the routing; forward and backward take the same struct. route.x, out and their
 * gradients have this rank's n = route.n / ranks rows. */
typedef struct ch_moe_args {
  ch_route_args route;
  int h;                    /* hidden width of this rank's shard of an expert */
  ch_activation activation; /* of experts */
  int shards; /* this rank's, of n / shards rows: products of the router are computed by each (op/shards.h) */
  int layer;  /* its number in the model, for the hook */
  const ch_routing_hook *hook; /* or NULL */
  ch_route_tally tally;        /* where to count what the routing does; sums NULL: with the record */
  int keep;                    /* forward keeps what backward needs on the tape; not with route.causal */
  ch_moe_weights weights;
  real CH_DEV *out; /* [n,d] */
  int out_acc;      /* out += MoE(x): straight onto the residual stream */
  /* backward */
  const real CH_DEV *dout; /* [n,d] */
  real CH_DEV *dx;         /* [n,d] = */
  ch_moe_gradients gradients;
  int accumulate; /* gradients += instead of gradients = */
} ch_moe_args;

/* Rows that products read or make: in the type they compute in. */
typedef struct ch_operand {
  real CH_DEV *value;
  ch_bf16 CH_DEV *rounded; /* then value is NULL */
} ch_operand;

/* Results of forward, about the tokens of all ranks unless it says otherwise. The routing is on the tape
 * always; the rest is there with `keep` only, and backward writes over pre and expert_y. */
typedef struct ch_moe_saved {
  ch_routing routing;
  ch_dispatch dispatch;  /* who has what of the record */
  real CH_DEV *jitter;   /* [n,d] factors of the router's input, of this rank's rows; or NULL: none */
  int chunk_slots;       /* slots that go through the experts at once: all, but for causal routing perhaps */
  ch_operand pre;        /* [slots,h] pre-activations, of this rank's experts: x W1 */
  real CH_DEV *up;       /* [slots,h] x W3 where experts are gated; then pre has floats, too */
  real CH_DEV *expert_y; /* [room,d] what experts made of this rank's tokens; before, what goes there; not all
                            of it where rows go in rounds (dispatch.h) */
} ch_moe_saved;

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved);

/* ---- the experts ----
 * Y[s] = act(X_in[s] W1[i]) W2[i]^T, or of gated experts (act(X_in[s] W1[i]) * (X_in[s] W3[i])) W2[i]^T, for the slots
 * s of every expert i of this rank, on rows that are on their way (dispatch.h): one group of experts after the other,
 * as rows arrive, and their results go back at once. */

/* Room for h numbers of so many slots, in the type that x computes in; of gated experts always floats. */
ch_operand ch_hidden_new(const ch_exec *x, const ch_moe_args *a, ch_arena *arena, int64_t slots);

/* Between `dispatch` and `combine`; s->pre keeps the pre-activations. */
void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Between `begin_backward` and `combine_backward`, where that asked for it: the same Y from pre. It needs less scratch
 * than backward. */
void ch_experts_recompute(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* Between `combine_backward` and `combine`: weight gradients (=|+=), and gradients of rows in place
 * of dy. Writes over pre and up: experts' activations are the largest arrays of a model, so one more [slots,h] of a
 * group is all it takes from scratch, and in bf16 a rounded dy. */
void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* ---- the router's input and its scores: S of the logits X Wg of this rank's rows, or of all ---- */

/* Whether the router's input is jittered. */
static inline int ch_moe_jitters(const ch_moe_args *a) { return a->route.training && a->route.options->jitter > 0; }

/* Tokens of this rank, and the first of them. */
static inline int ch_moe_rows(const ch_exec *x, const ch_moe_args *a) { return a->route.n / x->comm->size; }
static inline int64_t ch_moe_first_token(const ch_exec *x, const ch_moe_args *a) {
  return (int64_t)ch_moe_rows(x, a) * x->comm->rank;
}

/* From logits [n,e] of a router to its scores, as options->score says: a softmax over experts or a sigmoid of each. And
 * back: dscores, which become dlogits, by the scores. */
void ch_scores_of(ch_exec *x, const choir_router_options *o, int64_t n, int e, const real CH_DEV *logits,
                  real CH_DEV *scores);
void ch_scores_of_backward(ch_exec *x, const choir_router_options *o, int64_t n, int e, real CH_DEV *scores,
                           real CH_DEV *dscores);

/* S of X Wg into s->scores; of a router without scores the logits. */
void ch_moe_score(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s);

/* From dscores of this rank's rows, which are written over, through the scores (unless they are dlogits already) and X
 * Wg: dWg (=|+=) X^T dlogits, dx += dlogits Wg^T. */
void ch_moe_score_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dscores);

/* ---- routing by thresholds, in parts ----
 * With thresholds every token may take every expert, but few do. Memory is planned for as many slots as the router's
 * own rule takes, and for one expert twice the mean. A record with more slots is cut by tokens into several parts,
 * which go through the experts one after the other. The cuts depend on the record alone, not on the distribution of
 * tokens over ranks. */

typedef struct ch_parts {
  int slots, most;                                    /* limits of a part: all slots, and slots of one expert */
  int tokens, experts;                                /* of the whole record */
  const int *expert_begin, *token_begin, *token_slot; /* host copies of the record's arrays */
  int *taken;                                         /* [experts] slots of the part so far */
} ch_parts;

/* Most slots of one expert in a part of `slots` slots for e experts. */
int ch_parts_most(int slots, int e);

/* Copies the record to scratch of x's host. Waits for the device. */
void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int most, ch_parts *parts);

/* End of the part that begins with token `first`; at least one token further. */
int ch_parts_end(ch_parts *parts, int begin);

#endif
