/* The arguments of each kernel: read by the host's compiler and by the device's. Of each, ptr(name) is a pointer and
 * num(type, name) a number; pointers first, then what has eight bytes, then what has four: no padding, the same layout
 * everywhere. Fields are those of the op (op/op.h, op/routing.h) unless a comment says otherwise. */
/* clang-format off */

#define GROUP 128  /* items of a group, but of `product` */
#define TILE 16    /* of `product`: a group of TILE x TILE items computes as many results */
#define AS_FLOAT 0
#define ROUNDED 1
#define AS_BF16 2
#define PIECE 4096 /* elements that one group sums up */
#define BLOCK 64   /* rows that one item sums up */
#define CLASSES 64 /* of words of the vocabulary, by their number */
#define TILE_TOKENS 256 /* of a tile of scores or marks */
#define TILE_EXPERTS 32
#define TILE_SIZES 1024 /* that one group adds up one by one */

/* ---- rows.cl.h ---- */
#define softmax_fields(ptr, num) ptr(x) ptr(y) num(I64, n) num(I32, m) num(I32, nulls)
#define softmax_backward_fields(ptr, num) ptr(y) ptr(dy) ptr(dx) num(I64, n) num(I32, m)
#define rmsnorm_fields(ptr, num) ptr(x) ptr(w) ptr(y) ptr(rstd) num(I64, n) num(I32, d) num(F32, eps)
#define rmsnorm_dx_fields(ptr, num) ptr(x) ptr(w) ptr(rstd) ptr(dy) ptr(dx) num(I64, n) num(I32, d) num(I32, dx_acc)
#define rmsnorm_dw_fields(ptr, num) ptr(x) ptr(rstd) ptr(dy) ptr(partial) num(I64, n) num(I32, d) /* partial [blocks,d] = */
#define add_blocks_fields(ptr, num) ptr(partial) ptr(sum) num(I64, blocks) num(I64, d) /* sum [d] += */
#define gather_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(x) ptr(y) ptr(y16) num(I32, e) num(I32, d) /* y16 stands for y, or is 0 */
#define combine_fields(ptr, num) ptr(token_begin) ptr(token_slot) ptr(slot_gate) ptr(y) ptr(out) num(I32, n) num(I32, d) num(I32, gated) num(I32, out_acc)
#define combine_backward_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(slot_gate) ptr(y) ptr(dout) ptr(dy) ptr(dgate) num(I32, e) num(I32, d) num(I32, gated)
#define embedding_fields(ptr, num) ptr(token) ptr(w) ptr(x) num(I64, n) num(I32, d) num(F32, scale)
#define embedding_backward_fields(ptr, num) ptr(token) ptr(dx) ptr(dw) num(I64, n) num(I32, d) num(F32, scale)

/* ---- elements.cl.h; u is 0 for GELU; silu: in place of gelu; x16, y16, dy16, dx16 stand for x, y, dy, dx, or are 0. ---- */
#define activate_fields(ptr, num) ptr(rows) ptr(x) ptr(u) ptr(y) ptr(x16) ptr(y16) num(I64, count) num(I32, silu)
#define activate_backward_fields(ptr, num) ptr(rows) ptr(x) ptr(u) ptr(y) ptr(dy) ptr(dx) ptr(du) ptr(x16) ptr(y16) ptr(dy16) ptr(dx16) num(I64, count) num(I32, silu)
#define sigmoid_fields(ptr, num) ptr(x) ptr(y) num(I64, count)
#define sigmoid_backward_fields(ptr, num) ptr(y) ptr(dy) ptr(dx) num(I64, count)
#define copy_fields(ptr, num) ptr(x) ptr(y) num(I64, count) num(I32, accumulate)
#define round_bf16_fields(ptr, num) ptr(rows) ptr(x) ptr(y) num(I64, count)
#define widen_bf16_fields(ptr, num) ptr(rows) ptr(x) ptr(y) num(I64, count) num(I32, accumulate)
#define multiply_fields(ptr, num) ptr(a) ptr(b) ptr(y) num(I64, count) num(I32, accumulate)
#define dropout_fields(ptr, num) ptr(x) ptr(y) \
  num(I64, count) num(I64, first) num(U64, seed) num(U64, draw) num(U32, stream) num(U32, place) num(U32, dropped) num(I32, accumulate) num(F32, scale)
#define jitter_fields(ptr, num) ptr(factor) num(U64, seed) num(U64, base) num(F64, unit) num(F64, low) num(U32, stream) num(U32, sub) num(I32, n) num(I32, d)
#define sum_squares_fields(ptr, num) ptr(x) ptr(partial) num(I64, arrays) num(I64, count) num(I64, pieces) /* partial [arrays,pieces] = */
#define total_squares_fields(ptr, num) ptr(partial) ptr(sum) ptr(total) num(I64, arrays) num(I64, pieces) num(I64, step)

/* ---- product.cl.h: a batch of products C (= or +=) alpha op(A) op(B). With begin [batch+1] rows begin[i] ..
 * begin[i+1]-1 belong to product i: rows of A and C or, with ragged_k, rows of A and B, over which the product sums. The
 * strides give the distance between the matrices of successive products, and apply to every operand without `begin`.
 * a_is, b_is: AS_FLOAT, ROUNDED (to bf16 when read) or AS_BF16; c_is: AS_FLOAT or, without accumulate, AS_BF16. ---- */
#define product_fields(ptr, num) ptr(a) ptr(b) ptr(c) ptr(begin) \
  num(I64, m) num(I64, n) num(I64, k) num(I64, lda) num(I64, ldb) num(I64, ldc) num(I64, a_stride) num(I64, b_stride) num(I64, c_stride) num(I32, trans_a) num(I32, trans_b) num(I32, accumulate) num(I32, ragged_k) num(I32, a_is) num(I32, b_is) num(I32, c_is) num(F32, alpha)

/* Rows [e][most,width] at equal distances, of rows that belong to experts by number; 0 behind the last one of each.
 * `is` as a_is, of rows; ROUNDED become bf16. And the way back: `is` as c_is. */
#define pad_rows_fields(ptr, num) ptr(begin) ptr(rows) ptr(padded) num(I64, width) num(I32, e) num(I32, most) num(I32, is)
#define unpad_rows_fields(ptr, num) ptr(begin) ptr(rows) ptr(padded) num(I64, width) num(I32, e) num(I32, most) num(I32, is) num(I32, accumulate)

/* ---- attention.cl.h; bucket of every distance, 0 without a bias. length [B] of sequences, or 0: T. Pairs of a sequence and a head are numbered b H + head; a block has `rows` rows from
 * first_row on, of the pairs from first_pair on, and `columns` keys, at distances of `pitch`. is: AS_FLOAT or AS_BF16, of y, weight, dscore. ---- */
#define split_heads_fields(ptr, num) ptr(x) ptr(y) num(I64, ld) num(I32, B) num(I32, T) num(I32, H) num(I32, group) num(I32, dh) num(I32, is)
#define merge_heads_fields(ptr, num) ptr(x) ptr(y) num(I64, ld) num(I32, B) num(I32, T) num(I32, H) num(I32, group) num(I32, dh)
#define ATTENTION_BLOCK(num) num(I64, first_pair) num(I64, pitch) num(I32, first_row) num(I32, rows) num(I32, columns) num(I32, T) num(I32, H) num(I32, bidirectional)
#define attention_weights_fields(ptr, num) ptr(score) ptr(rel_bias) ptr(bucket) ptr(length) ptr(weight) ptr(lse) ATTENTION_BLOCK(num) num(I32, is)
#define attention_slopes_fields(ptr, num) ptr(score) ptr(dweight) ptr(rel_bias) ptr(bucket) ptr(length) ptr(lse) ptr(weight) ptr(dscore) ATTENTION_BLOCK(num) num(I32, is)
#define attention_distances_fields(ptr, num) ptr(dweight) ptr(slope) ATTENTION_BLOCK(num) num(I32, pairs) num(I32, accumulate)
#define attention_dbias_fields(ptr, num) ptr(slope) ptr(bucket) ptr(drel_bias) num(I32, B) num(I32, distances) num(I32, H)
#define cache_append_fields(ptr, num) ptr(begin) ptr(past) ptr(k) ptr(v) ptr(keys) ptr(values) num(I32, B) num(I32, kv_heads) num(I32, dh) num(I32, positions)
#define attention_cached_fields(ptr, num) ptr(begin) ptr(past) ptr(q) ptr(keys) ptr(values) ptr(bias) ptr(out) \
  num(I32, B) num(I32, H) num(I32, group) num(I32, dh) num(I32, positions) num(I32, pad) num(F32, scale)
#define attention_bias_fields(ptr, num) ptr(rel_bias) ptr(bucket) ptr(bias) num(I32, H) num(I32, positions) num(I32, pad) /* bucket [positions] */
#define rope_fields(ptr, num) ptr(position) ptr(turn) ptr(x) num(I64, n) num(I32, heads) num(I32, dh) num(I32, rotated) num(I32, back) num(I32, T)
#define rope_table_fields(ptr, num) ptr(turn) num(F64, theta) num(I32, positions) num(I32, rotated)

/* ---- head.cl.h: rows of logits turn into gradients, or rounded [rows,V], where it is not 0, receives them; loss [rows] = ; row_weight may be 0 ---- */
#define head_rows_fields(ptr, num) ptr(target) ptr(row_weight) ptr(logits) ptr(rounded) ptr(loss) num(I32, V) num(I32, gradient) num(F32, weight) num(I32, pad)
#define head_pairs_fields(ptr, num) ptr(target) ptr(logits) ptr(other) ptr(rounded) ptr(other_rounded) ptr(loss) ptr(other_loss) ptr(disagreement) \
  num(F64, consistency) num(I32, V) num(I32, gradient) num(F32, weight) num(I32, pad)
#define head_losses_fields(ptr, num) ptr(loss) ptr(row_weight) ptr(sum) ptr(total) ptr(token_loss) num(I64, n) /* *sum += */

/* ---- optim.cl.h; measures [batch,rows,3], scales [batch,2]: the mean of row moments, the rate of the update ---- */
#define adafactor_columns_fields(ptr, num) ptr(finite) ptr(g) ptr(col) num(I64, batch) num(I64, rows) num(I64, cols) num(F64, beta2) num(F64, eps1) num(F64, grad_scale)
#define adafactor_rows_fields(ptr, num) ptr(finite) ptr(w) ptr(g) ptr(col) ptr(measures) num(I64, batch) num(I64, rows) num(I64, cols) num(F64, grad_scale)
#define adafactor_scales_fields(ptr, num) ptr(finite) ptr(measures) ptr(row) ptr(scales) \
  num(I64, batch) num(I64, rows) num(I64, all_cols) num(F64, rate) num(F64, beta2) num(F64, eps1) num(F64, eps2) num(F64, clip)
#define adafactor_apply_fields(ptr, num) ptr(finite) ptr(w) ptr(g) ptr(row) ptr(col) ptr(scales) ptr(w16) num(I64, batch) num(I64, rows) num(I64, cols) num(F64, grad_scale)
#define adamw_fields(ptr, num) ptr(finite) ptr(w) ptr(g) ptr(m) ptr(v) ptr(w16) \
  num(I64, count) num(F64, rate) num(F64, beta1) num(F64, beta2) num(F64, eps) num(F64, weight_decay) num(F64, grad_scale) num(F64, correct_m) num(F64, correct_v)

/* ---- select.cl.h; keep [n,e] marks, 0 or 1; pools as in op select, those from first_pool on; key, left, surplus [pools,e]; count [pools,256,e] ---- */
#define SELECT_POOLS(num) num(I32, n) num(I32, e) num(I32, first_pool) num(I32, stride)
#define select_count_fields(ptr, num) ptr(pool_begin) ptr(valid) ptr(score) ptr(key) ptr(count) SELECT_POOLS(num) num(I32, parts) num(I32, shift)
#define select_digit_fields(ptr, num) ptr(k) ptr(count) ptr(key) ptr(left) ptr(surplus) ptr(cutoff) num(I32, e) num(I32, shift)
#define select_marks_fields(ptr, num) ptr(pool_begin) ptr(valid) ptr(score) ptr(key) ptr(left) ptr(keep) SELECT_POOLS(num) num(I32, parts) num(I32, pad)
#define select_ties_fields(ptr, num) ptr(pool_begin) ptr(score) ptr(key) ptr(left) ptr(surplus) ptr(keep) SELECT_POOLS(num)
#define list_marked_fields(ptr, num) ptr(keep) ptr(size) ptr(expert_begin) ptr(slot_token) num(I32, n) num(I32, e) num(I32, parts) num(I32, pad)
#define prefix_fields(ptr, num) ptr(size) ptr(begin) num(I64, count)

/* ---- routing.cl.h ---- */
#define mean_cutoff_fields(ptr, num) ptr(cutoff) ptr(mean) num(I32, pools) num(I32, e)
#define running_mean_fields(ptr, num) ptr(value) ptr(mean) num(F64, weight) num(I32, count) num(I32, fresh)
#define best_fields(ptr, num) ptr(valid) ptr(score) ptr(shift) ptr(choice) ptr(value) ptr(margin) num(I32, n) num(I32, e) num(I32, count) num(I32, nulls)
#define modulo_fields(ptr, num) ptr(valid) ptr(id) ptr(choice) num(I32, n) num(I32, e)
#define sample_second_fields(ptr, num) ptr(value) ptr(choice) num(U64, seed) num(U64, base) num(U32, stream) num(U32, sub) num(I32, n)
#define place_fields(ptr, num) ptr(asked) ptr(value) ptr(choice) ptr(demand) ptr(dropped) ptr(held) \
  num(I32, n) num(I32, e) num(I32, count) num(I32, capacity) /* dropped, held [e] */
#define list_chosen_fields(ptr, num) ptr(choice) ptr(begin) ptr(slot_token) num(I32, n) num(I32, e) num(I32, count)
#define sum_counts_fields(ptr, num) ptr(counts) ptr(total) num(I32, count) /* total, int64 = */
#define threshold_fields(ptr, num) ptr(valid) ptr(score) ptr(threshold) ptr(keep) num(I32, n) num(I32, e) num(I32, cap)
#define within_fields(ptr, num) ptr(least_begin) ptr(least_token) ptr(most_begin) ptr(most_token) ptr(least_cutoff) ptr(valid) ptr(score) ptr(threshold) ptr(keep) ptr(demand) ptr(dropped) \
  num(I32, n) num(I32, e) /* dropped [e] */
#define gate_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(slot_gate) ptr(score) ptr(value) num(I32, e) num(I32, rule) num(F32, even)
#define gate_backward_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(slot_gate) ptr(dgate) ptr(dscore) num(I32, e) num(I32, sigmoid)
#define share_backward_fields(ptr, num) ptr(choice) ptr(value) ptr(dscore) num(I32, n) num(I32, e)
#define normalize_gates_fields(ptr, num) ptr(token_begin) ptr(token_slot) ptr(slot_gate) ptr(sum) num(I32, n)
#define normalize_backward_fields(ptr, num) ptr(token_begin) ptr(token_slot) ptr(slot_gate) ptr(sum) ptr(dgate) num(I32, n)
#define choice_shares_fields(ptr, num) ptr(valid) ptr(choice) ptr(share) num(I32, n) num(I32, e) num(I32, count) num(I32, counted) num(I32, span) \
  /* share [groups,e+1], double; [g,e]: valid tokens */
#define balance_fields(ptr, num) ptr(valid) ptr(score) ptr(share) ptr(loss) num(I32, n) num(I32, e) num(I32, nulls) num(I32, shares) num(I32, span) num(I32, groups)
#define balance_backward_fields(ptr, num) ptr(valid) ptr(score) ptr(share) ptr(dscore) num(F64, scale) num(I32, n) num(I32, e) num(I32, nulls) num(I32, shares) num(I32, span)
#define z_loss_fields(ptr, num) ptr(logit) ptr(lse) num(I32, n) num(I32, e)
#define z_loss_backward_fields(ptr, num) ptr(valid) ptr(logit) ptr(lse) ptr(dlogit) num(F64, scale) num(I32, n) num(I32, e)
#define price_fields(ptr, num) ptr(next) ptr(beta) num(I32, e)
#define nudge_fields(ptr, num) ptr(demand) ptr(price) num(F64, rate) num(I32, e) num(I32, fresh)

/* ---- record.cl.h ---- */
#define loads_fields(ptr, num) ptr(begin) ptr(demand) num(I32, e)
#define index_count_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(size) num(I32, n) num(I32, e) /* size [n] */
#define index_fill_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(token_begin) ptr(token_slot) num(I32, n) num(I32, e)
#define part_count_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(size) num(I32, e) num(I32, first) num(I32, end)
#define part_fill_fields(ptr, num) ptr(begin) ptr(slot_token) ptr(slot_gate) ptr(part_begin) ptr(part_token) ptr(part_gate) num(I32, e) num(I32, first)
#define tally_fields(ptr, num) ptr(begin) ptr(slot_gate) ptr(token_begin) ptr(valid) ptr(aux_loss) ptr(dropped) ptr(demand) ptr(lse) ptr(sums) ptr(counts) num(I32, n) num(I32, e)
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
  row(normalize_backward) row(choice_shares) row(balance) row(balance_backward) row(z_loss) row(z_loss_backward) row(price) row(nudge) \
  row(loads) row(index_count) row(index_fill) row(part_count) \
  row(part_fill) row(tally)

#define ARGS(name) typedef struct { name##_fields(FIELD, VALUE) } name##_args;
KERNELS(ARGS)
/* clang-format on */
