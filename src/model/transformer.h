/* The Transformer: an explicit sequence of calls for forward, and their backward calls in reverse order.
 *
 *   x = E[token];  per layer: x += Attn(RMSNorm(x)); x += FFN(RMSNorm(x));  logits = RMSNorm(x) E^T / sqrt(d)
 *
 * The FFN is an MoE layer, optionally with shared experts, or dense, by the config. */
#ifndef CH_MODEL_TRANSFORMER_H
#define CH_MODEL_TRANSFORMER_H

#include "model/param.h"
#include "moe/layer.h"

/* A dense feed-forward layer, and its activations on the tape. */
typedef struct ch_dense {
  ch_activation activation;
  ch_param *gate, *up, *down; /* gate is NULL without a gate */
  real CH_DEV *g, *u;         /* [n,h] x Wgate^T, or NULL; x Wup^T */
} ch_dense;

/* One layer: its parameters by role, and its activations saved for backward. */
typedef struct ch_layer {
  int number;             /* 0-based */
  int moe;                /* 0-based number among the MoE layers, or -1: dense */
  ch_router_spec routing; /* MoE: router options of the config, with the capacity of this layer */
  ch_router_spec scaled;  /* `routing` scaled by the `capacity` of the current pass */
  ch_param *attn_norm, *q, *k, *v, *o, *ffn_norm;
  ch_param *q_norm, *k_norm;       /* NULL without */
  ch_param *rel_bias;              /* NULL with RoPE */
  ch_dense dense;                  /* the FFN of a dense layer, or the shared experts of an MoE layer; up NULL: none */
  ch_param *router, *w1, *w2, *w3; /* MoE; router is NULL without a learned weight, w3 without a gate */
  ch_param *thresholds;            /* NULL if the router has none */
  /* the tape */
  real CH_DEV *x;        /* [n,d] input of the layer */
  real CH_DEV *rstd1;    /* [n] */
  real CH_DEV *qh, *att; /* [n,H*dh] queries before q_norm; without q_norm, rotated */
  real CH_DEV *kh, *vh;  /* [n,kv_heads*dh] keys, as qh; values */
  real CH_DEV *lse;      /* [B,H,T] */
  real CH_DEV *mid;      /* [n,d] after attention */
  real CH_DEV *rstd2;    /* [n] */
  ch_moe_saved saved;
} ch_layer;

typedef struct ch_transformer {
  ch_model_config config;
  const ch_router *router;
  int d_head, width;      /* width of a head; H * d_head */
  int kv_heads, kv_width; /* kv_heads * d_head */
  int rotated;            /* columns of a head that RoPE rotates; 0: no RoPE */
  int moe_layers;
  ch_params params;
  ch_param *embed, *final_norm, *head; /* head may be the embedding */
  ch_layer *block;                     /* [L] */
  choir_route_stats *stats;            /* [moe_layers] sums since ch_transformer_clear_stats */
} ch_transformer;

/* Results of a pass, in one device array so that the host fetches them with one copy: these numbers, then CH_TALLY_SUMS
 * of every MoE layer, the int64_t counts of all tallies, and the loss of every gradient chunk. */
enum {
  CH_PASS_CONSISTENCY,
  CH_PASS_GUARD, /* starts as the loss; an update within the backward pass adds squares of gradients */
  CH_PASS_SUMS
};

/* Cached keys and values of earlier tokens, with space for the tokens of a pass. Rows begin[b] .. begin[b+1]-1 of the
 * pass continue sequence b. */
typedef struct ch_kv_cache {
  int sequences, positions;   /* number of sequences; max tokens per sequence */
  const int *begin;           /* [sequences+1] host */
  const int *past;            /* [sequences] host: cached tokens */
  real CH_DEV *const *keys;   /* [L] -> [sequences,kv_heads,positions,dh] */
  real CH_DEV *const *values; /* the same */
  real CH_DEV *const *bias;   /* [L] -> [H,positions + CH_BIAS_PAD] relative position bias by distance, or NULL */
} ch_kv_cache;

/* One pass over B sequences of T tokens. B counts the sequences of all ranks; every rank runs an equal part. */
typedef struct ch_pass {
  int B, T;
  ch_route_args route; /* for every MoE layer. The caller sets training (also for dropout), causal (not with gradients)
                          and by_threshold; the pass sets the other common fields */
  const uint8_t *forced_assignment; /* [MoE layers,B*T,e] host, 0 or 1; or NULL; not with route.causal */
  int grad_chunks; /* number of gradient chunks, of B / grad_chunks sequences each, computed separately; 0 or 1: one
                      chunk, as required with `row` or `paired` */
  const int32_t *token; /* [B*T] host; negative: padding, excluded from routing and loss, and at the end of a sequence
                           from attention */
  const int32_t *row;   /* [rows] host: positions whose logits to compute, ascending; NULL: all B*T */
  int rows;
  const int32_t *target;   /* [rows or B*T] host: token to predict, negative: none; or NULL: no loss */
  const float *row_weight; /* [rows or B*T] host: factors of targets' losses; or NULL: 1. Not with `paired` */
  int gradients;  /* 1: compute gradients of weight * loss_sum + aux_scale * (aux_loss + z_loss); requires targets */
  int accumulate; /* 1: gradients +=; 0: gradients = */
  int partial;    /* 1: later passes will add to the gradients, so replicas do not sum them yet */
  const ch_kv_cache *cache; /* for a session: B is 1, T is the number of new tokens, no gradients; or NULL */
  int paired;  /* sequence b + B/2 is a copy of sequence b, for the consistency loss (consistency_weight) */
  int observe; /* update the routers' state (thresholds, centroids) */
  const ch_routing_hook *hook; /* receives every MoE layer's routing; or NULL */
  real weight, aux_scale;
  double capacity; /* multiplies the capacity factor of training (capacity_start); 0 means 1 */
  double dropout;  /* dropout rate in training, of the embedding and of the output of each half of a layer */
  const real CH_DEV *rope_table;  /* [positions,rotated] of RoPE */
  const int32_t CH_DEV *position; /* positions of rows; NULL: t % T for row t */
  uint64_t seed, micro;           /* of jitter, sampling and dropout: functions of (seed, micro-batch number) */
  real *logits;                   /* [rows or B*T,V] host, or NULL */
  float *token_loss;              /* [B*T] host, loss of every target, 0 without a target; or NULL. Not with `row` */
  /* Called when the gradients of a layer are complete, last layer first, before the gradients of the next layer, which
   * may use the same memory, are computed; or NULL. */
  void (*ready)(void *context, const struct ch_pass *pass, int layer);
  void *context;
  /* results */
  double loss_sum;                       /* over targets, natural logarithm, times row_weight */
  double aux_loss, z_loss;               /* weighted, summed over layers */
  double CH_DEV *sums, *grad_chunk_loss; /* device arrays of these numbers, during the pass */
  const int *length; /* [B] host, during the pass: length of each sequence without padding at its end, if attention is
                        bidirectional and some are shorter than T; or NULL */
} ch_pass;

/* Whether the pass scales the capacity of the layers. */
static inline int ch_pass_scales(const ch_pass *p) { return p->capacity != 0 && p->capacity != 1; }

/* Builds the parameter table and binds names to roles; no memory for weights yet. */
int ch_transformer_create(const ch_model_config *config, ch_transformer *m);
void ch_transformer_free(ch_transformer *m);

/* Runs a pass, or counts it. Empties the tape when done. Waits for the device once, at the end, for the results. */
void ch_transformer_run(ch_exec *x, ch_transformer *m, ch_pass *all);

/* The stages of any pass, also of a session. Begin sets p->route except its tokens, and allocates the pass's results on
 * the tape. The layers transform the residual stream [n,d] and return the last output: with gradients in a separate
 * array; without gradients in one of two buffers, `stream` or another one, and each layer's tape is released after the
 * layer. End downloads the results and the layers' statistics. */
void ch_pass_begin(ch_exec *x, const ch_transformer *m, ch_pass *p);
const real CH_DEV *ch_layers_forward(ch_exec *x, ch_transformer *m, const ch_pass *p, real CH_DEV *stream);
void ch_pass_end(ch_exec *x, ch_transformer *m, ch_pass *p);

void ch_transformer_clear_stats(ch_transformer *m);

/* Set, for every layer, the pool, the capacity factor of evaluation (0: as in training), and the cap on experts per
 * token. */
void ch_transformer_set_pool(ch_transformer *m, ch_pool_kind pool);
void ch_transformer_set_eval_capacity(ch_transformer *m, double factor);
void ch_transformer_set_cap(ch_transformer *m, int cap);

/* Updates the state of routers with update_per_step, by the demand of all passes since the statistics were cleared. If
 * a plug-in's `observe` fails, later layers are not updated; check ch_exec_refused after the call. */
void ch_transformer_end_step(ch_exec *x, ch_transformer *m);

#endif
