/* What a MoE layer is given, and what it leaves behind. */
#ifndef CH_MOE_ARGS_H
#define CH_MOE_ARGS_H

#include "moe/exchange.h"
#include "moe/router.h"

/* Of experts a rank has its own ones only (moe/exchange.h): e is then their number. */
typedef struct ch_moe_weights {
  const real CH_DEV *router, *w1, *w2; /* [d,e] (NULL for a router without weight), [e,d,h], [e,d,h] */
  const ch_bf16 CH_DEV *w1_16, *w2_16; /* rounded copies for bf16 compute, or NULL */
  const real CH_DEV *thresholds;       /* [e]; NULL for a router that keeps none */
} ch_moe_weights;

typedef struct ch_moe_gradients {
  real CH_DEV *router, *w1, *w2; /* router NULL where no gradient trains its weight */
} ch_moe_gradients;

struct ch_moe_args;
struct ch_moe_saved;

/* Someone who looks at how each layer routed. What `call` is shown, scores too, lives until it returns; reading it is a
 * copy to the host. */
typedef struct ch_routing_hook {
  void (*call)(void *context, ch_exec *x, const struct ch_moe_args *a, const struct ch_moe_saved *saved);
  void *context;
} ch_routing_hook;

/* Everything one call needs. The same struct goes to forward and backward. Rows (x, out, their gradients) are this
 * rank's, n of them; what the router reads is about the tokens of all ranks, n times as many as there are ranks. */
typedef struct ch_moe_args {
  const choir_router_options *options;
  const ch_router *router;
  int n, d, h, e, sequence_length;
  int shards; /* this rank's, of n / shards rows: products of the router are computed by each (op/shards.h) */
  int layer;  /* its number in the model, for the hook */
  const ch_routing_hook *hook; /* or NULL */
  const uint8_t *mask;         /* of all tokens, or NULL: valid, for the host */
  const uint8_t CH_DEV *valid; /* of all tokens, or NULL */
  const int32_t CH_DEV *token; /* of all tokens, or NULL */
  int training;                /* training capacity factor, jitter and sampling */
  int keep;                    /* forward keeps what backward needs on the tape */
  int causal;                  /* no token's experts depend on another token; not with keep */
  int by_threshold;            /* training takes tokens by thresholds */
  real CH_DEV *observe; /* what the router keeps, to fold this call into: thresholds [e], or its weight; or NULL */
  uint64_t observed;    /* calls folded into it before */
  ch_rng rng;           /* of jitter and sampling: seed and sub (the layer) count, the stream is set here */
  uint64_t rng_base;    /* tokens that went before in this run: token t of all draws number rng_base + t */
  ch_route_tally tally; /* where to count what the routing does; sums NULL: on the tape */
  ch_moe_weights weights;
  const real CH_DEV *x; /* [n,d] */
  real CH_DEV *out;     /* [n,d] */
  int out_acc;          /* out += MoE(x): straight onto the residual stream */
  /* backward */
  const real CH_DEV *dout; /* [n,d] */
  real CH_DEV *dx;         /* [n,d] = */
  real aux_scale;          /* weight of the auxiliary loss in the gradient; 0: none */
  ch_moe_gradients gradients;
  int accumulate; /* gradients += instead of gradients = */
} ch_moe_args;

/* Rows that products read or make: in the type they compute in. */
typedef struct ch_operand {
  real CH_DEV *value;
  ch_bf16 CH_DEV *rounded; /* then value is NULL */
} ch_operand;

/* What forward leaves behind: about the tokens of all ranks, unless it says otherwise. Record, counts and tally are on
 * the tape always, so that they can be looked at after an evaluation too; the rest is there with `keep` only, and
 * backward writes over pre and expert_y. */
typedef struct ch_moe_saved {
  ch_record record;
  ch_route_counts counts;
  ch_route_tally tally;
  ch_exchange exchange;         /* who has what of the record */
  real CH_DEV *jitter;          /* [n,d] factors of the router's input, of this rank's rows; or NULL: none */
  real CH_DEV *gate_sum;        /* [n] of each token's gates before they were scaled, or NULL: they were not */
  real CH_DEV *logits, *scores; /* [n,e], or NULL: the router has no weight; of this rank's tokens alone are logits
                                   behind scores, and scores where experts choose at their owners (at_owners.h) */
  int chunk_slots;              /* slots that go through the experts at once: all, but for causal routing perhaps */
  ch_operand pre;               /* [slots,h] pre-activations of GELU, of this rank's experts */
  real CH_DEV *expert_y;        /* [room,d] what experts made of this rank's tokens; before, what goes there; not all
                                   of it where rows go in rounds (rounds.h) */
} ch_moe_saved;

#endif
