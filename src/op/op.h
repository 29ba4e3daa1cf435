/* The op contract: one table of stateless ops on raw pointers, in forward and backward pairs.
 *
 * Rules, without exception unless the name says so:
 *  - Gradients of weights that are sums over rows accumulate (dw += ...); those that are products (gemm, CH_TN, head)
 *    do so where the field `accumulate` says it, and are set otherwise, so that nobody has to clear them first.
 *    Gradients of activations are set (dx = ...). A field whose name ends in _acc accumulates.
 *  - Arrays are row-major and contiguous unless an `ld` says otherwise; shapes stand in comments. The gradient of `x`
 *    is `dx`. Letters: n tokens, d model width, h hidden width, e experts, k tokens per expert, V vocabulary, T
 * sequence length, B sequences, H heads.
 *  - An op cannot fail; who plans a model checks shapes first. Inputs and outputs do not overlap unless it says so.
 *  - Scratch comes from x->scratch and goes back before the op returns. In the counting run (ch_counting) an op
 *    allocates its scratch and returns before it reads or writes anything else.
 *  - The result does not depend on x->threads, bit for bit: work is cut into pieces whose size depends on shapes only,
 *    and sums over pieces are added in a fixed order.
 *
 * A backend fills the table with the reference first (src/cpu/ref_*.c, plain C, double or float) and then
 * overrides what it does faster, so the table is always complete. */
#ifndef CH_OP_OP_H
#define CH_OP_OP_H

#include <stddef.h>
#include <stdint.h>

#include "op/exec.h"
#include "op/record.h"

/* C[m,n] (= or +=) alpha * op(A)[m,k] op(B)[k,n]. With trans_a, A is stored [k,m]; with trans_b, B is stored [n,k].
 * Inputs are rounded to x->compute unless `exact` asks for full precision (router). */
typedef struct {
  int64_t m, n, k;
  int trans_a, trans_b;
  const real *a, *b;
  int64_t lda, ldb, ldc; /* 0: contiguous */
  real *c;
  real alpha;     /* 0 means 1, so that a designated initialiser may leave it out */
  int accumulate; /* C += instead of C = */
  int exact;
  const ch_bf16 *b16; /* B already rounded to bf16, same layout and ldb; or NULL */
} ch_gemm_args;

/* The same for every expert i, on the rows r_i = begin[i] .. begin[i+1]-1 that belong to it:
 *   CH_NN  C[r_i, n]  = A[r_i, k] W[i][k, n]         CH_NT  C[r_i, n] = A[r_i, k] W[i][n, k]^T
 *   CH_TN  W[i][k, n] (= or +=) A[r_i, k]^T C[r_i, n]   (the gradient of a weight; A and C are inputs)
 * An expert without rows has nothing to compute but W[i] = 0, where CH_TN sets. */
typedef enum { CH_NN, CH_NT, CH_TN } ch_gemm_form;
typedef struct {
  ch_gemm_form form;
  int experts;
  const int *begin; /* [experts+1] */
  int max_rows;     /* rows of A and C at most: what the plan counts with */
  int64_t n, k;
  const real *a;      /* [rows, k] */
  real *c;            /* [rows, n] */
  real *w;            /* [experts, k, n] or [experts, n, k]; written only by CH_TN */
  int accumulate;     /* W += instead of W =; with CH_TN only */
  const ch_bf16 *w16; /* W already rounded to bf16, or NULL; never with CH_TN */
  /* Where compute is bf16 (so never for the reference): A, and C of CH_TN, already rounded, instead of a and c. */
  const ch_bf16 *a16, *c16;
} ch_expert_gemm_args;

/* Dispatch: y[s] = x[slot_token[s]]. Its transpose is combine without gates. */
typedef struct {
  const ch_record *record;
  int d;
  const real *x; /* [n,d] */
  real *y;       /* [slots,d] */
} ch_gather_args;

/* Combine: out[t] = sum over the slots s of token t, in ascending order, of gate[s] * y[s]; 0 for a token without
 * slots. `gated` 0 takes every gate as 1 (the backward of gather). `out_acc` adds to what stands in out. */
typedef struct {
  const ch_record *record;
  int d, gated, out_acc;
  const real *y; /* [slots,d] */
  real *out;     /* [n,d] */
  /* backward */
  const real *dout; /* [n,d] */
  real *dy;         /* [slots,d] gate[s] * dout[token of s]; may be the same array as y */
  real *dgate;      /* [slots] <dout[token of s], y[s]> */
} ch_combine_args;

/* Gates of every token scaled so that they sum to 1: gate[s] /= sum[t], where sum[t] adds the token's slots in
 * ascending order; a token whose gates sum to 0 keeps them. Backward: dgate, of the scaled gates, becomes that of the
 * gates before: (dgate[s] - sum over the token's slots of gate dgate) / sum[t]. Needs the record's index. */
typedef struct {
  ch_record *record;
  real *sum;   /* [n] out; in for backward */
  real *dgate; /* [slots] */
} ch_gate_args;

/* Row softmax. dx = y * (dy - <y, dy>). In place allowed. */
typedef struct {
  int64_t n;
  int m;         /* columns */
  const real *x; /* [n,m] */
  real *y;       /* [n,m] */
  const real *dy;
  real *dx;
} ch_softmax_args;

/* Top-k selection per expert: for expert i and every pool p (tokens pool_begin[p] .. pool_begin[p+1]-1), the
 * k[p] tokens of largest score[t*e+i]. Ties go to the lower token index; invalid tokens are never taken and k[p] is at
 * most the number of valid ones. NaN never compares larger than a number. Writes slot_token ascending within (expert,
 * pool) and expert_begin; slot_gate is left to the router. Selection in linear time, not a sort. */
typedef struct {
  int pools;
  const int *pool_begin; /* [pools+1] */
  const int *k;          /* [pools] */
  const uint8_t *valid;  /* [n] or NULL: all */
  const real *score;     /* [n,e] */
  ch_record *record;
  real *cutoff; /* [pools,e] or NULL: each expert's k-th best score of the pool; +infinity where k is 0 */
} ch_select_args;

/* The cheapest exchange: of the listed rows, which one loses least when it gives up column `from` for column j,
 *   cost[j] = min over r in row[] of score[r, from] - open[r, j]   (in double), carrier[j] = the first r that reaches
 * it; `open` is the score where a row may take the column and -infinity where it may not: then cost[j] is +infinity and
 * carrier[j] -1. Scores are finite. One thread. */
typedef struct {
  int rows, from;
  const int *row; /* [rows] */
  int64_t ld;     /* of score and open: columns, a multiple of 16 */
  const real *score, *open;
  double *cost; /* [ld] */
  int *carrier; /* [ld] */
} ch_exchange_args;

/* Entropic assignment of one pool by Dykstra's alternating projections in KL geometry, in the log domain:
 * A = exp(min(0, S - alpha - beta) / lambda), where each iteration sets
 *   beta[i]  so that expert i takes k,          then (S there being min(S, alpha + beta) of the last iteration)
 *   alpha[t] >= 0 so that no token has more than b,
 * and the entries' own correction, for A <= 1, is what min(0, .) cuts off. Ends after `iterations`, or when no beta
 * moved by more than tolerance * lambda. Tokens that are not valid take no part; their alpha is 0. */
typedef struct {
  int n, e, k, b;
  double lambda, tolerance;
  int iterations;
  const uint8_t *valid; /* [n] or NULL */
  const real *score;    /* [n,e] */
  real *alpha, *beta;   /* [n], [e] = */
  real *margin;         /* [n,e] = min(0, S - alpha - beta): lambda log A */
  double *load, *taken; /* [e] sum_t A and [n] sum_i A, = */
  int *done;            /* = iterations that ran */
} ch_dykstra_args;

/* Fills token_begin and token_slot from expert_begin and slot_token (a counting sort). */
typedef struct {
  ch_record *record;
} ch_index_args;

/* Exact GELU, y = x Phi(x), and GEGLU, y = gelu(g) * u. Backward may write over its inputs. At infinities: gelu(+inf)
 * is +inf, gelu(-inf) NaN (-inf * 0), and the slope NaN at both. */
typedef struct {
  int64_t count;
  const real *x; /* the pre-activation (GEGLU: the gate g) */
  const real *u; /* GEGLU only: [count] */
  real *y;
  const real *dy;
  real *dx; /* d/dx (GEGLU: d/dg) */
  real *du; /* GEGLU only */
  /* GELU only, where compute is bf16 (so never for the reference), or NULL: y and dx rounded, instead of y and dx. */
  ch_bf16 *y16, *dx16;
} ch_gelu_args;

/* RMSNorm: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps). */
typedef struct {
  int64_t n;
  int d;
  real eps;
  const real *x, *w; /* [n,d], [d] */
  real *y;           /* [n,d] */
  real *rstd;        /* [n] saved for backward */
  const real *dy;
  real *dx;   /* [n,d] */
  real *dw;   /* [d] += */
  int dx_acc; /* dx += instead of dx =: the residual stream's gradient already stands there */
} ch_rmsnorm_args;

/* Causal attention with a learned relative position bias. Position i sees j <= i:
 *   P[i,j] = softmax_j(scale * q_i.k_j + rel_bias[bucket(i-j), head]),  out_i = sum_j P[i,j] v_j.
 * q, k, v, out and their gradients are [B,T,H,dh] with row stride `ld` (0: H*dh) between positions. Works in row
 * blocks: no T x T matrix in main memory; backward recomputes P from lse. */
typedef struct {
  int B, T, H, dh;
  int64_t ld;
  real scale;
  const real *q, *k, *v;
  const real *rel_bias; /* [buckets,H] */
  int buckets, max_distance;
  real *out;
  real *lse; /* [B,H,T] log of the softmax's denominator, saved for backward */
  const real *dout;
  real *dq, *dk, *dv; /* = */
  real *drel_bias;    /* [buckets,H] += */
} ch_attention_args;

/* T5's unidirectional bucket of a distance i-j >= 0: exact below buckets/2, then logarithmic up to max_distance. */
int ch_attention_bucket(int distance, int buckets, int max_distance);

/* Attention of new positions against what caches hold, for inference: there is no backward. Sequence b's new positions
 * are rows begin[b] .. begin[b+1]-1 (none where these are equal); they follow the past[b] positions of its cache, to
 * which their keys and values are added first. The formula is that of ch_attention_args. A row's result does not depend
 * on the other rows, bit for bit. */
enum { CH_BIAS_PAD = 16 };
typedef struct {
  int B, H, dh;
  int positions;    /* positions of a cache; past[b] and the new ones are no more */
  int max_rows;     /* new positions of all sequences at most: what the plan counts with */
  const int *begin; /* [B+1] */
  const int *past;  /* [B] */
  real scale;
  const real *q, *k, *v; /* [rows,H*dh] */
  real *keys, *values;   /* [B,H,positions,dh] */
  const real *bias;      /* [H,positions + CH_BIAS_PAD] as ch_attention_bias makes it */
  real *out;             /* [rows,H*dh] */
} ch_attention_cached_args;

/* rel_bias [buckets,H] by head and descending distance, so that it runs with the keys: that of a distance stands at
 * bias[head * (positions + CH_BIAS_PAD) + positions - 1 - distance]. The padding, which wide loads read, becomes 0. */
void ch_attention_bias(const real *rel_bias, int H, int buckets, int max_distance, int positions, real *bias);

/* Embedding: x[t] = w[token[t]]; dw[token[t]] += dx[t], in ascending t. */
typedef struct {
  int64_t n;
  int d, V;
  const int32_t *token; /* [n] */
  const real *w;        /* [V,d] */
  real *x;              /* [n,d] */
  const real *dx;
  real *dw; /* [V,d] += */
} ch_embedding_args;

/* The tied head: logits = scale * x w^T; loss_sum = sum over targets >= 0 of -log softmax(logits)[target].
 * Chunks of rows, never all logits of the batch. When dx is set, forward also does the backward while the chunk's
 * logits are at hand: dx = d(weight * loss_sum)/dx and dw (= or +=) d(weight * loss_sum)/dw. */
typedef struct {
  int64_t n;
  int d, V;
  real scale;
  const real *x;         /* [n,d] */
  const real *w;         /* [V,d] */
  const ch_bf16 *w16;    /* w rounded to bf16, or NULL */
  const int32_t *target; /* [n], negative: not counted */
  double *loss_sum;      /* = */
  float *token_loss;     /* [n] or NULL: each target's loss, 0 where not counted */
  real *logits;          /* [n,V] or NULL: all logits, for who asks for them */
  real weight;           /* of the gradient, usually 1/targets */
  real *dx;              /* [n,d] = , or NULL */
  real *dw;              /* [V,d] */
  int accumulate;        /* dw += instead of dw = */
  /* n is even, and rows t and t + n/2 predict the same target, p and q, from two passes of a model that draws:
   * *consistency_sum = sum over pairs with a target of (KL(p|q) + KL(q|p)) / 2, part of the gradient with a weight of
   * its own. */
  int drawn_twice;
  double *consistency_sum;
  real consistency;
} ch_head_args;

/* y = x; without x: y = 0 */
typedef struct {
  int64_t count;
  const real *x; /* or NULL */
  real *y;
} ch_copy_args;

/* y (= or +=) m x / (1 - rate), m_i being 0 with probability `rate` and else 1: a function of (seed, place, draw, i)
 * alone, so the same op on gradients is its backward. y may be x where nothing accumulates. */
typedef struct {
  int64_t count;
  double rate; /* in steps of 2^-16 */
  uint64_t seed;
  uint32_t place; /* in the model */
  uint64_t draw;  /* below 2^32 */
  const real *x;
  real *y;
  int accumulate;
} ch_dropout_args;

/* *sum = the sum of squares, in double and in a fixed order; NaN and infinity come through. */
typedef struct {
  int64_t count;
  const real *x;
  double *sum;
} ch_sumsq_args;

/* Rounds to bf16, to nearest even. */
typedef struct {
  int64_t count;
  const real *x;
  ch_bf16 *y;
} ch_round_args;

/* Adafactor with beta1 = 0 (Shazeer & Stern 2018, algorithms 4 and 5, with parameter scaling): for a tensor of
 * `batch` matrices [rows, cols] (each expert's matrix is factored by itself),
 *   row = beta2 row + (1-beta2) mean_cols(g^2 + eps1);  col likewise over rows;  v = row col / mean(row)
 *   (vectors: batch = rows = 1, `col` holds v itself, unfactored, and `row` is NULL);
 *   u = g / sqrt(v); u /= max(1, rms(u)/clip); w -= rate * max(eps2, rms(w)) * u, rms over one matrix.
 * `grad_scale` multiplies g first (global clipping). Where factored, beta2 is bias-corrected by the caller: the
 * beta2 passed is the step's own, beta2_t = beta2 (1 - beta2^(t-1)) / (1 - beta2^t). */
typedef struct {
  int64_t batch, rows, cols;
  real *w;
  const real *g;
  real *row; /* [batch,rows] or NULL */
  real *col; /* [batch,cols] */
  double rate, beta2, eps1, eps2, clip, grad_scale;
  ch_bf16 *w16; /* or NULL: the new w rounded to bf16, in the same pass */
} ch_adafactor_args;

/* AdamW (Loshchilov & Hutter 2019), bias-corrected by `step` (from 1). */
typedef struct {
  int64_t count;
  real *w;
  const real *g;
  real *m, *v;
  int64_t step;
  double rate, beta1, beta2, eps, weight_decay, grad_scale;
  ch_bf16 *w16;
} ch_adamw_args;

typedef struct ch_ops {
  const char *name;
  void (*gemm)(ch_exec *x, const ch_gemm_args *a);
  void (*expert_gemm)(ch_exec *x, const ch_expert_gemm_args *a);
  void (*gather)(ch_exec *x, const ch_gather_args *a);
  void (*combine)(ch_exec *x, const ch_combine_args *a);
  void (*combine_backward)(ch_exec *x, const ch_combine_args *a);
  void (*normalize_gates)(ch_exec *x, const ch_gate_args *a);
  void (*normalize_gates_backward)(ch_exec *x, const ch_gate_args *a);
  void (*softmax)(ch_exec *x, const ch_softmax_args *a);
  void (*softmax_backward)(ch_exec *x, const ch_softmax_args *a);
  void (*select)(ch_exec *x, const ch_select_args *a);
  void (*exchange)(ch_exec *x, const ch_exchange_args *a);
  void (*dykstra)(ch_exec *x, const ch_dykstra_args *a);
  void (*index)(ch_exec *x, const ch_index_args *a);
  void (*gelu)(ch_exec *x, const ch_gelu_args *a);
  void (*gelu_backward)(ch_exec *x, const ch_gelu_args *a);
  void (*geglu)(ch_exec *x, const ch_gelu_args *a);
  void (*geglu_backward)(ch_exec *x, const ch_gelu_args *a);
  void (*rmsnorm)(ch_exec *x, const ch_rmsnorm_args *a);
  void (*rmsnorm_backward)(ch_exec *x, const ch_rmsnorm_args *a);
  void (*attention)(ch_exec *x, const ch_attention_args *a);
  void (*attention_backward)(ch_exec *x, const ch_attention_args *a);
  void (*attention_cached)(ch_exec *x, const ch_attention_cached_args *a); /* inference only */
  void (*embedding)(ch_exec *x, const ch_embedding_args *a);
  void (*embedding_backward)(ch_exec *x, const ch_embedding_args *a);
  void (*head)(ch_exec *x, const ch_head_args *a);
  void (*copy)(ch_exec *x, const ch_copy_args *a);
  void (*dropout)(ch_exec *x, const ch_dropout_args *a);
  void (*sumsq)(ch_exec *x, const ch_sumsq_args *a);
  void (*round_bf16)(ch_exec *x, const ch_round_args *a);
  void (*adafactor)(ch_exec *x, const ch_adafactor_args *a);
  void (*adamw)(ch_exec *x, const ch_adamw_args *a);
} ch_ops;

/* A backend: what fills the table. `supports` refuses by name what it cannot do (CHOIR_ERROR_UNSUPPORTED). */
typedef struct ch_backend {
  const char *name; /* "cpu", "reference" */
  int (*supports)(ch_compute compute, int emulate);
  void (*fill)(ch_ops *ops, ch_compute compute);
} ch_backend;

/* The registration list: NULL-terminated. */
extern const ch_backend *const ch_backends[];

/* The backend of that name, or NULL with a message that lists the known ones. */
const ch_backend *ch_backend_find(const char *name);

/* Makes ready to run ops of a backend: table filled, arenas counting. threads 0: all CPUs of this process. */
int ch_exec_init(ch_exec *x, const char *backend, ch_compute compute, int emulate_bf16, int threads);
int ch_exec_commit(ch_exec *x); /* after the counting run */
void ch_exec_free(ch_exec *x);

#endif
