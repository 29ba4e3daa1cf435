/* Blocked attention against the reference, forward and backward, over lengths around the block's, and threads. */
#include "testing.h"

typedef struct {
  int B, T, H, dh, gap; /* gap: unused columns between positions */
  int kv_heads, unbiased, bidirectional;
  int shorter; /* sequence b ends b + 1 times so many positions before T */
} shape;
static const shape shapes[] = {
    {1, 1, 1, 4, 0, 1, 0, 0, 0},     {2, 5, 3, 8, 0, 0, 0, 0, 0},     {1, 63, 2, 16, 7, 2, 0, 0, 0},
    {1, 64, 2, 16, 0, 0, 1, 0, 0},   {2, 65, 1, 32, 0, 0, 0, 0, 0},   {1, 200, 2, 64, 5, 2, 0, 0, 0},
    {3, 128, 4, 32, 0, 4, 0, 0, 0},  {1, 70, 2, 48, 3, 2, 1, 0, 0},   {1, 600, 1, 20, 0, 0, 0, 0, 0},
    {2, 70, 6, 16, 3, 2, 0, 0, 0},   {1, 130, 4, 20, 0, 1, 1, 0, 0},  {2, 5, 4, 64, 7, 2, 1, 0, 0},
    {1, 1, 1, 4, 0, 1, 0, 1, 0},     {2, 5, 3, 8, 0, 0, 0, 1, 0},     {1, 64, 2, 16, 0, 2, 0, 1, 0},
    {2, 65, 1, 32, 0, 0, 1, 1, 0},   {1, 200, 2, 64, 5, 1, 0, 1, 0},  {1, 600, 2, 20, 3, 0, 0, 1, 0},
    {3, 113, 4, 48, 0, 2, 0, 1, 0},  {3, 113, 4, 48, 5, 2, 0, 1, 30}, {2, 5, 3, 8, 0, 0, 1, 1, 4},
    {2, 600, 2, 20, 0, 0, 0, 1, 90}, {9, 300, 12, 4, 0, 0, 0, 0, 0} /* devices take its heads in turns */};
enum { BUCKETS = 32, MAX_DISTANCE = 128, OUTPUTS = 6 };

/* out, lse, dq, dk, dv, drel_bias */
static void output_sizes(shape s, int64_t *size) {
  int64_t rows = (int64_t)s.B * s.T;
  size[0] = size[2] = rows * (s.H * s.dh + s.gap);
  size[3] = size[4] = rows * (ch_kv_heads(s.H, s.kv_heads) * s.dh + s.gap);
  size[1] = (int64_t)s.B * s.H * s.T;
  size[5] = BUCKETS * s.H;
}

/* Runs both directions; what is set starts poisoned, gaps excepted. */
static void run_attention(const char *backend, ch_compute compute, int threads, shape s, real **out) {
  int64_t size[OUTPUTS], rows = (int64_t)s.B * s.T;
  output_sizes(s, size);
  for (int i = 0; i < OUTPUTS; i++) {
    out[i] = test_new(size[i]);
    if (i != 5) test_poison(out[i], size[i]);
    for (int64_t row = 0, ld = size[i] / rows; i != 1 && i != 5 && row < rows; row++)
      for (int64_t c = ld - s.gap; c < ld; c++) out[i][row * ld + c] = 42;
  }
  test_normal(out[5], size[5], 9);
  real *in[5];
  int length[16];
  for (int b = 0; b < s.B; b++) length[b] = s.T - (b + 1) * s.shorter > 1 ? s.T - (b + 1) * s.shorter : 1;
  const int like[5] = {0, 3, 4, 0, 5}; /* q, k, v, dout, rel_bias: as large as these outputs */
  for (int i = 0; i < 5; i++) in[i] = test_new_normal(size[like[i]], (uint32_t)i);
  ch_attention_args a = {.B = s.B,
                         .T = s.T,
                         .H = s.H,
                         .dh = s.dh,
                         .kv_heads = s.kv_heads,
                         .bidirectional = s.bidirectional,
                         .length = s.shorter ? length : NULL,
                         .ld = s.gap ? size[0] / rows : 0,
                         .kv_ld = s.gap ? size[3] / rows : 0,
                         .scale = (real)0.3,
                         .q = in[0],
                         .k = in[1],
                         .v = in[2],
                         .dout = in[3],
                         .rel_bias = s.unbiased ? NULL : in[4],
                         .buckets = BUCKETS,
                         .max_distance = MAX_DISTANCE,
                         .out = out[0],
                         .lse = out[1],
                         .dq = out[2],
                         .dk = out[3],
                         .dv = out[4],
                         .drel_bias = out[5]};
  TEST_EXEC(backend, compute, threads, (x.ops->attention(&x, &a), x.ops->attention_backward(&x, &a)));
  for (int i = 0; i < 5; i++) free(in[i]);
}

static void fast_equals_reference(void **state) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    real *want[OUTPUTS], *got[OUTPUTS], *again[OUTPUTS];
    int64_t size[OUTPUTS];
    output_sizes(shapes[i], size);
    run_attention("reference", CH_COMPUTE_FP32, 2, shapes[i], want);
    run_attention("cpu", CH_COMPUTE_FP32, 1, shapes[i], got);
    for (int threads = 2; threads <= 3; threads++) {
      run_attention("cpu", CH_COMPUTE_FP32, threads, shapes[i], again);
      for (int j = 0; j < OUTPUTS; j++) {
        assert_memory_equal(got[j], again[j], (size_t)size[j] * sizeof(real));
        free(again[j]);
      }
    }
    for (int j = 0; j < OUTPUTS; j++) {
      for (int64_t e = 0; e < size[j]; e++) /* absolute below 1: some values are exactly 0 on one side */
        assert_true(fabs((double)got[j][e] - (double)want[j][e]) <= 2e-5 * fmax(1, fabs((double)want[j][e])));
      free(want[j]), free(got[j]);
    }
  }
}

/* Of a sequence that ends early each position has what it has in a shorter sequence, whatever the positions after its
 * end hold. */
static void positions_after_the_end_have_no_effect(void **state) {
  enum { T = 90, END = 37, H = 2, DH = 16, ROW = H * DH };
  static const char *const backends[] = {"reference", "cpu"};
  real bias[BUCKETS * H];
  test_normal(bias, BUCKETS * H, 8);
  for (int i = 0; i < 2; i++) {
    real *in = test_new_normal(4 * T * ROW, 3), *out[2], lse[2][H * T];
    for (int whole = 0; whole < 2; whole++) {
      out[whole] = test_new(4 * T * ROW);
      ch_attention_args a = {.B = 1,
                             .T = whole ? T : END,
                             .H = H,
                             .dh = DH,
                             .bidirectional = 1,
                             .length = whole ? (const int[]){END} : NULL,
                             .scale = (real)0.3,
                             .q = in,
                             .k = in + T * ROW,
                             .v = in + 2 * T * ROW,
                             .dout = in + 3 * T * ROW,
                             .rel_bias = bias,
                             .buckets = BUCKETS,
                             .max_distance = MAX_DISTANCE,
                             .out = out[whole],
                             .lse = lse[whole],
                             .dq = out[whole] + T * ROW,
                             .dk = out[whole] + 2 * T * ROW,
                             .dv = out[whole] + 3 * T * ROW,
                             .drel_bias = (real[BUCKETS * H]){0}};
      if (whole)
        for (int j = 0; j < 4; j++)
          for (int at = END * ROW; at < T * ROW; at++) in[j * T * ROW + at] = 50;
      TEST_EXEC(backends[i], CH_COMPUTE_FP32, 2, (x.ops->attention(&x, &a), x.ops->attention_backward(&x, &a)));
    }
    for (int j = 0; j < 4; j++) {
      test_close(out[1] + j * T * ROW, out[0] + j * T * ROW, END * ROW, 1e-6);
      for (int at = END * ROW; at < T * ROW; at++) assert_true(out[1][j * T * ROW + at] == 0);
    }
    free(in), free(out[0]), free(out[1]);
  }
}

/* Where products round their operands to bf16, attention is as near as these allow. */
static void bf16_is_close(void **state) {
  const shape s = {.B = 2, .T = 300, .H = 4, .dh = 32, .kv_heads = 2};
  real *want[OUTPUTS], *got[OUTPUTS];
  int64_t size[OUTPUTS];
  output_sizes(s, size);
  run_attention("reference", CH_COMPUTE_FP32, 2, s, want);
  run_attention("cpu", CH_COMPUTE_BF16, 2, s, got);
  for (int j = 0; j < OUTPUTS; j++) {
    test_close(got[j], want[j], size[j], 0.02);
    free(want[j]), free(got[j]);
  }
}

/* Attention both ways does not know which way a text runs: of a reversed one, with the two halves of the bias changed
 * over, it gives the same rows from behind. What is causal fails here. */
static void reversed_text(void **state) {
  enum { T = 77, H = 2, DH = 16, ROW = H * DH };
  real *in[2][3], *out[2], lse[2][H * T], bias[2][BUCKETS * H];
  test_normal(bias[0], BUCKETS * H, 8);
  for (int h = 0; h < H; h++) bias[0][h] = 0; /* distance 0 is no other way round */
  for (int b = 0; b < BUCKETS; b++)
    memcpy(bias[1] + b * H, bias[0] + (b + BUCKETS / 2) % BUCKETS * H, H * sizeof(real));
  memset(bias[1], 0, H * sizeof(real));
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 3; j++) in[i][j] = test_new_normal(T * ROW, (uint32_t)j);
    out[i] = test_new(T * ROW);
  }
  for (int j = 0; j < 3; j++)
    for (int t = 0; t < T; t++) memcpy(in[1][j] + t * ROW, in[0][j] + (T - 1 - t) * ROW, ROW * sizeof(real));
  for (int i = 0; i < 2; i++) {
    ch_attention_args a = {.B = 1,
                           .T = T,
                           .H = H,
                           .dh = DH,
                           .bidirectional = 1,
                           .scale = (real)0.3,
                           .q = in[i][0],
                           .k = in[i][1],
                           .v = in[i][2],
                           .rel_bias = bias[i],
                           .buckets = BUCKETS,
                           .max_distance = MAX_DISTANCE,
                           .out = out[i],
                           .lse = lse[i]};
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, x.ops->attention(&x, &a));
  }
  for (int t = 0; t < T; t++) test_close(out[1] + t * ROW, out[0] + (T - 1 - t) * ROW, ROW, 1e-5);
  for (int i = 0; i < 2; i++) free(in[i][0]), free(in[i][1]), free(in[i][2]), free(out[i]);
}

/* T5's buckets of an encoder: half of them, as those of 16, for keys up to the position, the other half for those
 * after it. */
static void buckets_both_ways(void **state) {
  enum { T = 300 };
  int bucket[2 * T - 1];
  const ch_attention_args a = {.T = T, .bidirectional = 1, .buckets = 32, .max_distance = 128};
  assert_int_equal(ch_attention_distances(&a), 2 * T - 1);
  ch_attention_all_buckets(&a, bucket);
  for (int distance = 0; distance < T; distance++) {
    int one_side = ch_attention_bucket(distance, 16, 128);
    assert_int_equal(bucket[T - 1 + distance], one_side);
    assert_int_equal(bucket[T - 1 - distance], one_side + (distance ? 16 : 0));
  }
  /* transformers' T5Attention._relative_position_bucket(bidirectional=True) of j - i */
  const int want[][2] = {{-200, 15}, {-64, 14}, {-20, 10}, {-7, 7}, {0, 0}, {1, 17}, {8, 24}, {33, 28}, {150, 31}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) assert_int_equal(bucket[T - 1 - want[i][0]], want[i][1]);
}

/* One head of one sequence, without a bias. */
static ch_attention_args one_head(int T, int dh, const real *q, const real *k, const real *v, real *out, real *lse) {
  return (ch_attention_args){
      .B = 1, .T = T, .H = 1, .dh = dh, .scale = 1, .q = q, .k = k, .v = v, .out = out, .lse = lse};
}

/* Heads that share keys and values give what each would with a copy of its own; no bias is a bias of 0. */
static void shared_keys_are_repeated_ones(void **state) {
  enum { B = 2, T = 70, H = 6, KV = 2, DH = 16, Q = B * T * H * DH, K = B * T * KV * DH };
  real *q = test_new_normal(Q, 1), *k = test_new_normal(K, 2), *v = test_new_normal(K, 3),
       *dout = test_new_normal(Q, 4), *copies[2] = {test_new(Q), test_new(Q)}, bias[H] = {0}, dbias[H] = {0},
       lse[2][B * H * T];
  real *out[2], *dq[2], *dk[2], *dv[2];
  for (int i = 0; i < Q; i++) {
    int from = (i / (H * DH) * KV + i / DH % H / (H / KV)) * DH + i % DH;
    copies[0][i] = k[from], copies[1][i] = v[from];
  }
  for (int own = 0; own < 2; own++) {
    out[own] = test_new(Q), dq[own] = test_new(Q), dk[own] = test_new(Q), dv[own] = test_new(Q);
    ch_attention_args a = {.B = B,
                           .T = T,
                           .H = H,
                           .kv_heads = own ? H : KV,
                           .dh = DH,
                           .scale = (real)0.3,
                           .q = q,
                           .k = own ? copies[0] : k,
                           .v = own ? copies[1] : v,
                           .rel_bias = own ? bias : NULL,
                           .buckets = 1,
                           .max_distance = 1,
                           .out = out[own],
                           .lse = lse[own],
                           .dout = dout,
                           .dq = dq[own],
                           .dk = dk[own],
                           .dv = dv[own],
                           .drel_bias = own ? dbias : NULL};
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, (x.ops->attention(&x, &a), x.ops->attention_backward(&x, &a)));
  }
  assert_memory_equal(out[0], out[1], Q * sizeof(real));
  assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
  assert_memory_equal(dq[0], dq[1], Q * sizeof(real));
  for (int i = 0; i < K; i++) { /* devices add up in another order */
    double to_k = 0, to_v = 0;
    for (int head = 0; head < H / KV; head++) {
      int at = (i / (KV * DH) * H + i / DH % KV * (H / KV) + head) * DH + i % DH;
      to_k += (double)dk[1][at], to_v += (double)dv[1][at];
    }
    assert_true(fabs(to_k - (double)dk[0][i]) <= 1e-5 && fabs(to_v - (double)dv[0][i]) <= 1e-5);
  }
  free(q), free(k), free(v), free(dout), free(copies[0]), free(copies[1]);
  for (int own = 0; own < 2; own++) free(out[own]), free(dq[own]), free(dk[own]), free(dv[own]);
}

/* Large scores neither overflow nor lose the softmax: with one key far ahead of all others, its value comes out. */
static void large_scores(void **state) {
  enum { T = 70, DH = 16 };
  real *q = test_new(T * DH), *k = test_new(T * DH), *v = test_new_normal(T * DH, 1), *out = test_new(T * DH), lse[T];
  for (int i = 0; i < T; i++) q[i * DH] = 100, k[i * DH] = i == 0 ? 100 : -100;
  ch_attention_args a = one_head(T, DH, q, k, v, out, lse);
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, x.ops->attention(&x, &a));
  for (int i = 0; i < T; i++) test_close(out + i * DH, v, DH, 1e-6);
  free(q), free(k), free(v), free(out);
}

/* A key that is not a number spoils the rows that see it, and no bit of those before. */
static void nan_is_seen_from_its_position_on(void **state) {
  enum { T = 70, DH = 16 };
  for (int at = 0; at < T; at += 3) {
    real *q = test_new_normal(T * DH, 1), *k = test_new_normal(T * DH, 2), *v = test_new_normal(T * DH, 3),
         out[2][T * DH], lse[2][T];
    for (int spoilt = 0; spoilt < 2; spoilt++) {
      if (spoilt) k[at * DH + 5] = (real)NAN;
      ch_attention_args a = one_head(T, DH, q, k, v, out[spoilt], lse[spoilt]);
      TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, x.ops->attention(&x, &a));
    }
    assert_memory_equal(out[0], out[1], (size_t)(at * DH) * sizeof(real));
    assert_memory_equal(lse[0], lse[1], (size_t)at * sizeof(real));
    for (int i = at * DH; i < T * DH; i++) assert_true(isnan(out[1][i]));
    for (int i = at; i < T; i++) assert_true(isnan(lse[1][i]));
    free(q), free(k), free(v);
  }
}

/* T5's buckets: exact, then logarithmic, then the last for everything. */
static void buckets(void **state) {
  for (int distance = 0; distance < 16; distance++) assert_int_equal(ch_attention_bucket(distance, 32, 128), distance);
  const int want[][2] = {{16, 16},  {18, 16},  {19, 17},  {32, 21},  {64, 26},
                         {112, 30}, {113, 31}, {127, 31}, {128, 31}, {5000, 31}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    assert_int_equal(ch_attention_bucket(want[i][0], 32, 128), want[i][1]);
  assert_int_equal(ch_attention_bucket(7, 1, 128), 0);
  assert_int_equal(ch_attention_bucket(7, 8, 3), 7);
}

TEST_MAIN(NULL, NULL, fast_equals_reference, positions_after_the_end_have_no_effect, bf16_is_close,
          shared_keys_are_repeated_ones, large_scores, nan_is_seen_from_its_position_on, buckets, reversed_text,
          buckets_both_ways)
