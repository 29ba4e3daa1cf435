/* Attention against caches: the whole attention's results, whatever pieces the sequences come in. */
#include "variants.h"

enum { BUCKETS = 8, MAX_DISTANCE = 20, MAX_CALLS = 64, MAX_SEQUENCES = 4 };

/* Sequences of T tokens each come in calls; call c brings pieces[c][b] tokens of sequence b. */
typedef struct {
  int B, T, H, kv_heads, dh, positions;
  int biased;
  int pieces[MAX_CALLS][MAX_SEQUENCES];
} shape;

/* All at once; one by one; ragged, with sequences that pause; and one that fills its cache to the last place. */
static const shape shapes[] = {
    {1, 1, 1, 1, 4, 1, 1, {{1}}},
    {1, 40, 2, 2, 16, 40, 1, {{40}}},
    {2, 5, 3, 3, 8, 9, 1, {{1, 0}, {1, 2}, {0, 1}, {2, 1}, {1, 1}}},
    {3, 37, 2, 2, 12, 50, 1, {{13, 0, 1}, {12, 30, 25}, {0, 7, 0}, {11, 0, 11}, {1}}},
    {2, 70, 1, 1, 64, 70, 1, {{69, 1}, {0, 12}, {1, 57}}},
    {3, 37, 6, 2, 12, 50, 0, {{13, 0, 1}, {12, 30, 25}, {0, 7, 0}, {11, 0, 11}, {1}}},
    {2, 70, 4, 1, 64, 70, 1, {{69, 1}, {0, 12}, {1, 57}}},
};

typedef struct {
  const shape *s;
  const real *q, *k, *v, *rel_bias; /* [B,T,H*dh], [B,T,kv_heads*dh], [BUCKETS,H] */
} inputs;

static inputs make_inputs(const shape *s) {
  int64_t rows = (int64_t)s->B * s->T, size = rows * s->H * s->dh, kv = rows * s->kv_heads * s->dh;
  return (inputs){s, test_new_normal(size, 1), test_new_normal(kv, 2), test_new_normal(kv, 3),
                  s->biased ? test_new_normal(BUCKETS * s->H, 4) : NULL};
}

static void free_inputs(inputs *in) {
  free((real *)in->q), free((real *)in->k), free((real *)in->v), free((real *)in->rel_bias);
}

/* Rows of the call from [B,T] arrays to ragged ones, or back. */
static void move_rows(const inputs *in, const int *begin, const int *past, int heads, const real *whole, real *out,
                      real *ragged) {
  int64_t width = (int64_t)heads * in->s->dh;
  for (int b = 0; b < in->s->B; b++)
    for (int i = begin[b]; i < begin[b + 1]; i++) {
      int64_t at = (int64_t)b * in->s->T + past[b] + i - begin[b];
      if (whole) memcpy(ragged + i * width, whole + at * width, (size_t)width * sizeof(real));
      if (out) memcpy(out + at * width, ragged + i * width, (size_t)width * sizeof(real));
    }
}

static void run_cached(ch_exec *x, const void *context, real *out) {
  const inputs *in = context;
  const shape *s = in->s;
  int64_t width = (int64_t)s->H * s->dh, kv_width = (int64_t)s->kv_heads * s->dh, max = (int64_t)s->B * s->T,
          cache = (int64_t)s->B * s->positions * kv_width;
  int past[MAX_SEQUENCES] = {0}, begin[MAX_SEQUENCES + 1] = {0};
  real *q = test_new(max * width), *k = test_new(max * kv_width), *v = test_new(max * kv_width);
  real *keys = test_new(cache), *values = test_new(cache), *part = test_new(max * width);
  real *bias = test_new((int64_t)s->H * (s->positions + CH_BIAS_PAD));
  if (s->biased)
    x->ops->attention_bias(x, &(ch_attention_bias_args){.H = s->H,
                                                        .buckets = BUCKETS,
                                                        .max_distance = MAX_DISTANCE,
                                                        .positions = s->positions,
                                                        .rel_bias = in->rel_bias,
                                                        .bias = bias});
  test_poison(keys, cache);
  test_poison(values, cache);
  ch_attention_cached_args a = {.B = s->B,
                                .H = s->H,
                                .kv_heads = s->kv_heads,
                                .dh = s->dh,
                                .positions = s->positions,
                                .max_rows = (int)max,
                                .begin = begin,
                                .past = past,
                                .scale = (real)0.3,
                                .q = q,
                                .k = k,
                                .v = v,
                                .keys = keys,
                                .values = values,

                                .bias = s->biased ? bias : NULL,
                                .out = part};
  for (int c = 0; c < MAX_CALLS; c++) {
    for (int b = 0; b < s->B; b++) begin[b + 1] = begin[b] + s->pieces[c][b];
    if (!begin[s->B]) break;
    move_rows(in, begin, past, s->H, in->q, NULL, q);
    move_rows(in, begin, past, s->kv_heads, in->k, NULL, k);
    move_rows(in, begin, past, s->kv_heads, in->v, NULL, v);
    test_poison(part, max * width);
    x->ops->attention_cached(x, &a);
    if (!ch_counting(x)) move_rows(in, begin, past, s->H, NULL, out, part);
    for (int b = 0; b < s->B; b++) past[b] += s->pieces[c][b];
  }
  for (int b = 0; b < s->B; b++) assert_int_equal(past[b], s->T);
  free(q), free(k), free(v), free(keys), free(values), free(part), free(bias);
}

static void run_whole(ch_exec *x, const inputs *in, real *out) {
  const shape *s = in->s;
  real *lse = test_new((int64_t)s->B * s->H * s->T);
  x->ops->attention(x, &(ch_attention_args){.B = s->B,
                                            .T = s->T,
                                            .H = s->H,
                                            .kv_heads = s->kv_heads,
                                            .dh = s->dh,
                                            .scale = (real)0.3,
                                            .q = in->q,
                                            .k = in->k,
                                            .v = in->v,
                                            .rel_bias = in->rel_bias,
                                            .buckets = BUCKETS,
                                            .max_distance = MAX_DISTANCE,
                                            .out = out,
                                            .lse = lse});
  free(lse);
}

/* Every instruction set and number of threads against the reference, and that against the whole attention. */
static void equals_whole_attention(void **state) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const shape *s = &shapes[i];
    inputs in = make_inputs(s);
    int64_t size = (int64_t)s->B * s->T * s->H * s->dh;
    real *want = test_new(size), *got = test_run_on("reference", "generic", 2, run_cached, &in, size);
    TEST_EXEC("reference", CH_COMPUTE_FP32, 2, run_whole(&x, &in, want));
    test_close(got, want, size, 2e-6);
    test_variants("attention_cached", run_cached, &in, TEST_PARTS(size), 3e-6);
    free(want), free(got);
    free_inputs(&in);
  }
}

/* The same bits all at once, one by one and in between. */
static void pieces_do_not_matter(void **state) {
  shape s = {2, 53, 4, 2, 20, 60, 1, {{0}}};
  inputs in = make_inputs(&s);
  int64_t size = (int64_t)s.B * s.T * s.H * s.dh;
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    real *want = NULL;
    for (int piece = s.T; piece > 0; piece = piece * 2 / 5 + (piece == 2)) {
      memset(s.pieces, 0, sizeof s.pieces);
      for (int c = 0; c * piece < s.T; c++)
        for (int b = 0; b < s.B; b++) s.pieces[c][b] = s.T - c * piece < piece ? s.T - c * piece : piece;
      real *got = test_run_on("cpu", test_isas[isa], 2, run_cached, &in, size);
      if (!want) want = got;
      if (memcmp(want, got, (size_t)size * sizeof(real))) fail_msg("%s: pieces of %d differ", test_isas[isa], piece);
      if (want != got) free(got);
    }
    free(want);
  }
  free_inputs(&in);
}

TEST_MAIN(NULL, NULL, equals_whole_attention, pieces_do_not_matter)
