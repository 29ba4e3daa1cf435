/* The two halves of a layer (attention, feed-forward), the head after the last layer, and their building blocks: linear
 * maps, the norm before, dropout after, views of gradient chunks. */
#ifndef CH_MODEL_BLOCK_H
#define CH_MODEL_BLOCK_H

#include "model/transformer.h"
#include "op/grad_chunks.h"

/* y [n,out] (=|+=) x W^T for a weight W [out,in]; up to CH_LINEARS weights at once for the same x. Backward: dx (=|+=)
 * dy W and dW (=|+=) dy^T x; one of both may be NULL and is then not computed. */
enum { CH_LINEARS = 3 };
void ch_linear(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, real CH_DEV *out, int accumulate);
void ch_linears(ch_exec *x, int count, const ch_param *const *w, int64_t n, const real CH_DEV *in,
                real CH_DEV *const *out);
void ch_linear_backward(ch_exec *x, const ch_param *w, int64_t n, const real CH_DEV *in, const real CH_DEV *dout,
                        real CH_DEV *din, int accumulate, real CH_DEV *dw, int accumulate_dw);

/* Dropout of the output that a half of a layer adds to the residual stream [n,d]; `place` identifies the half. Before:
 * sets out = in, and returns the array that the half adds its output to (without dropout: out); in may be out. After:
 * out += dropout(output). Backward: the gradient of the output from that of the stream. */
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

/* RMSNorm of the residual stream by a weight [d], into scratch; also rstd [n] if it is NULL. Returns the arguments, for
 * backward, which adds to dx (the gradient of the residual stream) and to dw. */
ch_rmsnorm_args ch_norm(ch_exec *x, const ch_transformer *m, const ch_param *w, int64_t n, const real CH_DEV *in,
                        real CH_DEV *rstd);
void ch_norm_backward(ch_exec *x, const ch_rmsnorm_args *forward, const real CH_DEV *dnormed, real CH_DEV *dx,
                      real CH_DEV *dw);

/* Gradient chunks of a pass (op/grad_chunks.h): their number, the sequences per chunk, a layer's attention tape from
 * the first row of chunk `number` on, and a weight's gradient as a sum over chunks. */
int ch_pass_grad_chunks(const ch_pass *p);
ch_pass ch_grad_chunk_of_pass(const ch_pass *p);
ch_layer ch_grad_chunk_of_layer(const ch_transformer *m, const ch_layer *b, const ch_pass *shard, int number);
ch_sum ch_sum_of(const ch_param *w);

/* ---- the attention half of a layer ---- */

/* out = in + Attn(RMSNorm(in)); `in` [n,d] is not changed unless it is `out`. Backward: dx [n,d] is updated in place
 * from the gradient of the half's output to that of its input. */
void ch_attention_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                          real CH_DEV *out);
void ch_attention_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx);

/* Computes the rotation table of RoPE, table [positions,rotated]. */
void ch_rope_table_make(ch_exec *x, const ch_transformer *m, int positions, real CH_DEV *table);

/* Computes the residual stream [B*T,d] before the first layer; returns the arguments of the op, for backward. */
ch_embedding_args ch_embed(ch_exec *x, const ch_transformer *m, const ch_pass *p, const int32_t CH_DEV *token,
                           real CH_DEV *rows);

/* ---- the feed-forward half of a layer: MoE or dense ---- */

/* out = in + FFN(RMSNorm(in)); arguments as for the attention half. */
void ch_ffn_forward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, const real CH_DEV *in,
                    real CH_DEV *out);
void ch_ffn_backward(ch_exec *x, const ch_transformer *m, ch_layer *b, const ch_pass *p, real CH_DEV *dx);

/* The final norm and the head: computes loss, logits, and dx [n,d], the gradient of the last layer's output. */
void ch_head(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in, real CH_DEV *dx);

/* ch_head for logits [n,V] only, for the n rows of an inference pass, in one product. With batch_invariant of ch_exec a
 * row's logits do not depend on the other rows. */
void ch_logits(ch_exec *x, const ch_transformer *m, int64_t n, const real CH_DEV *in, real CH_DEV *logits);

/* Weight of the loss of disagreement between two predictions, for each of the pairs that have a target. */
double ch_consistency_weight(ch_exec *x, const ch_transformer *m, const ch_pass *p);

#endif
