/* The arguments of each kernel: read by the host's compiler and by the device's. Pointers first, then what has eight
 * bytes, then what has four: no padding, the same layout everywhere. Fields are those of the op (op/op.h,
 * op/routing.h) unless a comment says otherwise. */

/* A line a kernel. */
/* clang-format off */

/* A row a kernel. */
#define KERNELS(row) \
  row(round_bf16) row(widen_bf16) \
  row(softmax) row(softmax_backward) row(rmsnorm) row(rmsnorm_dx) row(rmsnorm_dw) row(add_blocks) \
  row(gather) row(combine) row(combine_backward) row(embedding) row(embedding_backward) row(activate) \
  row(activate_backward) row(sigmoid) row(sigmoid_backward) row(copy) row(multiply) row(dropout) row(jitter) row(sum_squares) row(total_squares) \
  row(product) row(pad_rows) row(unpad_rows) row(attention) row(attention_dq) row(attention_dkv) row(attention_slope) row(attention_dbias) \
  row(cache_append) row(attention_cached) row(attention_bias) row(rope) row(rope_table) row(head_rows) row(head_pairs) \
  row(head_losses) row(adafactor_columns) row(adafactor_rows) row(adafactor_scales) row(adafactor_apply) \
  row(adamw) row(select_marks) row(count_marked) row(list_marked) row(prefix) row(mean_cutoff) \
  row(running_mean) row(best) row(draw) row(sample_second) row(place) row(list_chosen) row(sum_counts) \
  row(follow) row(threshold) row(within) row(gate) row(gate_backward) row(share_backward) row(normalize_gates) \
  row(normalize_backward) row(choice_shares) row(balance) row(balance_backward) row(price) row(nudge) row(half_squares) \
  row(kmeans_reseed) row(kmeans_move) row(loads) row(index_count) row(index_fill) row(part_count) \
  row(part_fill) row(tally)

#define GROUP 128  /* items of a group, but of `product` */
#define TILE 16    /* of `product`: a group of TILE x TILE items computes as many results */
#define AS_FLOAT 0
#define ROUNDED 1
#define AS_BF16 2
#define PIECE 4096 /* elements that one group sums up */
#define BLOCK 64   /* rows that one item sums up */
#define CLASSES 64 /* of words of the vocabulary, by their number */

/* ---- rows.cl.h ---- */
#define softmax_ptrs(p) p(x) p(y)
typedef struct { softmax_ptrs(FIELD) I64 n; I32 m; } softmax_args;
#define softmax_backward_ptrs(p) p(y) p(dy) p(dx)
typedef struct { softmax_backward_ptrs(FIELD) I64 n; I32 m; } softmax_backward_args;
#define rmsnorm_ptrs(p) p(x) p(w) p(y) p(rstd)
typedef struct { rmsnorm_ptrs(FIELD) I64 n; I32 d; F32 eps; } rmsnorm_args;
#define rmsnorm_dx_ptrs(p) p(x) p(w) p(rstd) p(dy) p(dx)
typedef struct { rmsnorm_dx_ptrs(FIELD) I64 n; I32 d, dx_acc; } rmsnorm_dx_args;
#define rmsnorm_dw_ptrs(p) p(x) p(rstd) p(dy) p(partial)
typedef struct { rmsnorm_dw_ptrs(FIELD) I64 n; I32 d; } rmsnorm_dw_args; /* partial [blocks,d] = */
#define add_blocks_ptrs(p) p(partial) p(sum)
typedef struct { add_blocks_ptrs(FIELD) I64 blocks, d; } add_blocks_args;        /* sum [d] += */
#define gather_ptrs(p) p(begin) p(slot_token) p(x) p(y)
typedef struct { gather_ptrs(FIELD) I32 e, d; } gather_args;
#define combine_ptrs(p) p(token_begin) p(token_slot) p(slot_gate) p(y) p(out)
typedef struct { combine_ptrs(FIELD) I32 n, d, gated, out_acc; } combine_args;
#define combine_backward_ptrs(p) p(begin) p(slot_token) p(slot_gate) p(y) p(dout) p(dy) p(dgate)
typedef struct { combine_backward_ptrs(FIELD) I32 e, d, gated; } combine_backward_args;
#define embedding_ptrs(p) p(token) p(w) p(x)
typedef struct { embedding_ptrs(FIELD) I64 n; I32 d; F32 scale; } embedding_args;
#define embedding_backward_ptrs(p) p(token) p(dx) p(dw)
typedef struct { embedding_backward_ptrs(FIELD) I64 n; I32 d; F32 scale; } embedding_backward_args;

/* ---- elements.cl.h; u is 0 for GELU; silu: in place of gelu; x16, y16, dx16 stand for x, y, dx, or are 0. Where activate has both x and x16, x16
 * becomes x rounded. ---- */
#define activate_ptrs(p) p(rows) p(x) p(u) p(y) p(x16) p(y16)
typedef struct { activate_ptrs(FIELD) I64 count; I32 silu; } activate_args;
#define activate_backward_ptrs(p) p(rows) p(x) p(u) p(y) p(dy) p(dx) p(du) p(x16) p(y16) p(dx16)
typedef struct { activate_backward_ptrs(FIELD) I64 count; I32 silu; } activate_backward_args;
#define sigmoid_ptrs(p) p(x) p(y)
typedef struct { sigmoid_ptrs(FIELD) I64 count; } sigmoid_args;
#define sigmoid_backward_ptrs(p) p(y) p(dy) p(dx)
typedef struct { sigmoid_backward_ptrs(FIELD) I64 count; } sigmoid_backward_args;
#define copy_ptrs(p) p(x) p(y)
typedef struct { copy_ptrs(FIELD) I64 count; I32 accumulate; } copy_args;
#define round_bf16_ptrs(p) p(rows) p(x) p(y)
typedef struct { round_bf16_ptrs(FIELD) I64 count; } round_bf16_args;
#define widen_bf16_ptrs(p) p(rows) p(x) p(y)
typedef struct { widen_bf16_ptrs(FIELD) I64 count; I32 accumulate; } widen_bf16_args;
#define multiply_ptrs(p) p(a) p(b) p(y)
typedef struct { multiply_ptrs(FIELD) I64 count; I32 accumulate; } multiply_args;
#define dropout_ptrs(p) p(x) p(y)
typedef struct { dropout_ptrs(FIELD) I64 count, first; U64 seed, draw; U32 stream, place, dropped; I32 accumulate; F32 scale; } dropout_args;
#define jitter_ptrs(p) p(factor)
typedef struct { jitter_ptrs(FIELD) U64 seed, base; F64 unit, low; U32 stream, sub; I32 n, d; } jitter_args;
#define sum_squares_ptrs(p) p(x) p(partial)
typedef struct { sum_squares_ptrs(FIELD) I64 arrays, count, pieces; } sum_squares_args; /* partial [arrays,pieces] = */
#define total_squares_ptrs(p) p(partial) p(sum) p(total)
typedef struct { total_squares_ptrs(FIELD) I64 arrays, pieces, step; } total_squares_args;

/* ---- product.cl.h: a batch of products C (= or +=) alpha op(A) op(B). With begin [batch+1] rows begin[i] ..
 * begin[i+1]-1 belong to product i: rows of A and C, or, where ragged_k, of A and B, over which it sums. Else strides
 * say where product i's matrices stand; where they are ragged, those of the third one. a_is, b_is: AS_FLOAT, ROUNDED (to
 * bf16 as they are read) or AS_BF16. ---- */
#define product_ptrs(p) p(a) p(b) p(c) p(begin)
typedef struct { product_ptrs(FIELD) I64 m, n, k, lda, ldb, ldc, a_stride, b_stride, c_stride;
  I32 trans_a, trans_b, accumulate, ragged_k, a_is, b_is;
  F32 alpha; } product_args;

/* Rows [e][most,width] at equal distances, of rows that belong to experts by number; 0 behind the last one of each.
 * `is` as a_is, of rows; ROUNDED become bf16. And the way back. */
#define pad_rows_ptrs(p) p(begin) p(rows) p(padded)
typedef struct { pad_rows_ptrs(FIELD) I64 width; I32 e, most, is; } pad_rows_args;
#define unpad_rows_ptrs(p) p(begin) p(rows) p(padded)
typedef struct { unpad_rows_ptrs(FIELD) I64 width; I32 e, most, accumulate; } unpad_rows_args;

/* ---- attention.cl.h; bucket [T] of every distance, 0 without a bias; `group` heads share keys and values ---- */
#define ATTENTION_SHAPE I64 ld, kv_ld; I32 T, H, group, dh; F32 scale
#define attention_ptrs(p) p(q) p(k) p(v) p(rel_bias) p(bucket) p(out) p(lse)
typedef struct { attention_ptrs(FIELD) ATTENTION_SHAPE; } attention_args;
#define attention_dq_ptrs(p) p(q) p(k) p(v) p(rel_bias) p(bucket) p(lse) p(dout) p(dq) p(delta)
typedef struct { attention_dq_ptrs(FIELD) ATTENTION_SHAPE; } attention_dq_args; /* delta [B,H,T] = */
#define attention_dkv_ptrs(p) p(q) p(k) p(v) p(rel_bias) p(bucket) p(lse) p(dout) p(delta) p(dk) p(dv)
typedef struct { attention_dkv_ptrs(FIELD) ATTENTION_SHAPE; } attention_dkv_args;
#define attention_slope_ptrs(p) p(q) p(k) p(v) p(rel_bias) p(bucket) p(lse) p(dout) p(delta) p(slope)
typedef struct { attention_slope_ptrs(FIELD) ATTENTION_SHAPE; } attention_slope_args; /* [B,H,T] = */
#define attention_dbias_ptrs(p) p(slope) p(bucket) p(drel_bias)
typedef struct { attention_dbias_ptrs(FIELD) I32 B, T, H, buckets; } attention_dbias_args;
#define cache_append_ptrs(p) p(begin) p(past) p(k) p(v) p(keys) p(values)
typedef struct { cache_append_ptrs(FIELD) I32 B, kv_heads, dh, positions; } cache_append_args;
#define attention_cached_ptrs(p) p(begin) p(past) p(q) p(keys) p(values) p(bias) p(out)
typedef struct { attention_cached_ptrs(FIELD) I32 B, H, group, dh, positions, pad; F32 scale; } attention_cached_args;
#define attention_bias_ptrs(p) p(rel_bias) p(bucket) p(bias)
typedef struct { attention_bias_ptrs(FIELD) I32 H, positions, pad; } attention_bias_args; /* bucket [positions] */
#define rope_ptrs(p) p(position) p(turn) p(x)
typedef struct { rope_ptrs(FIELD) I64 n; I32 heads, dh, rotated, back, T; } rope_args;
#define rope_table_ptrs(p) p(turn)
typedef struct { rope_table_ptrs(FIELD) F64 theta; I32 positions, rotated; } rope_table_args;

/* ---- head.cl.h: rows of logits turn into gradients; loss [rows] = ---- */
#define head_rows_ptrs(p) p(target) p(logits) p(loss)
typedef struct { head_rows_ptrs(FIELD) I32 V; F32 weight; } head_rows_args;
#define head_pairs_ptrs(p) p(target) p(logits) p(other) p(delta) p(loss) p(other_loss) p(disagreement)
typedef struct { head_pairs_ptrs(FIELD) F64 consistency; I32 V; F32 weight; } head_pairs_args;
#define head_losses_ptrs(p) p(loss) p(sum) p(total) p(token_loss)
typedef struct { head_losses_ptrs(FIELD) I64 n; } head_losses_args; /* *sum += */

/* ---- optim.cl.h; measures [batch,rows,3], scales [batch,2]: the mean of row moments, the rate of the update ---- */
#define adafactor_columns_ptrs(p) p(finite) p(g) p(col)
typedef struct { adafactor_columns_ptrs(FIELD) I64 batch, rows, cols; F64 beta2, eps1, grad_scale; } adafactor_columns_args;
#define adafactor_rows_ptrs(p) p(finite) p(w) p(g) p(col) p(measures)
typedef struct { adafactor_rows_ptrs(FIELD) I64 batch, rows, cols; F64 grad_scale; } adafactor_rows_args;
#define adafactor_scales_ptrs(p) p(finite) p(measures) p(row) p(scales)
typedef struct { adafactor_scales_ptrs(FIELD) I64 batch, rows, all_cols; F64 rate, beta2, eps1, eps2, clip; } adafactor_scales_args;
#define adafactor_apply_ptrs(p) p(finite) p(w) p(g) p(row) p(col) p(scales) p(w16)
typedef struct { adafactor_apply_ptrs(FIELD) I64 batch, rows, cols; F64 grad_scale; } adafactor_apply_args;
#define adamw_ptrs(p) p(finite) p(w) p(g) p(m) p(v) p(w16)
typedef struct { adamw_ptrs(FIELD) I64 count; F64 rate, beta1, beta2, eps, weight_decay, grad_scale, correct_m, correct_v; } adamw_args;

/* ---- routing.cl.h; keep [n,e] marks, 0 or 1; pools as in op select ---- */
#define select_marks_ptrs(p) p(pool_begin) p(k) p(valid) p(score) p(keep) p(cutoff)
typedef struct { select_marks_ptrs(FIELD) I32 n, e, pools, stride; } select_marks_args;
#define count_marked_ptrs(p) p(keep) p(begin)
typedef struct { count_marked_ptrs(FIELD) I32 n, e; } count_marked_args; /* begin [e+1]: [i + 1] = marks of expert i */
#define list_marked_ptrs(p) p(keep) p(begin) p(slot_token)
typedef struct { list_marked_ptrs(FIELD) I32 n, e; } list_marked_args;
#define prefix_ptrs(p) p(begin)
typedef struct { prefix_ptrs(FIELD) I32 count; } prefix_args; /* begin [count+1]: counts at 1.. become ends; [0] = 0 */
#define mean_cutoff_ptrs(p) p(cutoff) p(mean)
typedef struct { mean_cutoff_ptrs(FIELD) I32 pools, e; } mean_cutoff_args;
#define running_mean_ptrs(p) p(value) p(mean)
typedef struct { running_mean_ptrs(FIELD) F64 weight; I32 count, fresh; } running_mean_args;
#define best_ptrs(p) p(valid) p(score) p(shift) p(choice) p(value) p(margin)
typedef struct { best_ptrs(FIELD) I32 n, e, count; } best_args;
#define draw_ptrs(p) p(valid) p(id) p(choice)
typedef struct { draw_ptrs(FIELD) U64 seed, base; U32 stream, sub; I32 n, e, count, rule; } draw_args;
#define sample_second_ptrs(p) p(value) p(choice)
typedef struct { sample_second_ptrs(FIELD) U64 seed, base; U32 stream, sub; I32 n; } sample_second_args;
#define place_ptrs(p) p(asked) p(choice) p(demand) p(dropped) p(begin)
typedef struct { place_ptrs(FIELD) I32 n, e, count, capacity; } place_args; /* dropped [e]; begin as count_marked's */
#define list_chosen_ptrs(p) p(choice) p(begin) p(slot_token)
typedef struct { list_chosen_ptrs(FIELD) I32 n, e, count; } list_chosen_args;
#define sum_counts_ptrs(p) p(counts) p(total)
typedef struct { sum_counts_ptrs(FIELD) I32 count; } sum_counts_args; /* total, int64 = */
#define threshold_ptrs(p) p(valid) p(score) p(threshold) p(keep)
typedef struct { threshold_ptrs(FIELD) I32 n, e, cap, step; } threshold_args;
#define follow_ptrs(p) p(begin) p(past) p(valid) p(score) p(threshold) p(history) p(cutoff)
typedef struct { follow_ptrs(FIELD) I32 e, sequences, positions; F32 more, less; } follow_args;
#define within_ptrs(p) p(least_begin) p(least_token) p(most_begin) p(most_token) p(least_cutoff) p(valid) p(score) p(threshold) p(keep) p(demand) p(dropped)
typedef struct { within_ptrs(FIELD) I32 n, e; } within_args; /* dropped [e] */
#define gate_ptrs(p) p(begin) p(slot_token) p(slot_gate) p(score) p(value)
typedef struct { gate_ptrs(FIELD) I32 e, rule; F32 even; } gate_args;
#define gate_backward_ptrs(p) p(begin) p(slot_token) p(slot_gate) p(dgate) p(dscore)
typedef struct { gate_backward_ptrs(FIELD) I32 e, sigmoid; } gate_backward_args;
#define share_backward_ptrs(p) p(choice) p(value) p(dscore)
typedef struct { share_backward_ptrs(FIELD) I32 n, e; } share_backward_args;
#define normalize_gates_ptrs(p) p(token_begin) p(token_slot) p(slot_gate) p(sum)
typedef struct { normalize_gates_ptrs(FIELD) I32 n; } normalize_gates_args;
#define normalize_backward_ptrs(p) p(token_begin) p(token_slot) p(slot_gate) p(sum) p(dgate)
typedef struct { normalize_backward_ptrs(FIELD) I32 n; } normalize_backward_args;
#define choice_shares_ptrs(p) p(valid) p(choice) p(share)
typedef struct { choice_shares_ptrs(FIELD) I32 n, e, count; } choice_shares_args; /* share [e+1], double; [e]: valid tokens */
#define balance_ptrs(p) p(valid) p(score) p(share) p(loss)
typedef struct { balance_ptrs(FIELD) I32 n, e; } balance_args;
#define balance_backward_ptrs(p) p(valid) p(share) p(dscore)
typedef struct { balance_backward_ptrs(FIELD) F64 scale; I32 n, e; } balance_backward_args;
#define price_ptrs(p) p(next) p(beta)
typedef struct { price_ptrs(FIELD) I32 e; } price_args;
#define nudge_ptrs(p) p(demand) p(price)
typedef struct { nudge_ptrs(FIELD) F64 rate; I32 e, fresh; } nudge_args;
#define half_squares_ptrs(p) p(w) p(halves)
typedef struct { half_squares_ptrs(FIELD) I32 d, e; } half_squares_args;
#define kmeans_reseed_ptrs(p) p(begin) p(valid) p(x) p(logits) p(halves) p(centroid) p(distance)
typedef struct { kmeans_reseed_ptrs(FIELD) I32 n, e, d; } kmeans_reseed_args;
#define kmeans_move_ptrs(p) p(begin) p(slot_token) p(x) p(centroid)
typedef struct { kmeans_move_ptrs(FIELD) F64 weight; I32 e, d; } kmeans_move_args;

/* ---- record.cl.h ---- */
#define loads_ptrs(p) p(begin) p(demand)
typedef struct { loads_ptrs(FIELD) I32 e; } loads_args;
#define index_count_ptrs(p) p(begin) p(slot_token) p(token_begin)
typedef struct { index_count_ptrs(FIELD) I32 n, e; } index_count_args; /* token_begin as count_marked's */
#define index_fill_ptrs(p) p(begin) p(slot_token) p(token_begin) p(token_slot)
typedef struct { index_fill_ptrs(FIELD) I32 n, e; } index_fill_args;
#define part_count_ptrs(p) p(begin) p(slot_token) p(part_begin)
typedef struct { part_count_ptrs(FIELD) I32 e, first, end; } part_count_args;
#define part_fill_ptrs(p) p(begin) p(slot_token) p(slot_gate) p(part_begin) p(part_token) p(part_gate)
typedef struct { part_fill_ptrs(FIELD) I32 e, first; } part_fill_args;
#define tally_ptrs(p) p(begin) p(slot_gate) p(token_begin) p(valid) p(aux_loss) p(dropped) p(demand) p(sums) p(counts)
typedef struct { tally_ptrs(FIELD) I32 n, e; } tally_args;
/* clang-format on */
