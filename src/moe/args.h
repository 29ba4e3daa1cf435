/* What a MoE layer is called with, and what its forward leaves for backward. */
#ifndef CH_MOE_ARGS_H
#define CH_MOE_ARGS_H

#include "dispatch/dispatch.h"
#include "moe/route.h"

/* A rank has its own experts only (dispatch/dispatch.h): e is then their number. */
typedef struct ch_moe_weights {
  const real CH_DEV *w1, *w2, *w3;             /* [e,d,h] each; w3, what w1 gates, is NULL where nothing is gated */
  const ch_bf16 CH_DEV *w1_16, *w2_16, *w3_16; /* rounded copies for bf16 compute, or NULL */
  const ch_q8 CH_DEV *w1_8, *w2_8, *w3_8;      /* matrices of 8 bits instead of w1, w2 and w3, or NULL */
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
  int grad_chunks; /* this rank's, of n / shards rows: products of the router are computed by each (op/grad_chunks.h) */
  int layer;       /* its number in the model, for the hook */
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

/* Tokens of this rank, and the first of them. */
static inline int ch_moe_rows(const ch_exec *x, const ch_moe_args *a) {
  return (int)ch_local_count(x->comm, a->route.n);
}
static inline int64_t ch_moe_first_token(const ch_exec *x, const ch_moe_args *a) {
  return ch_local_offset(x->comm, ch_moe_rows(x, a));
}

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

#endif
