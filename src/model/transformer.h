/* The decoder-only Transformer: a hand-written sequence of named calls, forward and the same calls mirrored backward.
 *
 *   x = E[token];  per layer: x += Attn(RMSNorm(x)); x += FFN(RMSNorm(x));  logits = RMSNorm(x) E^T / sqrt(d)
 *
 * The FFN is an MoE layer where the config says so and GEGLU elsewhere. */
#ifndef CH_MODEL_TRANSFORMER_H
#define CH_MODEL_TRANSFORMER_H

#include "model/param.h"
#include "moe/layer.h"
#include "op/shards.h"

/* One layer: its parameters by role, and what forward left for backward. */
typedef struct ch_block {
  int number; /* 0-based */
  int moe;    /* 0-based number among the MoE layers, or -1: GEGLU */
  ch_param *attn_norm, *q, *k, *v, *o, *rel_bias, *ffn_norm;
  ch_param *gate, *up, *down; /* GEGLU */
  ch_param *router, *w1, *w2; /* MoE; router NULL where none is learned */
  ch_param *thresholds;       /* NULL where the router keeps none */
  /* the tape */
  real CH_DEV *x;                  /* [n,d] input of the layer */
  real CH_DEV *rstd1;              /* [n] */
  real CH_DEV *qh, *kh, *vh, *att; /* [n,H*dh] */
  real CH_DEV *lse;                /* [B,H,T] */
  real CH_DEV *mid;                /* [n,d] after attention */
  real CH_DEV *rstd2;              /* [n] */
  real CH_DEV *g, *u;              /* [n,h] GEGLU's pre-activations */
  ch_moe_saved saved;
} ch_block;

typedef struct ch_transformer {
  choir_model_config config;
  const ch_router *router;
  int d_head, width; /* of one head; H * d_head */
  int moe_layers;
  ch_params params;
  ch_param *embed, *final_norm;
  ch_block *block;          /* [L] */
  choir_route_stats *stats; /* [moe_layers] sums since ch_transformer_clear_stats */
} ch_transformer;

/* Numbers that a pass leaves for the host in one array on the device: these, then CH_TALLY_SUMS of every MoE layer,
 * then as many int64_t as their tallies have, then the loss of every shard. */
enum {
  CH_PASS_CONSISTENCY,
  CH_PASS_GUARD, /* starts as the loss; an update within the backward pass adds squares of gradients */
  CH_PASS_SUMS
};

/* One pass over B sequences of T tokens: those of all ranks, each of which runs its share of them. */
typedef struct ch_pass {
  int B, T;
  ch_route_args route; /* of every MoE layer. The caller says training (of dropout, too), causal (not with gradients)
                          and by_threshold, the pass what else its layers have in common */
  real CH_DEV *const *history; /* [MoE layers] of adaptive routing that goes on with route.growing; or NULL */
  int shards; /* of B / shards sequences, each computed by itself; 0 or 1: all at once, as it must be with `row` or
                 drawn_twice */
  const int32_t *token; /* [B*T] host; negative: padding, which takes no part in routing or loss */
  const int32_t *row;   /* [rows] host: the positions whose logits are wanted, ascending; NULL: all B*T */
  int rows;
  const int32_t *target; /* [rows or B*T] host: token to predict, negative: none; or NULL: no loss */
  int gradients;         /* of weight * loss_sum + aux_scale * aux_loss; needs targets */
  int accumulate;        /* add them to what stands there, instead of setting them whatever it is */
  int partial;           /* other passes will add to them: replicas of experts need not sum theirs yet */
  int drawn_twice; /* sequence b + B/2 is sequence b again: predictions of both are to agree (consistency_weight) */
  int observe;     /* fold cut-offs or centroids into what the router keeps */
  const ch_routing_hook *hook; /* sees every MoE layer's routing; or NULL */
  real weight, aux_scale;
  double dropout;       /* while training: of the embedding and of what each half of a layer adds to the stream */
  uint64_t seed, micro; /* of jitter, sampling and dropout: functions of (seed, micro-batch number) */
  real *logits;         /* [rows or B*T,V] host, or NULL */
  /* Called as soon as the gradients of a layer are complete, the last layer first, and before the next one's begin,
   * which may stand on the same memory; or NULL. */
  void (*ready)(void *context, const struct ch_pass *pass, int layer);
  void *context;
  /* results */
  double loss_sum;                  /* over targets, natural logarithm */
  double aux_loss;                  /* weighted, summed over layers */
  double CH_DEV *sums, *shard_loss; /* what they come from, while the pass runs */
} ch_pass;

/* Builds the parameter table and binds names to roles; no memory for weights yet. */
int ch_transformer_create(const choir_model_config *config, ch_transformer *m);
void ch_transformer_free(ch_transformer *m);

/* Runs a pass, or counts it. Empties the tape when done. Waits for the device once, at the end, for the results. */
void ch_transformer_run(ch_exec *x, ch_transformer *m, ch_pass *all);

/* What a pass over any tokens begins and ends with: p->route but for its tokens, and room for the pass's numbers, on
 * the tape; and these numbers on the host, the layers' statistics among them. */
void ch_pass_begin(ch_exec *x, const ch_transformer *m, ch_pass *p);
void ch_pass_end(ch_exec *x, ch_transformer *m, ch_pass *p);

void ch_transformer_clear_stats(ch_transformer *m);

/* The two halves of a layer (attention.c, ffn.c). `in` [n,d] stays; out = in + f(in). dx [n,d] is updated in place
 * from the gradient of the half's output to that of its input. */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out);
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx);
void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out);
void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_block *b, const ch_pass *p, real CH_DEV *dx);

/* The first part of the attention half: q, k, v [n,width] of RMSNorm(in), whose rstd [n] stays for backward. */
void ch_attention_in(ch_exec *x, const ch_transformer *m, const ch_block *b, int64_t n, const real CH_DEV *in,
                     real CH_DEV *rstd, real CH_DEV *q, real CH_DEV *k, real CH_DEV *v);

/* The last norm and the tied head: loss, logits, and in dx the gradient of the last layer's output. */
void ch_head(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in, real CH_DEV *dx);

/* The same for logits [n,V] alone, of n rows that inference puts together: one product, which the executor may be told
 * to do row by row (ch_exec's batch_invariant), so that no row's logits depend on the others. */
void ch_logits(ch_exec *x, const ch_transformer *m, int64_t n, const real CH_DEV *in, real CH_DEV *logits);

/* What the loss of disagreement between two predictions counts for, each of the pairs that have a target. */
double ch_consistency_weight(ch_exec *x, const ch_transformer *m, const ch_pass *p);

/* y [n,out] (=|+=) x W^T for a weight W [out,in]; at most CH_LINEARS of them at once, of the same x; and the mirror:
 * dx (=|+=) dy W, and dW (=|+=) dy^T x, of which one may be NULL and is left out. */
enum { CH_LINEARS = 3 };
void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate);
void ch_linears(ch_exec *x, int count, const ch_param *const *w, int64_t n, const real CH_DEV *in,
                real CH_DEV *const *out);
void ch_linear_backward(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, const real CH_DEV *dout,
                        real CH_DEV *din, int accumulate, real CH_DEV *dw, int accumulate_dw);

/* Dropout of what a half of a layer adds to the stream [n,d], `place` telling the halves apart. Before: out = in, and
 * where the half is to add its output, which is out itself without dropout. After: out += the output less what is
 * dropped. Backward: the gradient of that output from that of the stream. */
enum { CH_DROP_EMBEDDING, CH_DROP_ATTENTION, CH_DROP_FFN }; /* place: 2 * layer + one of the halves */
int ch_drops(const ch_pass *p);
void ch_dropout(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place, const real CH_DEV *in,
                real CH_DEV *out, int accumulate);
real CH_DEV *ch_half_begin(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in,
                           real CH_DEV *out);
void ch_half_end(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place, const real CH_DEV *added,
                 real CH_DEV *out);
const real CH_DEV *ch_half_backward(ch_exec *x, const ch_transformer *m, const ch_pass *p, int place,
                                    const real CH_DEV *dout);

/* RMSNorm of the stream by a weight [d]: normed [n,d], rstd [n]. Backward adds to dx, where the residual's gradient
 * stands, and to dw. */
ch_rmsnorm_args ch_norm_args(const ch_transformer *m, const ch_param *w, int64_t n, const real CH_DEV *in,
                             real CH_DEV *rstd, real CH_DEV *normed);
void ch_norm_backward(ch_exec *x, const ch_rmsnorm_args *forward, const real CH_DEV *dnormed, real CH_DEV *dx,
                      real CH_DEV *dw);

/* Shards of a pass: how many, the sequences of one, a layer's tape of attention from the first row of shard `number`
 * on, and a weight's gradient as a sum over them. */
int ch_pass_shards(const ch_pass *p);
ch_pass ch_shard_of_pass(const ch_pass *p);
ch_block ch_shard_of_block(const ch_transformer *m, const ch_block *b, const ch_pass *shard, int number);
ch_sum ch_sum_of(const ch_param *w);

#endif
