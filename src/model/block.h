/* The two halves of a layer, the head behind the last one, and the parts that they are made of: products with a weight,
 * the norm before, dropout behind, views of shards. */
#ifndef CH_MODEL_BLOCK_H
#define CH_MODEL_BLOCK_H

#include "model/transformer.h"
#include "op/grad_chunks.h"

/* y [n,out] (=|+=) x W^T for a weight W [out,in]; at most CH_LINEARS of them at once, of the same x; and the mirror:
 * dx (=|+=) dy W, and dW (=|+=) dy^T x, of which one may be NULL and is left out. */
enum { CH_LINEARS = 3 };
void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate);
void ch_linears(ch_exec *x, int count, const ch_param *const *w, int64_t n, const real CH_DEV *in,
                real CH_DEV *const *out);
void ch_linear_backward(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, const real CH_DEV *dout,
                        real CH_DEV *din, int accumulate, real CH_DEV *dw, int accumulate_dw);

/* Dropout of what a half of a layer adds to the stream [n,d], `place` telling the halves apart. Before: out = in, and
 * where the half is to add its output, which is out itself without dropout; in may be out. After: out += the output
 * less what is dropped. Backward: the gradient of that output from that of the stream. */
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

/* RMSNorm of the stream by a weight [d], as it ran: into scratch, and so rstd [n] where it is NULL. Backward adds to
 * dx, where the residual's gradient stands, and to dw. */
ch_rmsnorm_args ch_norm(ch_exec *x, const ch_transformer *m, const ch_param *w, int64_t n, const real CH_DEV *in,
                        real CH_DEV *rstd);
void ch_norm_backward(ch_exec *x, const ch_rmsnorm_args *forward, const real CH_DEV *dnormed, real CH_DEV *dx,
                      real CH_DEV *dw);

/* Gradient chunks of a pass (op/grad_chunks.h): how many, the sequences of one, a layer's tape of attention from the
 * first row of chunk `number` on, and a weight's gradient as a sum over them. */
int ch_pass_grad_chunks(const ch_pass *p);
ch_pass ch_grad_chunk_of_pass(const ch_pass *p);
ch_layer ch_grad_chunk_of_layer(const ch_transformer *m, const ch_layer *b, const ch_pass *shard, int number);
ch_sum ch_sum_of(const ch_param *w);

/* ---- the attention half of a layer ---- */

/* out = in + Attn(RMSNorm(in)); `in` [n,d] stays, or is `out`. Backward: dx [n,d] is updated in place from the gradient
 * of the half's output to that of its input. */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out);
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx);

/* Fills the rotations of rope by position, [positions,rotated]. */
void ch_rope_table_make(ch_exec *x, const ch_transformer *m, int positions, real CH_DEV *table);

/* The stream [B*T,d] before the first layer; what ran comes back, for backward. */
ch_embedding_args ch_embed(ch_exec *x, const ch_transformer *m, const ch_pass *p, const int32_t CH_DEV *token,
                           real CH_DEV *rows);

/* ---- the feed-forward half of a layer: MoE or dense ---- */

/* As the attention half: out = in + FFN(RMSNorm(in)). */
void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out);
void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx);

/* The last norm and the head: loss, logits, and in dx the gradient of the last layer's output. */
void ch_head(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in, real CH_DEV *dx);

/* The same for logits [n,V] alone, of n rows that inference puts together: one product, which the executor may be told
 * to do row by row (ch_exec's batch_invariant), so that no row's logits depend on the others. */
void ch_logits(ch_exec *x, const ch_transformer *m, int64_t n, const real CH_DEV *in, real CH_DEV *logits);

/* Weight of the loss of disagreement between two predictions, for each of the pairs that have a target. */
double ch_consistency_weight(ch_exec *x, const ch_transformer *m, const ch_pass *p);

#endif
