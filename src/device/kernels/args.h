/* The arguments of each kernel, compiled for host and device with the same layout. A kernel that is a whole op uses the
 * op's struct; the build inserts the structs named here before this text (device_args.cl.h). Other kernels have structs
 * here, whose fields mean the same as in their op (op/op.h, op/routing.h) unless a comment says otherwise. */
#ifndef CH_DEVICE_KERNELS_ARGS_H
#define CH_DEVICE_KERNELS_ARGS_H

#define GROUP 128 /* items per group, except for `product` */
#define TILE 16   /* `product`: a group of TILE x TILE items computes TILE x TILE results */
#define AS_FLOAT 0
#define ROUNDED 1
#define AS_BF16 2
#define PIECE 4096      /* elements summed per group */
#define BLOCK 64        /* rows summed per item */
#define LANES 32        /* items per row of scores */
#define ROWS_SUMMED 32  /* rows of scores summed per item */
#define CLASSES 64      /* classes of vocabulary entries: id % CLASSES */
#define TILE_TOKENS 256 /* tokens per tile of scores or marks */
#define TILE_EXPERTS 32
#define TILE_SIZES 1024 /* sizes that one group prefix-sums */

/* ---- kernels that are an op ---- */
typedef ch_softmax_args softmax_args, softmax_backward_args;
typedef ch_rmsnorm_args rmsnorm_args;
typedef ch_sigmoid_args sigmoid_args, sigmoid_backward_args;
typedef ch_copy_args copy_args;
typedef ch_round_args round_bf16_args;
typedef ch_widen_args widen_bf16_args;
typedef ch_multiply_args multiply_args;
typedef ch_rope_args rope_args;
typedef ch_rope_table_args rope_table_args;
typedef ch_mean_cutoff_args mean_cutoff_args;
typedef ch_running_mean_args running_mean_args;
typedef ch_best_args best_args;
typedef ch_modulo_args modulo_args;
typedef ch_threshold_args threshold_args;
typedef ch_price_args price_args;
typedef ch_update_bias_args update_bias_args;

/* ---- rows.cl.h ---- */
typedef struct {
  const real CH_DEV *x, *w, *rstd, *dy;
  real CH_DEV *dx;
  int64_t n;
  int d, dx_acc;
} rmsnorm_dx_args;

/* partial [blocks,d] = */
typedef struct {
  const real CH_DEV *x, *rstd, *dy;
  double CH_DEV *partial;
  int64_t n;
  int d;
} rmsnorm_dw_args;

/* sum [d] += */
typedef struct {
  const double CH_DEV *partial;
  real CH_DEV *sum;
  int64_t blocks, d;
} add_blocks_args;

/* y16 replaces y, or is 0 */
typedef struct {
  const int CH_DEV *begin, *slot_token;
  const real CH_DEV *x;
  real CH_DEV *y;
  ch_bf16 CH_DEV *y16;
  int e, d;
} gather_args;

typedef struct {
  const int CH_DEV *token_begin, *token_slot;
  const real CH_DEV *slot_gate, *y;
  real CH_DEV *out;
  int n, d, gated, out_acc;
} combine_args;

typedef struct {
  const int CH_DEV *begin, *slot_token;
  const real CH_DEV *slot_gate, *y, *dout;
  real CH_DEV *dy, *dgate;
  int e, d, gated;
} combine_backward_args;

typedef struct {
  const int CH_DEV *token;
  const real CH_DEV *w;
  real CH_DEV *x;
  int64_t n;
  int d;
  real scale;
} embedding_args;

typedef struct {
  const int CH_DEV *token;
  const real CH_DEV *dx;
  real CH_DEV *dw;
  int64_t n;
  int d;
  real scale;
} embedding_backward_args;

/* ---- elements.cl.h ---- */

/* activate: u is 0 for GELU; silu: SiLU instead of GELU; x16, y16, dy16, dx16 replace x, y, dy, dx, or are 0. */
typedef struct {
  const int CH_DEV *rows;
  const real CH_DEV *x, *u;
  real CH_DEV *y;
  const ch_bf16 CH_DEV *x16;
  ch_bf16 CH_DEV *y16;
  int64_t count;
  int silu;
} activate_args;

typedef struct {
  const int CH_DEV *rows;
  const real CH_DEV *x, *u;
  real CH_DEV *y;
  const real CH_DEV *dy;
  real CH_DEV *dx, *du;
  const ch_bf16 CH_DEV *x16;
  ch_bf16 CH_DEV *y16;
  const ch_bf16 CH_DEV *dy16;
  ch_bf16 CH_DEV *dx16;
  int64_t count;
  int silu;
} activate_backward_args;

typedef struct {
  const real CH_DEV *x;
  real CH_DEV *y;
  int64_t count, first;
  uint64_t seed, draw;
  uint32_t stream, place, dropped;
  int accumulate;
  real scale;
} dropout_args;

typedef struct {
  real CH_DEV *factor;
  uint64_t seed, base;
  double unit, low;
  uint32_t stream, sub;
  int n, d;
} jitter_args;

/* partial [arrays,pieces] = */
typedef struct {
  const real CH_DEV *x;
  double CH_DEV *partial;
  int64_t arrays, count, pieces;
} sum_squares_args;

typedef struct {
  const double CH_DEV *partial;
  double CH_DEV *sum, *total;
  int64_t arrays, pieces, step;
} total_squares_args;

/* ---- product.cl.h ---- */

/* A batch of products C (= or +=) alpha op(A) op(B). With begin [batch+1] rows begin[i] .. begin[i+1]-1 belong to
 * product i: rows of A and C or, with ragged_k, rows of A and B, over which the product sums. The strides give the
 * distance between the matrices of successive products, and apply to every operand without `begin`. a_is, b_is:
 * AS_FLOAT, ROUNDED (to bf16 when read) or AS_BF16; c_is: AS_FLOAT or, without accumulate, AS_BF16. */
typedef struct {
  const void CH_DEV *a, *b;
  void CH_DEV *c;
  const int CH_DEV *begin;
  int64_t m, n, k, lda, ldb, ldc, a_stride, b_stride, c_stride;
  int trans_a, trans_b, accumulate, ragged_k, a_is, b_is, c_is;
  real alpha;
} product_args;

/* pad_rows: copies the experts' rows to [e][max,width], padded with 0 after each expert's last row; `is`: type of rows
 * as a_is, ROUNDED become bf16. unpad_rows: the inverse; `is` as c_is. */
typedef struct {
  const int CH_DEV *begin;
  const void CH_DEV *rows;
  void CH_DEV *padded;
  int64_t width;
  int e, max, is;
} pad_rows_args;

typedef struct {
  const int CH_DEV *begin;
  void CH_DEV *rows;
  const void CH_DEV *padded;
  int64_t width;
  int e, max, is, accumulate;
} unpad_rows_args;

/* ---- attention.cl.h ---- */

/* bucket: of every distance, 0 without a bias. length: [B] of sequences, or 0: all have T. A pair is a sequence and a
 * head, number b H + head; a block has `rows` rows from first_row on, of the pairs from first_pair on, and `columns`
 * keys; rows of scores are `pitch` apart. is: AS_FLOAT or AS_BF16, type of y, weight, dscore. */
typedef struct {
  const real CH_DEV *x;
  void CH_DEV *y;
  int64_t ld;
  int B, T, H, group, dh, is;
} split_heads_args;

typedef struct {
  const real CH_DEV *x;
  real CH_DEV *y;
  int64_t ld;
  int B, T, H, group, dh;
} merge_heads_args;

/* weight may be score, and dscore dweight, where they are floats */
typedef struct {
  const real CH_DEV *score, *rel_bias;
  const int CH_DEV *bucket, *length;
  void CH_DEV *weight;
  real CH_DEV *lse;
  int64_t first_pair, pairs, pitch;
  int first_row, rows, columns, T, H, bidirectional, is;
} attention_weights_args;

typedef struct {
  const real CH_DEV *score, *dweight, *rel_bias;
  const int CH_DEV *bucket, *length;
  const real CH_DEV *lse;
  void CH_DEV *weight, *dscore;
  int64_t first_pair, pairs, pitch;
  int first_row, rows, columns, T, H, bidirectional, is;
} attention_slopes_args;

typedef struct {
  const void CH_DEV *dscore;
  double CH_DEV *slope;
  int64_t first_pair, pairs, pitch;
  int first_row, rows, columns, T, H, bidirectional, is, segments, accumulate;
} attention_distances_args;

typedef struct {
  const double CH_DEV *slope;
  const int CH_DEV *bucket;
  real CH_DEV *drel_bias;
  int B, segments, distances, H;
} attention_dbias_args;

typedef struct {
  const int CH_DEV *begin, *past;
  const real CH_DEV *k, *v;
  real CH_DEV *keys, *values;
  int B, kv_heads, dh, positions;
} cache_append_args;

typedef struct {
  const int CH_DEV *begin, *past;
  const real CH_DEV *q, *keys, *values, *bias;
  real CH_DEV *out;
  int B, H, group, dh, positions, pad;
  real scale;
} attention_cached_args;

/* bucket [positions] */
typedef struct {
  const real CH_DEV *rel_bias;
  const int CH_DEV *bucket;
  real CH_DEV *bias;
  int H, positions, pad;
} attention_bias_args;

/* ---- head.cl.h ---- */

/* Gradients replace rows of logits or, if rounded is not 0, are written to rounded [rows,V]; loss [rows] =; row_weight
 * may be 0 */
typedef struct {
  const int CH_DEV *target;
  const real CH_DEV *row_weight;
  real CH_DEV *logits;
  ch_bf16 CH_DEV *rounded;
  double CH_DEV *loss;
  int V, gradient;
  real weight;
  int pad;
} head_rows_args;

typedef struct {
  const int CH_DEV *target;
  real CH_DEV *logits, *other;
  ch_bf16 CH_DEV *rounded, *other_rounded;
  double CH_DEV *loss, *other_loss, *disagreement;
  double consistency;
  int V, gradient;
  real weight;
  int pad;
} head_pairs_args;

/* *sum += */
typedef struct {
  const double CH_DEV *loss;
  const real CH_DEV *row_weight;
  double CH_DEV *sum, *total;
  real CH_DEV *token_loss;
  int64_t n;
} head_losses_args;

/* ---- optim.cl.h ---- */

/* measures [batch,rows,3]; scales [batch,2]: mean of row moments, learning rate of the update */
typedef struct {
  const double CH_DEV *finite;
  const real CH_DEV *g;
  real CH_DEV *col;
  int64_t batch, rows, cols;
  double beta2, eps1, grad_scale;
} adafactor_columns_args;

typedef struct {
  const double CH_DEV *finite;
  const real CH_DEV *w, *g, *col;
  real CH_DEV *measures;
  int64_t batch, rows, cols;
  double grad_scale;
} adafactor_rows_args;

typedef struct {
  const double CH_DEV *finite;
  const real CH_DEV *measures;
  real CH_DEV *row;
  double CH_DEV *scales;
  int64_t batch, rows, all_cols;
  double learning_rate, beta2, eps1, eps2, clip;
} adafactor_scales_args;

typedef struct {
  const double CH_DEV *finite;
  real CH_DEV *w;
  const real CH_DEV *g, *row, *col;
  const double CH_DEV *scales;
  ch_bf16 CH_DEV *w16;
  int64_t batch, rows, cols;
  double grad_scale;
} adafactor_apply_args;

typedef struct {
  const double CH_DEV *finite;
  real CH_DEV *w;
  const real CH_DEV *g;
  real CH_DEV *m, *v;
  ch_bf16 CH_DEV *w16;
  int64_t count;
  double learning_rate, beta1, beta2, eps, weight_decay, grad_scale, correct_m, correct_v;
} adamw_args;

/* ---- select.cl.h ---- */

/* keep [n,e]: marks, 0 or 1; pools as in op select, from first_pool on; key, left, surplus [pools,e]; count
 * [pools,256,e] */
typedef struct {
  const int CH_DEV *pool_begin;
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score;
  const uint32_t CH_DEV *key;
  int CH_DEV *count;
  int n, e, first_pool, stride, parts, shift;
} select_count_args;

typedef struct {
  const int CH_DEV *k, *count;
  uint32_t CH_DEV *key;
  int CH_DEV *left, *surplus;
  real CH_DEV *cutoff;
  int e, shift;
} select_digit_args;

typedef struct {
  const int CH_DEV *pool_begin;
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score;
  const uint32_t CH_DEV *key;
  const int CH_DEV *left;
  uint8_t CH_DEV *keep;
  int n, e, first_pool, stride, parts, pad;
} select_marks_args;

typedef struct {
  const int CH_DEV *pool_begin;
  const real CH_DEV *score;
  const uint32_t CH_DEV *key;
  const int CH_DEV *left, *surplus;
  uint8_t CH_DEV *keep;
  int n, e, first_pool, stride;
} select_ties_args;

typedef struct {
  const uint8_t CH_DEV *keep;
  int CH_DEV *size, *expert_begin, *slot_token;
  int n, e, parts, pad;
} list_marked_args;

typedef struct {
  const int CH_DEV *size;
  int CH_DEV *begin;
  int64_t count;
} prefix_args;

/* ---- routing.cl.h ---- */
typedef struct {
  const real CH_DEV *value;
  int CH_DEV *choice;
  uint64_t seed, base;
  uint32_t stream, sub;
  int n;
} sample_second_args;

/* dropped, held [e] */
typedef struct {
  const int CH_DEV *asked;
  const real CH_DEV *value;
  int CH_DEV *choice, *demand, *dropped, *held;
  int n, e, count, capacity;
} place_args;

typedef struct {
  const int CH_DEV *choice, *begin;
  int CH_DEV *slot_token;
  int n, e, count;
} list_chosen_args;

/* total, int64 = */
typedef struct {
  const int CH_DEV *counts;
  int64_t CH_DEV *total;
  int count;
} sum_counts_args;

/* dropped [e] */
typedef struct {
  const int CH_DEV *min_begin, *min_token, *max_begin, *max_token;
  const real CH_DEV *min_cutoff;
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score, *threshold;
  uint8_t CH_DEV *keep;
  int CH_DEV *demand, *dropped;
  int n, e;
} within_args;

typedef struct {
  const int CH_DEV *begin, *slot_token;
  real CH_DEV *slot_gate;
  const real CH_DEV *score, *value;
  int e, rule;
  real even;
} gate_args;

typedef struct {
  const int CH_DEV *begin, *slot_token;
  const real CH_DEV *slot_gate, *dgate;
  real CH_DEV *dscore;
  int e, sigmoid;
} gate_backward_args;

typedef struct {
  const int CH_DEV *choice;
  const real CH_DEV *value;
  real CH_DEV *dscore;
  int n, e;
} share_backward_args;

typedef struct {
  const int CH_DEV *token_begin, *token_slot;
  real CH_DEV *slot_gate, *sum;
  int n;
} normalize_gates_args;

typedef struct {
  const int CH_DEV *token_begin, *token_slot;
  const real CH_DEV *slot_gate, *sum;
  real CH_DEV *dgate;
  int n;
} normalize_backward_args;

/* share [groups,e+1], double; element [g,e]: number of valid tokens */
typedef struct {
  const uint8_t CH_DEV *valid;
  const int CH_DEV *choice;
  double CH_DEV *share;
  int n, e, count, counted, span;
} choice_shares_args;

typedef struct {
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score;
  const double CH_DEV *share;
  double CH_DEV *loss;
  int n, e, nulls, shares, span, groups;
} balance_args;

typedef struct {
  const uint8_t CH_DEV *valid;
  const real CH_DEV *score;
  const double CH_DEV *share;
  real CH_DEV *dscore;
  double scale;
  int n, e, nulls, shares, span;
} balance_backward_args;

typedef struct {
  const real CH_DEV *logit;
  real CH_DEV *lse;
  int n, e;
} z_loss_args;

typedef struct {
  const uint8_t CH_DEV *valid;
  const real CH_DEV *logit, *lse;
  real CH_DEV *dlogit;
  double scale;
  int n, e;
} z_loss_backward_args;

/* ---- record.cl.h ---- */
typedef struct {
  const int CH_DEV *begin;
  int CH_DEV *demand;
  int e;
} loads_args;

/* size [n] */
typedef struct {
  const int CH_DEV *begin, *slot_token;
  int CH_DEV *size;
  int n, e;
} index_count_args;

typedef struct {
  const int CH_DEV *begin;
  int CH_DEV *slot_token;
  const int CH_DEV *token_begin;
  int CH_DEV *token_slot;
  int n, e;
} index_fill_args;

typedef struct {
  const int CH_DEV *begin, *slot_token;
  int CH_DEV *size;
  int e, first, end;
} part_count_args;

typedef struct {
  const int CH_DEV *begin, *slot_token;
  const real CH_DEV *slot_gate;
  const int CH_DEV *part_begin;
  int CH_DEV *part_token;
  real CH_DEV *part_gate;
  int e, first;
} part_fill_args;

typedef struct {
  const int CH_DEV *begin;
  const real CH_DEV *slot_gate;
  const int CH_DEV *token_begin;
  const uint8_t CH_DEV *valid;
  const double CH_DEV *aux_loss;
  const int64_t CH_DEV *dropped;
  const int CH_DEV *demand;
  const real CH_DEV *lse;
  double CH_DEV *sums;
  int64_t CH_DEV *counts;
  int n, e;
} tally_args;

/* clang-format off */
#define KERNELS(row) \
  row(round_bf16) row(widen_bf16) \
  row(softmax) row(softmax_backward) row(rmsnorm) row(rmsnorm_dx) row(rmsnorm_dw) row(add_blocks) \
  row(gather) row(combine) row(combine_backward) row(embedding) row(embedding_backward) row(activate) \
  row(activate_backward) row(sigmoid) row(sigmoid_backward) row(copy) row(multiply) row(dropout) row(jitter) row(sum_squares) row(total_squares) \
  row(product) row(pad_rows) row(unpad_rows) row(split_heads) row(merge_heads) row(attention_weights) row(attention_slopes) \
  row(attention_distances) row(attention_dbias) \
  row(cache_append) row(attention_cached) row(attention_bias) row(rope) row(rope_table) row(head_rows) row(head_pairs) \
  row(head_losses) row(adafactor_columns) row(adafactor_rows) row(adafactor_scales) row(adafactor_apply) \
  row(adamw) row(select_count) row(select_digit) row(select_marks) row(select_ties) row(list_marked) row(prefix) row(mean_cutoff) \
  row(running_mean) row(best) row(modulo) row(sample_second) row(place) row(list_chosen) row(sum_counts) \
  row(threshold) row(within) row(gate) row(gate_backward) row(share_backward) row(normalize_gates) \
  row(normalize_backward) row(choice_shares) row(balance) row(balance_backward) row(z_loss) row(z_loss_backward) row(price) row(update_bias) \
  row(loads) row(index_count) row(index_fill) row(part_count) \
  row(part_fill) row(tally)

/* clang-format on */

#endif
