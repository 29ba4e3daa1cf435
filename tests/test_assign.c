/* Assignments: feasible always, proved optimal by their certificates, the same for every number of threads. */
#include "moe/assign.h"
#include "testing.h"

enum { KINDS = 12 };
static const char *const kinds[KINDS] = {"narrow",   "normal", "peaky", "clustered", "equal rows", "one-hot",
                                         "constant", "zeros",  "tiny",  "huge",      "duplicates", "logits"};

typedef struct {
  int n, e, k, cap, balanced, solver;
  int iterations, threads;
  const uint8_t *valid;
  const real *score;
  /* out */
  int *count; /* [n,e] 1 where taken */
  real *beta, *alpha;
  choir_certificate certificate;
} assignment;

static double uniform(uint32_t seed, uint64_t i) { return ch_rng_uniform(ch_rng_make(seed, CH_STREAM_TEST, 71), i); }

static void softmax_rows(real *s, int n, int e) {
  for (int t = 0; t < n; t++) {
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < e; i++) most = fmax(most, (double)s[t * e + i]);
    for (int i = 0; i < e; i++) sum += exp((double)s[t * e + i] - most);
    for (int i = 0; i < e; i++) s[t * e + i] = (real)(exp((double)s[t * e + i] - most) / sum);
  }
}

/* Scores of one kind [n,e]. */
static real *make_scores(int kind, int n, int e, uint32_t seed) {
  static const double deviation[] = {0.3, 1, 4};
  real *s = test_new_normal((int64_t)n * e, seed);
  int64_t count = (int64_t)n * e;
  ch_rng rng = ch_rng_make(seed, CH_STREAM_TEST, 72);
  if (kind < 3)
    for (int64_t j = 0; j < count; j++) s[j] *= (real)deviation[kind];
  if (kind == 3) /* tokens crowd around a few centres that prefer a few experts: a trained layer */
    for (int t = 0; t < n; t++)
      for (int i = 0; i < e; i++) {
        int centre = (int)ch_rng_below(rng, (uint64_t)t, 8);
        double liking = ch_rng_normal(ch_rng_make(seed, CH_STREAM_TEST, 73), (uint64_t)(centre * e + i));
        s[t * e + i] = (real)(3 * liking + 0.5 * (double)s[t * e + i]);
      }
  if (kind < 4) softmax_rows(s, n, e);
  for (int64_t j = 0; j < count && kind >= 4; j++) {
    int t = (int)(j / e), i = (int)(j % e);
    if (kind == 4) s[j] = s[i];
    if (kind == 5) s[j] = (int)ch_rng_below(rng, (uint64_t)t, (uint64_t)e) == i;
    if (kind == 6) s[j] = (real)0.25;
    if (kind == 7) s[j] = 0;
    if (kind == 8) s[j] = (real)(1e-40 * uniform(seed, (uint64_t)j));
    if (kind == 9) s[j] = (real)pow(10, 50 * uniform(seed, (uint64_t)j) - 30);
    if (kind == 10) s[j] = (real)(floor(4 * uniform(seed, (uint64_t)j)) / 4);
  }
  return s;
}

static void run(assignment *c) {
  int64_t cells = (int64_t)c->n * c->e;
  c->count = calloc((size_t)cells, sizeof *c->count);
  c->beta = test_new(c->e);
  c->alpha = test_new(c->n);
  assert_non_null(c->count);
  TEST_EXEC("cpu", CH_COMPUTE_FP32, c->threads ? c->threads : 1, {
    ch_record r;
    ch_record_alloc(&x.tape, &r, c->n, c->e, c->balanced ? c->n : c->k * c->e);
    ch_assign(&x, &(ch_assign_args){.n = c->n,
                                    .e = c->e,
                                    .pools = 1,
                                    .largest = c->n,
                                    .pool_begin = (int[]){0, c->n},
                                    .k = &c->k,
                                    .cap = c->cap,
                                    .balanced = c->balanced,
                                    .solver = c->solver,
                                    .lambda = 0.001,
                                    .iterations = c->iterations ? c->iterations : 100,
                                    .valid = c->valid,
                                    .score = c->score,
                                    .record = &r,
                                    .beta = c->beta,
                                    .alpha = c->alpha,
                                    .certificate = &c->certificate});
    if (pass_)
      for (int i = 0; i < c->e; i++)
        for (int s = r.expert_begin[i]; s < r.expert_begin[i + 1]; s++) {
          if (s > r.expert_begin[i]) assert_true(r.slot_token[s] > r.slot_token[s - 1]);
          c->count[r.slot_token[s] * c->e + i]++;
        }
  });
}

static void done(assignment *c) {
  free(c->count);
  free(c->beta);
  free(c->alpha);
}

/* By counting, without the certificate. */
static void check_feasible(const assignment *c) {
  int rows = ch_valid_count(c->valid, c->n);
  for (int i = 0; i < c->e; i++) {
    int load = 0;
    for (int t = 0; t < c->n; t++) load += c->count[t * c->e + i];
    if (c->balanced)
      assert_true(load == rows / c->e || (load == rows / c->e + 1 && rows % c->e));
    else
      assert_int_equal(load, c->k);
  }
  for (int t = 0; t < c->n; t++) {
    int has = 0;
    for (int i = 0; i < c->e; i++) has += c->count[t * c->e + i];
    if (c->valid && !c->valid[t])
      assert_int_equal(has, 0);
    else if (c->balanced)
      assert_int_equal(has, 1);
    else
      assert_true(has <= c->cap);
  }
  assert_int_equal(c->certificate.expert_after, 0);
  assert_int_equal(c->certificate.token_after, 0);
  assert_int_equal(c->certificate.over_cap, 0);
}

/* The formula on the prices that came out, in plain loops. */
static double gap_of(const assignment *c) {
  double bound = 0, value = 0;
  for (int i = 0; i < c->e; i++) bound += c->k * (double)c->beta[i];
  for (int t = 0; t < c->n; t++) {
    if (c->valid && !c->valid[t]) continue;
    bound += c->cap * (double)c->alpha[t];
    for (int i = 0; i < c->e; i++) {
      double s = (double)c->score[t * c->e + i];
      bound += fmax(0, s - (double)c->alpha[t] - (double)c->beta[i]);
      value += c->count[t * c->e + i] * s;
    }
  }
  double size = fmax(fabs(bound), fabs(value));
  return size > 0 ? (bound - value) / size : 0;
}

static void solve_and_check(int kind, int n, int e, int k, int cap, int balanced, const uint8_t *valid, uint32_t seed) {
  real *score = make_scores(kind, n, e, seed);
  assignment c = {.n = n, .e = e, .k = k, .cap = cap, .balanced = balanced, .valid = valid, .score = score};
  run(&c);
  check_feasible(&c);
  double gap = c.certificate.gap;
  if (!(fabs(gap) <= 1e-9))
    fail_msg("%s n=%d e=%d k=%d cap=%d balanced=%d: gap %g", kinds[kind], n, e, k, cap, balanced, gap);
  if (!balanced) {
    double plain = gap_of(&c);
    if (!(fabs(plain) <= 1e-5))
      fail_msg("%s n=%d e=%d k=%d cap=%d: gap %g by formula", kinds[kind], n, e, k, cap, plain);
  }
  done(&c);
  free(score);
}

/* Sizes at random, tight and loose, with and without padding. */
static void many_small_cases(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 4000; seed++) {
    int e = 1 + (int)(12 * uniform(seed, 0)), n = e + (int)(40 * uniform(seed, 1)),
        cap = 1 + (int)(e * uniform(seed, 2));
    uint8_t *valid = calloc((size_t)n, 1);
    for (int t = 0; t < n; t++) valid[t] = uniform(seed, 10 + (uint64_t)t) > 0.2;
    const uint8_t *mask = seed % 3 ? NULL : valid;
    int rows = ch_valid_count(mask, n), most = ch_assign_k(n, rows, e, cap);
    int k = seed % 4 == 0 ? most : seed % 4 == 1 ? 1 : 1 + (int)(most * uniform(seed, 3));
    k = ch_assign_k(k, rows, e, cap);
    solve_and_check((int)(seed % KINDS), n, e, k, cap, seed % 5 == 4, mask, seed);
    free(valid);
  }
}

static void large(void **state) {
  (void)state;
  for (int kind = 0; kind < KINDS; kind++) {
    static const struct {
      int n, e, k, cap, balanced;
    } sizes[] = {
        {4096, 64, 128, 2, 0}, {4096, 64, 128, 3, 0}, {4096, 64, 64, 2, 0}, {4096, 64, 0, 1, 1}, {4096, 64, 1, 1, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      solve_and_check(kind, sizes[i].n, sizes[i].e, sizes[i].k, sizes[i].cap, sizes[i].balanced, NULL, 5);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(many_small_cases),
      cmocka_unit_test(large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
