/* Arguments of an MoE layer, and the state that its forward saves for backward. */
#ifndef CH_MOE_ARGS_H
#define CH_MOE_ARGS_H

#include "dispatch/dispatch.h"
#include "moe/route.h"

/* Weights of an MoE layer. With expert parallelism e is the number of local experts (dispatch/dispatch.h). */
typedef struct ch_moe_weights {
  const real CH_DEV *w1, *w2, *w3;             /* [e,d,h] each; w3 is the linear branch of a gated FFN, else NULL */
  const ch_bf16 CH_DEV *w1_16, *w2_16, *w3_16; /* rounded copies for bf16 compute, or NULL */
  const ch_q8 CH_DEV *w1_8, *w2_8, *w3_8;      /* 8-bit matrices instead of w1, w2 and w3, or NULL */
} ch_moe_weights;

typedef struct ch_moe_gradients {
  real CH_DEV *router, *w1, *w2, *w3; /* router is NULL if its weight has no gradient */
} ch_moe_gradients;

/* A hook that receives the routing of each layer. The arguments of `call`, including scores, are valid until it
 * returns; on a device, reading them copies them to the host. */
typedef struct ch_routing_hook {
  void (*call)(void *context, ch_exec *x, int layer, const ch_route_args *a, const ch_routing *routing);
  void *context;
} ch_routing_hook;

/* Arguments of one call, including the routing; forward and backward use the same struct. route.x, out and their
 * gradients have this rank's n = route.n / ranks rows, [n,d]. */
typedef struct ch_moe_args {
  ch_route_args route;
  int h;                       /* hidden width of this rank's shard of an expert */
  ch_activation activation;    /* of experts */
  int grad_chunks;             /* gradient chunks of this rank's n rows; the router's products are computed per chunk
                                  (op/grad_chunks.h) */
  int layer;                   /* index of the layer in the model, for the hook */
  const ch_routing_hook *hook; /* or NULL */
  ch_route_tally tally;        /* output of op `tally`; sums NULL: allocated with the record */
  int keep;                    /* forward saves activations for backward on the tape; not with route.causal */
  ch_moe_weights weights;
  real CH_DEV *out; /* [n,d] */
  int out_acc;      /* out += MoE(x): adds to the residual stream */
  /* backward */
  const real CH_DEV *dout; /* [n,d] */
  real CH_DEV *dx;         /* [n,d] = */
  ch_moe_gradients gradients;
  int accumulate; /* gradients += instead of gradients = */
} ch_moe_args;

/* Number of tokens of this rank, and index of its first token. */
static inline int ch_moe_rows(const ch_exec *x, const ch_moe_args *a) {
  return (int)ch_local_count(x->comm, a->route.n);
}
static inline int64_t ch_moe_first_token(const ch_exec *x, const ch_moe_args *a) {
  return ch_local_offset(x->comm, ch_moe_rows(x, a));
}

/* Rows that are inputs or outputs of products, in the compute type. */
typedef struct ch_operand {
  real CH_DEV *value;
  ch_bf16 CH_DEV *rounded; /* bf16 rows; then value is NULL */
} ch_operand;

/* Results of forward, for the tokens of all ranks unless a comment says otherwise. The routing is always on the tape,
 * the other arrays only with `keep`. Backward overwrites pre and expert_y. */
typedef struct ch_moe_saved {
  ch_routing routing;
  ch_dispatch dispatch;  /* the distribution of the record over ranks */
  real CH_DEV *jitter;   /* [n,d] jitter factors of the router's input, for this rank's rows; NULL: no jitter */
  int chunk_slots;       /* max slots that the experts process at a time: all slots, except for some causal routings */
  ch_operand pre;        /* [slots,h] pre-activations x W1 of this rank's experts */
  real CH_DEV *up;       /* [slots,h] x W3 of gated experts, in floats; so is pre then */
  real CH_DEV *expert_y; /* [max_rows,d] first the rows of this rank's tokens for their experts, then the experts'
                            outputs; with several rounds only those of one round (dispatch.h) */
} ch_moe_saved;

#endif
