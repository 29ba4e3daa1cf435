/* The op contract: one table of stateless ops on raw pointers, in forward and backward pairs. This file has the ops of
 * the model and the table, op/attention.h those of attention, op/routing.h those of routing.
 *
 * Rules, without exception unless the name says so:
 *  - A pointer marked CH_DEV points to the backend's memory, other pointers to host memory. Host arrays
 *    determine shapes; an op has read them when it returns, although it may run asynchronously (base/memory.h).
 *  - Gradients of weights that are sums over rows accumulate (dw += ...). Gradients from products (gemm, CH_TN, head)
 *    accumulate if the field `accumulate` is set and are overwritten otherwise, so that callers need not clear them.
 *    Gradients of activations are set (dx = ...). A field whose name ends in _acc accumulates.
 *  - Arrays are row-major and contiguous unless an `ld` says otherwise; comments give shapes. The gradient of `x` is
 *    `dx`. Letters: n tokens, d model width, h hidden width, e experts, k tokens per expert, V vocabulary,
 *    T sequence length, B sequences, H heads.
 *  - An op cannot fail; shapes are checked when a model is planned. Inputs and outputs do not overlap unless stated.
 *  - Scratch is allocated from x->scratch and released before the op returns. In the counting run (ch_counting) an op
 *    allocates its scratch and returns before it accesses any array.
 *  - The result does not depend on x->threads, bit for bit: work is divided into blocks whose size depends on shapes
 *    only, and sums over blocks are added in a fixed order.
 *
 * A table is always complete: a backend with host memory may start from the reference (src/cpu/ref/, plain C, double or
 * float) and override ops with faster implementations. */
#ifndef CH_OP_OP_H
#define CH_OP_OP_H

#include <stddef.h>
#include <stdint.h>

#include "base/q8.h"
#include "op/attention.h"
#include "op/routing.h"

/* C[m,n] (= or +=) alpha * op(A)[m,k] op(B)[k,n]. With trans_a, A is stored [k,m]; with trans_b, B is stored [n,k].
 * Inputs are rounded to x->compute unless `exact` asks for full precision (router). */
typedef struct ch_gemm_args {
  int64_t m, n, k;
  int trans_a, trans_b;
  const real CH_DEV *a, *b;
  int64_t lda, ldb, ldc; /* 0: contiguous */
  real CH_DEV *c;
  real alpha;     /* 0 means 1, so that a designated initializer may omit it */
  int accumulate; /* C += instead of C = */
  int exact;
  const ch_bf16 CH_DEV *b16; /* B already rounded to bf16, same layout and ldb; or NULL */
  /* 8-bit B [n,k] instead of b, or NULL. A is rounded as described in cpu/simd/q8.h. Of the products of one call, all
   * or none have it. */
  const ch_q8 CH_DEV *b8;
  /* A second product (dual GEMM), or NULL; it must not read or write the first product's C. It runs on idle threads,
   * and an input of both products is rounded once. */
  const struct ch_gemm_args *second;
} ch_gemm_args;

/* Grouped product: one product per expert i, on its rows r_i = begin[i] .. begin[i+1]-1:
 *   CH_NN  C[r_i, n]  = A[r_i, k] W[i][k, n]         CH_NT  C[r_i, n] = A[r_i, k] W[i][n, k]^T
 *   CH_TN  W[i][k, n] (= or +=) A[r_i, k]^T C[r_i, n]   (the gradient of a weight; A and C are inputs)
 * For an expert without rows, CH_TN without `accumulate` sets W[i] = 0. */
typedef enum { CH_NN, CH_NT, CH_TN } ch_gemm_form;
enum {
  CH_WORTH_PADDING = 2
}; /* a device pads all experts to an equal number of rows if that at most doubles the rows */
typedef struct {
  ch_gemm_form form;
  int experts;
  const int CH_DEV *begin; /* [experts+1] */
  int max_rows;            /* max rows of A and C, for planning memory */
  int load;                /* rows per expert if all experts have the same number and the host knows it; else -1 */
  int max;                 /* upper bound of one expert's rows if the host knows one; else 0 */
  const int *host_begin;   /* [experts+1] host: `begin`, or NULL: not downloaded */
  int64_t n, k;
  const real CH_DEV *a;      /* [rows, k] */
  real CH_DEV *c;            /* [rows, n] */
  real CH_DEV *w;            /* [experts, k, n] or [experts, n, k]; written only by CH_TN */
  int accumulate;            /* W += instead of W =, or C += instead of C = (not with `activate`) */
  const ch_bf16 CH_DEV *w16; /* W already rounded to bf16, or NULL; never with CH_TN */
  const ch_q8 CH_DEV *w8;    /* [experts,n,k] in 8 bits instead of w, or NULL; never with CH_TN */
  /* With bf16 compute (never in the reference): A, and C of CH_TN, already rounded, instead of a and c. */
  const ch_bf16 CH_DEV *a16, *c16;
  /* CH_NN only, or NULL: applies an activation to C while C is in the cache.
   *   forward (dx and dx16 NULL): C is x, or u of a gated activation; the output is y or y16
   *   backward:                   C is dy; the outputs are those of activate_backward
   * c is the same pointer as x, u or dy; it is NULL if x16 or dx16 replaces x or dx. */
  const struct ch_activate_args *activate;
} ch_expert_gemm_args;

/* Dispatch: y[s] = x[slot_token[s]]. Its transpose is combine without gates. */
typedef struct {
  const ch_record *record;
  int d;
  const real CH_DEV *x; /* [n,d] */
  real CH_DEV *y;       /* [slots,d] */
  ch_bf16 CH_DEV *y16;  /* y rounded, instead of y, if the table has writes_bf16; or NULL */
} ch_gather_args;

/* Combine: out[t] = sum over the slots s of token t, in ascending order, of gate[s] * y[s]; 0 for a token without
 * slots. `gated` 0 takes every gate as 1 (the backward of gather). `out_acc` adds to what is in out. */
typedef struct {
  const ch_record *record;
  int d, gated, out_acc;
  const real CH_DEV *y; /* [slots,d] */
  real CH_DEV *out;     /* [n,d] */
  /* backward */
  const real CH_DEV *dout; /* [n,d] */
  real CH_DEV *dy;         /* [slots,d] gate[s] * dout[token of s]; may be the same array as y */
  real CH_DEV *dgate;      /* [slots] <dout[token of s], y[s]> */
} ch_combine_args;

/* Row softmax over m logits and `nulls` additional logits of 0, whose probabilities are not stored. dx = y * (dy - <y,
 * dy>). In place allowed. */
typedef struct {
  int64_t n;
  int m;                /* columns */
  int nulls;            /* forward */
  const real CH_DEV *x; /* [n,m] */
  real CH_DEV *y;       /* [n,m] */
  const real CH_DEV *dy;
  real CH_DEV *dx;
} ch_softmax_args;

/* y = 1 / (1 + exp(-x)), dx = dy y (1 - y). In place allowed. */
typedef struct {
  int64_t count;
  const real CH_DEV *x;
  real CH_DEV *y;
  const real CH_DEV *dy;
  real CH_DEV *dx;
} ch_sigmoid_args;

/* The activation between the products of a feed-forward layer: exact GELU, gelu(x) = x Phi(x); or gated, with gate g
 * and linear branch u: gelu(g) * u or silu(g) * u, silu(x) = x / (1 + exp(-x)). */
typedef enum { CH_GELU, CH_GEGLU, CH_SWIGLU } ch_activation;
static inline int ch_gated(ch_activation a) { return a != CH_GELU; }

/* y = gelu(x), or gated: gelu(x) * u, silu(x) * u. Outputs may be the same arrays as inputs. Backward also recomputes
 * y, unless it is NULL, because value and derivative share most of their arithmetic. At infinities: gelu and silu of
 * +inf are +inf, of -inf NaN (-inf * 0), and both derivatives are NaN. */
typedef struct ch_activate_args {
  ch_activation activation;
  int64_t count;
  const int CH_DEV *rows; /* or NULL; else there are *rows times `count` elements: filled slots of a record */
  const real CH_DEV *x;   /* the pre-activation; gated: the gate g */
  const real CH_DEV *u;   /* gated only: the linear branch; also du */
  real CH_DEV *y;
  const real CH_DEV *dy;
  real CH_DEV *dx;
  real CH_DEV *du;
  /* CH_GELU with bf16 compute only (never in the reference), or NULL: x, y and dx in bf16 instead of the arrays above;
   * on devices also dy. */
  ch_bf16 CH_DEV *x16, *y16, *dx16;
  const ch_bf16 CH_DEV *dy16;
} ch_activate_args;

/* RMSNorm: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps). */
typedef struct {
  int64_t n;
  int d;
  real eps;
  const real CH_DEV *x, *w; /* [n,d], [d] */
  real CH_DEV *y;           /* [n,d] */
  real CH_DEV *rstd;        /* [n] saved for backward */
  const real CH_DEV *dy;
  real CH_DEV *dx; /* [n,d] */
  real CH_DEV *dw; /* [d] += */
  int dx_acc;      /* dx += instead of dx =: dx contains the gradient of the residual stream */
} ch_rmsnorm_args;

/* Embedding: x[t] = scale * w[token[t]]; dw[token[t]] += scale * dx[t], in ascending t. */
typedef struct {
  int64_t n;
  int d, V;
  real scale;                  /* 0 means 1 */
  const int32_t CH_DEV *token; /* [n] */
  const real CH_DEV *w;        /* [V,d] */
  real CH_DEV *x;              /* [n,d] */
  const real CH_DEV *dx;
  real CH_DEV *dw; /* [V,d] += */
} ch_embedding_args;

/* The head (its weight may be the embedding): logits = scale * x w^T; loss_sum = sum over targets >= 0 of -log
 * softmax(logits)[target], each times its row's weight. Works in chunks of rows, so the logits of the whole batch are
 * never in memory. If dx is set, the backward of a chunk follows its forward directly: dx = d(weight * loss_sum)/dx and
 * dw (= or +=) d(weight * loss_sum)/dw. */
typedef struct {
  int64_t n;
  int d, V;
  real scale;
  const real CH_DEV *x;           /* [n,d] */
  const real CH_DEV *w;           /* [V,d] */
  const ch_bf16 CH_DEV *w16;      /* w rounded to bf16, or NULL */
  const ch_q8 CH_DEV *w8;         /* 8-bit weight instead of w, or NULL; never with dx */
  const int32_t CH_DEV *target;   /* [n], negative: not counted */
  double CH_DEV *loss_sum;        /* = */
  double CH_DEV *loss_total;      /* += the same, or NULL */
  const float CH_DEV *row_weight; /* [n], or NULL: all 1; NULL with `paired` */
  float CH_DEV *token_loss;       /* [n] or NULL: each target's loss without its weight, 0 without a target */
  real CH_DEV *logits;            /* [n,V] all logits, or NULL */
  real weight;                    /* factor of the gradient, usually 1/targets */
  real CH_DEV *dx;                /* [n,d] = , or NULL */
  real CH_DEV *dw;                /* [V,d] */
  int accumulate;                 /* dw += instead of dw = */
  /* Rows t and t + n/2 (n even) are two predictions p and q of the same target by a model with random routing:
   * *consistency_sum = sum over pairs with a target of (KL(p|q) + KL(q|p)) / 2, which also contributes to the gradient,
   * times consistency_weight. */
  int paired;
  double CH_DEV *consistency_sum;
  real consistency;
} ch_head_args;

/* y (= or +=) x; without x: y = 0 */
typedef struct {
  int64_t count;
  const real CH_DEV *x; /* or NULL */
  real CH_DEV *y;
  int accumulate; /* y += x instead of y = x; only with x */
} ch_copy_args;

/* y (= or +=) m x / (1 - rate), where m_i is 0 with probability `rate`, else 1, and depends only on (seed, place, draw,
 * i), so the same op on gradients is its backward. y may be x unless it accumulates. */
typedef struct {
  int64_t count;
  int64_t first; /* i of x[0] */
  double rate;   /* multiple of 2^-16 */
  uint64_t seed;
  uint32_t place; /* index of the dropout in the model */
  uint64_t draw;  /* below 2^32 */
  const real CH_DEV *x;
  real CH_DEV *y;
  int accumulate;
} ch_dropout_args;

/* y (= or +=) a * b, by elements. */
typedef struct {
  int64_t count;
  const real CH_DEV *a, *b;
  real CH_DEV *y;
  int accumulate;
} ch_multiply_args;

/* sum[i * step] = the sum of squares of x[i, count], in double and in a fixed order; NaN and infinity propagate. */
typedef struct {
  int64_t arrays, count;
  const real CH_DEV *x; /* [arrays,count] */
  double CH_DEV *sum;
  int64_t step;
  double CH_DEV *total; /* += the sums, or NULL */
} ch_sumsq_args;

/* Rounds to bf16, to nearest even. */
typedef struct {
  int64_t count;
  const int CH_DEV *rows; /* or NULL; else there are *rows times `count` elements */
  const real CH_DEV *x;
  ch_bf16 CH_DEV *y;
} ch_round_args;

/* Converts bf16 to real. */
typedef struct {
  int64_t count;
  const int CH_DEV *rows; /* or NULL; else there are *rows times `count` elements */
  const ch_bf16 CH_DEV *x;
  real CH_DEV *y;
  int accumulate; /* y += them */
} ch_widen_args;

/* Adafactor with beta1 = 0 (Shazeer & Stern 2018, algorithms 4 and 5, with parameter scaling): for a tensor of `batch`
 * matrices [rows, cols] (each expert's matrix is factored separately),
 *   row = beta2 row + (1-beta2) mean_cols(g^2 + eps1);  col likewise over rows;  v = row col / mean(row)
 *   (vectors: batch = rows = 1, `col` is v, unfactored, and `row` is NULL);
 *   u = g / sqrt(v); u /= max(1, rms(u)/clip); w -= learning_rate * max(eps2, rms(w)) * u, rms over one matrix.
 * `grad_scale` multiplies g first (global clipping). If factored, the caller bias-corrects beta2: the argument beta2 is
 * beta2_t = beta2 (1 - beta2^(t-1)) / (1 - beta2^t).
 *
 * Matrices may be sharded by columns: each rank has the columns' part of w, g and col, and all of row. An update then
 * is two calls on every rank. MEASURE updates col and sets `measures`; the caller sums `measures` over the ranks; APPLY
 * reads the sums and updates w and row, which stays equal on all ranks. */
typedef enum { CH_ADAFACTOR_WHOLE, CH_ADAFACTOR_MEASURE, CH_ADAFACTOR_APPLY } ch_adafactor_stage;
/* Sums over a row: of g^2, of w^2, and of g^2 / col, which is proportional to u^2 within a row. */
enum { CH_MEASURE_G, CH_MEASURE_W, CH_MEASURE_U, CH_MEASURES };
typedef struct {
  ch_adafactor_stage stage;
  int64_t batch, rows, cols;
  int64_t all_cols;      /* columns of all ranks; 0: cols */
  real CH_DEV *measures; /* [batch,rows,CH_MEASURES], MEASURE and APPLY only */
  real CH_DEV *w;
  const real CH_DEV *g;
  real CH_DEV *row; /* [batch,rows] or NULL */
  real CH_DEV *col; /* [batch,cols] */
  double learning_rate, beta2, eps1, eps2, clip, grad_scale;
  const double CH_DEV *finite; /* or NULL; if this number is not finite, no stage changes anything */
  ch_bf16 CH_DEV *w16;         /* out, or NULL: the new w rounded to bf16 */
} ch_adafactor_args;

/* AdamW (Loshchilov & Hutter 2019), bias-corrected by `step` (from 1). */
typedef struct {
  int64_t count;
  real CH_DEV *w;
  const real CH_DEV *g;
  real CH_DEV *m, *v;
  int64_t step;
  double learning_rate, beta1, beta2, eps, weight_decay, grad_scale;
  const double CH_DEV *finite; /* or NULL; if this number is not finite, nothing is changed */
  ch_bf16 CH_DEV *w16;
} ch_adamw_args;

/* The table of ops, one row per op: name, type of arguments, inputs -> outputs. "slots" are expert_begin and slot_token
 * of the record. A device backend need not have CH_HOST_OPS, which run on the host. */
/* clang-format off */
/* Elementwise ops: on `count` elements, or on `count` elements of each of *rows rows. Devices launch one kernel with
 * the op's name. */
#define CH_ELEMENT_OPS(op)                                                                                         \
  op(sigmoid, ch_sigmoid_args)                    /* x -> y */                                                     \
  op(sigmoid_backward, ch_sigmoid_args)           /* y, dy -> dx */                                                \
  op(copy, ch_copy_args)                          /* x -> y */                                                     \
  op(multiply, ch_multiply_args)                  /* a, b -> y */
#define CH_ROW_ELEMENT_OPS(op)                                                                                     \
  op(round_bf16, ch_round_args)                   /* x -> y */                                                     \
  op(widen_bf16, ch_widen_args)                   /* x -> y */
#define CH_DEVICE_OPS(op)                                                                                          \
  CH_ELEMENT_OPS(op) CH_ROW_ELEMENT_OPS(op)                                                                        \
  op(gemm, ch_gemm_args)                          /* a, b -> c */                                                  \
  op(expert_gemm, ch_expert_gemm_args)            /* expert_begin, a, w -> c, or CH_TN: a, c -> w */               \
  op(gather, ch_gather_args)                      /* record, x -> y */                                             \
  op(combine, ch_combine_args)                    /* record, y -> out */                                           \
  op(combine_backward, ch_combine_args)           /* record, y, dout -> dy, dgate */                               \
  op(softmax, ch_softmax_args)                    /* x -> y */                                                     \
  op(softmax_backward, ch_softmax_args)           /* y, dy -> dx */                                                \
  op(activate, ch_activate_args)                  /* x, u -> y */                                                  \
  op(activate_backward, ch_activate_args)         /* x, u, dy -> dx, du, y */                                      \
  op(rmsnorm, ch_rmsnorm_args)                    /* x, w -> y, rstd */                                            \
  op(rmsnorm_backward, ch_rmsnorm_args)           /* x, w, rstd, dy -> dx, dw */                                   \
  op(attention, ch_attention_args)                /* q, k, v, rel_bias -> out, lse */                              \
  op(attention_backward, ch_attention_args)       /* q, k, v, rel_bias, out, lse, dout -> dq, dk, dv, drel_bias */ \
  op(attention_cached, ch_attention_cached_args)  /* q, k, v, bias, caches -> out, caches */                       \
  op(attention_bias, ch_attention_bias_args)      /* rel_bias -> bias */                                           \
  op(rope, ch_rope_args)                          /* x, rope_table -> x */                                         \
  op(rope_table, ch_rope_table_args)              /* theta -> rope_table */                                        \
  op(embedding, ch_embedding_args)                /* token, w -> x */                                              \
  op(embedding_backward, ch_embedding_args)       /* token, dx -> dw */                                            \
  op(head, ch_head_args)                          /* x, w, target -> losses, logits, dx, dw */                     \
  op(dropout, ch_dropout_args)                    /* x -> y */                                                     \
  op(sumsq, ch_sumsq_args)                        /* x -> sum, total */                                            \
  op(adafactor, ch_adafactor_args)                /* w, g, row, col -> w, row, col, w16 */                         \
  op(adamw, ch_adamw_args)                        /* w, g, m, v -> w, m, v, w16 */                                 \
  op(jitter, ch_jitter_args)                      /* random numbers -> factor */                                   \
  op(select, ch_select_args)                      /* valid, score -> slots, cutoff */                              \
  op(mean_cutoff, ch_mean_cutoff_args)            /* cutoff -> mean */                                             \
  op(running_mean, ch_running_mean_args)          /* value, mean -> mean */                                        \
  op(best, ch_best_args)                          /* valid, score, shift -> choice, value, margin */               \
  op(modulo, ch_modulo_args)                      /* valid, id -> choice */                                        \
  op(sample_second, ch_sample_second_args)        /* value, choice, random numbers -> choice */                    \
  op(place, ch_place_args)                        /* choice, value -> slots, choice, demand, dropped */            \
  op(threshold, ch_threshold_args)                /* valid, score, threshold -> keep */                            \
  op(collect, ch_collect_args)                    /* keep -> slots */                                              \
  op(within, ch_within_args)                      /* least, most, score, threshold -> slots, demand, dropped */    \
  op(gate, ch_gate_args)                          /* slots, score, value -> slot_gate */                           \
  op(gate_backward, ch_gate_args)                 /* record, score, choice, value, dgate -> dscore */              \
  op(normalize_gates, ch_normalize_args)          /* record -> slot_gate, sum */                                   \
  op(normalize_gates_backward, ch_normalize_args) /* record, sum, dgate -> dgate */                                \
  op(balance, ch_balance_args)                    /* valid, choice, score -> loss */                               \
  op(balance_backward, ch_balance_args)           /* valid, choice, score -> dscore_acc */                         \
  op(z_loss, ch_z_loss_args)                      /* logit -> lse */                                               \
  op(z_loss_backward, ch_z_loss_args)             /* valid, logit, lse -> dlogit_acc */                            \
  op(price, ch_price_args)                        /* beta, next -> beta */                                         \
  op(update_bias, ch_update_bias_args)            /* demand, price -> price */                                     \
  op(loads, ch_loads_args)                        /* record -> demand */                                           \
  op(index, ch_index_args)                        /* slots -> token_begin, token_slot */                           \
  op(part, ch_part_args)                          /* all -> part, without the index of part */                     \
  op(tally, ch_tally_args)                        /* record, valid, losses, dropped, demand -> sums, counts */
#define CH_HOST_OPS(op)                                                                                            \
  op(exchange, ch_exchange_args)                  /* row, score, open -> cost, carrier */
#define CH_OPS(op) CH_DEVICE_OPS(op) CH_HOST_OPS(op)
/* clang-format on */

/* The type of an op's arguments, by the op's name; and a call of an op with initializers of its arguments. */
#define CH_OP_ARGS(name, args) typedef args ch_args_of_##name;
CH_OPS(CH_OP_ARGS)
#undef CH_OP_ARGS
#define CH_OP(x, op, ...) (x)->ops->op((x), &(ch_args_of_##op){__VA_ARGS__})

typedef struct ch_ops {
  const char *name; /* name of the backend */
  int writes_bf16;  /* 1: gather can write bf16 (y16); device memory only */
#define CH_OP_FIELD(name, args) void (*name)(ch_exec * x, const args *a);
  CH_OPS(CH_OP_FIELD)
#undef CH_OP_FIELD
} ch_ops;

#endif
