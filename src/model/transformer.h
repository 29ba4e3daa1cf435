/* The Transformer: a hand-written sequence of named calls, forward and the same calls mirrored backward.
 *
 *   x = E[token];  per layer: x += Attn(RMSNorm(x)); x += FFN(RMSNorm(x));  logits = RMSNorm(x) E^T / sqrt(d)
 *
 * The FFN is an MoE layer, perhaps with shared experts, where the config says so, and dense elsewhere. */
#ifndef CH_MODEL_TRANSFORMER_H
#define CH_MODEL_TRANSFORMER_H

#include "model/param.h"
#include "moe/layer.h"

/* A dense feed-forward layer, and what forward left of it on the tape. */
typedef struct ch_dense {
  ch_activation activation;
  ch_param *gate, *up, *down; /* gate NULL where nothing is gated */
  real CH_DEV *g, *u;         /* [n,h] x Wgate^T, or NULL; x Wup^T */
} ch_dense;

/* One layer: its parameters by role, and what forward left for backward. */
typedef struct ch_layer {
  int number;             /* 0-based */
  int moe;                /* 0-based number among the MoE layers, or -1: dense */
  ch_router_spec routing; /* of an MoE layer: the config's, with the layer's own capacity */
  ch_router_spec scaled;  /* the same in a pass that has its own `capacity` */
  ch_param *attn_norm, *q, *k, *v, *o, *ffn_norm;
  ch_param *q_norm, *k_norm;       /* NULL without */
  ch_param *rel_bias;              /* NULL where position is rope's */
  ch_dense dense;                  /* the whole of a dense layer, the shared experts of a MoE layer; up NULL: none */
  ch_param *router, *w1, *w2, *w3; /* MoE; router NULL where none is learned, w3 where nothing is gated */
  ch_param *thresholds;            /* NULL where the router keeps none */
  /* the tape */
  real CH_DEV *x;        /* [n,d] input of the layer */
  real CH_DEV *rstd1;    /* [n] */
  real CH_DEV *qh, *att; /* [n,H*dh] queries, before their norm; else as scores take them */
  real CH_DEV *kh, *vh;  /* [n,kv_heads*dh] likewise */
  real CH_DEV *lse;      /* [B,H,T] */
  real CH_DEV *mid;      /* [n,d] after attention */
  real CH_DEV *rstd2;    /* [n] */
  ch_moe_saved saved;
} ch_layer;

typedef struct ch_transformer {
  ch_model_config config;
  const ch_router *router;
  int d_head, width;      /* of one head; H * d_head */
  int kv_heads, kv_width; /* kv_heads * d_head */
  int rotated;            /* columns of a head that RoPE rotates; 0: no RoPE */
  int moe_layers;
  ch_params params;
  ch_param *embed, *final_norm, *head; /* head: perhaps the embedding */
  ch_layer *block;                     /* [L] */
  choir_route_stats *stats;            /* [moe_layers] sums since ch_transformer_clear_stats */
} ch_transformer;

/* Results of a pass, in one device array so that the host fetches them with one copy: these numbers, then CH_TALLY_SUMS
 * of every MoE layer, the int64_t counts of all tallies, and the loss of every shard. */
enum {
  CH_PASS_CONSISTENCY,
  CH_PASS_GUARD, /* starts as the loss; an update within the backward pass adds squares of gradients */
  CH_PASS_SUMS
};

/* Keys and values of the tokens before those of a pass, and room for the pass's. Rows begin[b] .. begin[b+1]-1 of the
 * pass go on with sequence b. */
typedef struct ch_kv_cache {
  int sequences, positions;   /* how many; tokens of one, at most */
  const int *begin;           /* [sequences+1] host */
  const int *past;            /* [sequences] host: tokens before the pass's */
  real CH_DEV *const *keys;   /* [L] -> [sequences,kv_heads,positions,dh] */
  real CH_DEV *const *values; /* the same */
  real CH_DEV *const *bias;   /* [L] -> [H,positions + CH_BIAS_PAD] relative position bias by distance, or NULL */
} ch_kv_cache;

/* One pass over B sequences of T tokens. B counts the sequences of all ranks; every rank runs an equal part. */
typedef struct ch_pass {
  int B, T;
  ch_route_args route; /* of every MoE layer. The caller says training (of dropout, too), causal (not with gradients)
                          and by_threshold, the pass what else its layers have in common */
  const uint8_t *forced_assignment; /* [MoE layers,B*T,e] host, 0 or 1; or NULL; not with route.causal */
  int grad_chunks; /* of B / shards sequences, each computed by itself; 0 or 1: all at once, as it must be with `row` or
                 paired */
  const int32_t *token; /* [B*T] host; negative: padding, which takes no part in routing or loss, nor, at a sequence's
                           end, in attention */
  const int32_t *row;   /* [rows] host: the positions whose logits are wanted, ascending; NULL: all B*T */
  int rows;
  const int32_t *target;    /* [rows or B*T] host: token to predict, negative: none; or NULL: no loss */
  const float *row_weight;  /* [rows or B*T] host: factors of targets' losses; or NULL: 1. Not with `paired` */
  int gradients;            /* of weight * loss_sum + aux_scale * (aux_loss + z_loss); needs targets */
  int accumulate;           /* 1: gradients +=; 0: gradients = */
  int partial;              /* 1: later passes will add to the gradients, so replicas do not sum them yet */
  const ch_kv_cache *cache; /* of a session: B is 1, T all new tokens, without gradients; or NULL */
  int paired;  /* sequence b + B/2 is sequence b again: predictions of both are to agree (consistency_weight) */
  int observe; /* fold cut-offs or centroids into what the router keeps */
  const ch_routing_hook *hook; /* sees every MoE layer's routing; or NULL */
  real weight, aux_scale;
  double capacity; /* times the capacity factor of training (capacity_start); 0: 1 */
  double dropout;  /* while training: of the embedding and of what each half of a layer adds to the stream */
  const real CH_DEV *rope_table;  /* of rope, by position */
  const int32_t CH_DEV *position; /* of every row; or NULL: of row t it is t % T */
  uint64_t seed, micro;           /* of jitter, sampling and dropout: functions of (seed, micro-batch number) */
  real *logits;                   /* [rows or B*T,V] host, or NULL */
  float *token_loss;              /* [B*T] host, of every target, 0 without one; or NULL. Not with `row` */
  /* Called as soon as the gradients of a layer are complete, the last layer first, and before the next one's begin,
   * which may stand on the same memory; or NULL. */
  void (*ready)(void *context, const struct ch_pass *pass, int layer);
  void *context;
  /* results */
  double loss_sum;                       /* over targets, natural logarithm, times row_weight */
  double aux_loss, z_loss;               /* weighted, summed over layers */
  double CH_DEV *sums, *grad_chunk_loss; /* what they come from, while the pass runs */
  const int *length; /* [B] host, while it runs: positions up to each sequence's last token, where attention is
                        bidirectional and some are shorter than T; or NULL */
} ch_pass;

/* Whether layers route with another capacity than their own. */
static inline int ch_pass_scales(const ch_pass *p) { return p->capacity != 0 && p->capacity != 1; }

/* Builds the parameter table and binds names to roles; no memory for weights yet. */
int ch_transformer_create(const ch_model_config *config, ch_transformer *m);
void ch_transformer_free(ch_transformer *m);

/* Runs a pass, or counts it. Empties the tape when done. Waits for the device once, at the end, for the results. */
void ch_transformer_run(ch_exec *x, ch_transformer *m, ch_pass *all);

/* Any pass is made of these, a session's too. Begin: p->route but for its tokens, and room for the pass's numbers, on
 * the tape. Then the layers, on the stream [n,d]: the last one's output, in a place of its own with gradients; without,
 * each layer's tape is given back once the layer has run, and the output is in one of two buffers, `stream` among them.
 * End: the numbers on the host, the layers' statistics among them. */
void ch_pass_begin(ch_exec *x, const ch_transformer *m, ch_pass *p);
const real CH_DEV *ch_layers_forward(ch_exec *x, ch_transformer *m, const ch_pass *p, real CH_DEV *stream);
void ch_pass_end(ch_exec *x, ch_transformer *m, ch_pass *p);

void ch_transformer_clear_stats(ch_transformer *m);

/* Other tokens to choose among, another capacity in evaluation (0: as in training), and another cap on a token's
 * experts, of every layer. */
void ch_transformer_set_pool(ch_transformer *m, ch_pool_kind pool);
void ch_transformer_set_eval_capacity(ch_transformer *m, double factor);
void ch_transformer_set_cap(ch_transformer *m, int cap);

/* Moves what routers that observe by step keep, by the demand of all passes since the statistics were cleared. Where a
 * plug-in's `observe` fails, the layers after it keep theirs: whoever calls this asks ch_exec_refused. */
void ch_transformer_end_step(ch_exec *x, ch_transformer *m);

#endif
