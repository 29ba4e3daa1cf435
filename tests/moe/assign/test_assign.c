/* Assignments: feasible always, proved optimal by their certificates, the same for every number of threads. */
#include <float.h>

#include "moe/assign/assign.h"
#include "moe/route_stats.h"
#include "testing.h"

enum { KINDS = 12 };
static const char *const kinds[KINDS] = {"narrow",   "normal", "peaky", "clustered", "equal rows", "one-hot",
                                         "constant", "zeros",  "tiny",  "huge",      "duplicates", "logits"};

typedef struct {
  int n, e, k, cap, balanced, solver;
  int iterations, threads;
  double lambda;
  const uint8_t *valid;
  const real *score;
  /* out */
  uint8_t *count; /* [n,e] 1 where taken */
  real *beta, *alpha;
  choir_certificate certificate;
} assignment;

static double uniform(uint32_t seed, uint64_t i) { return ch_rng_uniform(ch_rng_make(seed, CH_STREAM_TEST, 71), i); }

static void softmax_rows(real *s, int n, int e) {
  for (int t = 0; t < n; t++) {
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < e; i++) max = fmax(max, (double)s[t * e + i]);
    for (int i = 0; i < e; i++) sum += exp((double)s[t * e + i] - max);
    for (int i = 0; i < e; i++) s[t * e + i] = (real)(exp((double)s[t * e + i] - max) / sum);
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
    ch_assign(&x, &(ch_assign_args){.n = c->n,
                                    .e = c->e,
                                    .pools = 1,
                                    .largest = c->n,
                                    .pool_begin = (int[]){0, c->n},
                                    .k = &c->k,
                                    .cap = c->cap,
                                    .balanced = c->balanced,
                                    .solver = c->solver,
                                    .lambda = c->lambda ? c->lambda : 0.001,
                                    .iterations = c->iterations ? c->iterations : 100,
                                    .stages = 1,
                                    .valid = c->valid,
                                    .score = c->score,
                                    .assigned = c->count,
                                    .beta = c->beta,
                                    .alpha = c->alpha,
                                    .certificate = &c->certificate});
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
  for (uint32_t seed = 0; seed < 4000; seed++) {
    int e = 1 + (int)(12 * uniform(seed, 0)), n = e + (int)(40 * uniform(seed, 1)),
        cap = 1 + (int)(e * uniform(seed, 2));
    uint8_t *valid = calloc((size_t)n, 1);
    for (int t = 0; t < n; t++) valid[t] = uniform(seed, 10 + (uint64_t)t) > 0.2;
    const uint8_t *mask = seed % 3 ? NULL : valid;
    int rows = ch_valid_count(mask, n), max = ch_assign_k(n, rows, e, cap);
    int k = seed % 4 == 0 ? max : seed % 4 == 1 ? 1 : 1 + (int)(max * uniform(seed, 3));
    k = ch_assign_k(k, rows, e, cap);
    solve_and_check((int)(seed % KINDS), n, e, k, cap, seed % 5 == 4, mask, seed);
    free(valid);
  }
}

static void large(void **state) {
  for (int kind = 0; kind < KINDS; kind++) {
    static const struct {
      int n, e, k, cap, balanced;
    } sizes[] = {{4096, 64, 128, 2, 0}, {4096, 64, 128, 3, 0}, {4096, 64, 64, 2, 0},
                 {4096, 64, 0, 1, 1},   {4096, 64, 1, 1, 0},   {16384, 8, 4096, 3, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      solve_and_check(kind, sizes[i].n, sizes[i].e, sizes[i].k, sizes[i].cap, sizes[i].balanced, NULL, 5);
  }
}

/* A cap that binds nobody: op select's own choice, ties and all, whichever solver is asked. */
static void without_a_cap_it_is_expert_choice(void **state) {
  enum { N = 200, E = 7, K = 37 };
  for (int kind = 0; kind < KINDS; kind++)
    for (int solver = 0; solver < 2; solver++) {
      real *score = make_scores(kind, N, E, 3);
      uint8_t chosen[N * E] = {0};
      int k = K;
      assignment c = {.n = N, .e = E, .k = K, .cap = E + solver, .solver = solver, .score = score};
      run(&c);
      TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, {
        ch_record r;
        ch_record_alloc(&x.tape, &r, N, E, K * E);
        x.ops->select(
            &x, &(ch_select_args){.pools = 1, .pool_begin = (int[]){0, N}, .k = &k, .score = score, .record = &r});
        for (int s = 0; s < K * E && pass_; s++) chosen[r.slot_token[s] * E + s / K]++;
      });
      assert_memory_equal(chosen, c.count, sizeof chosen);
      assert_true(fabs(c.certificate.gap) <= 1e-12);
      done(&c);
      free(score);
    }
}

static void threads_change_nothing(void **state) {
  for (int solver = 0; solver < 2; solver++)
    for (int kind = 1; kind < 5; kind++) {
      real *score = make_scores(kind, 1000, 16, 9);
      assignment one = {.n = 1000, .e = 16, .k = 125, .cap = 2, .solver = solver, .score = score}, three = one;
      three.threads = 3;
      run(&one);
      run(&three);
      assert_memory_equal(one.count, three.count, 16000);
      assert_memory_equal(one.beta, three.beta, sizeof(real) * 16);
      assert_memory_equal(one.alpha, three.alpha, sizeof(real) * 1000);
      assert_memory_equal(&one.certificate, &three.certificate, sizeof one.certificate);
      done(&one);
      done(&three);
      free(score);
    }
}

/* Whatever dykstra leaves undone is said: violations by plain counting, the gap by the formula. */
static void dykstra_says_what_it_left(void **state) {
  for (uint32_t seed = 0; seed < 300; seed++) {
    int n = 20 + (int)(200 * uniform(seed, 0)), e = 3 + (int)(10 * uniform(seed, 1)), cap = 1 + (int)seed % 3;
    real *score = make_scores((int)seed % (KINDS - 3), n, e, seed);
    assignment c = {.n = n, .e = e, .cap = cap < e ? cap : e - 1, .solver = CH_SOLVER_DYKSTRA, .score = score};
    c.iterations = 1 + (int)(50 * uniform(seed, 3));
    c.k = ch_assign_k(1 + (int)(n * uniform(seed, 2)), n, e, c.cap);
    if (c.k) {
      int over = 0, max = 0;
      run(&c);
      for (int i = 0; i < e; i++) {
        int load = 0;
        for (int t = 0; t < n; t++) load += c.count[t * e + i];
        assert_int_equal(load, c.k);
      }
      for (int t = 0; t < n; t++) {
        int has = 0;
        for (int i = 0; i < e; i++) has += c.count[t * e + i];
        over += has > c.cap;
        if (has - c.cap > max) max = has - c.cap;
      }
      assert_int_equal(c.certificate.over_cap, over);
      assert_int_equal(c.certificate.token_after, max);
      assert_int_equal(c.certificate.expert_after, 0);
      assert_true(c.certificate.iterations >= 1 && c.certificate.iterations <= c.iterations);
      assert_true(c.certificate.expert_before >= 0 && c.certificate.token_before >= 0);
      assert_true(fabs(c.certificate.gap - gap_of(&c)) <= 1e-5);
      if (!over) assert_true(c.certificate.gap >= -1e-9); /* nothing beats the bound */
      done(&c);
    }
    free(score);
  }
}

/* With a wide lambda every constraint holds, and it ends by itself. */
static void dykstra_converges(void **state) {
  real *score = make_scores(1, 300, 8, 2);
  for (int cap = 1; cap < 4; cap++) {
    assignment c = {.n = 300, .e = 8, .k = 37 * cap, .cap = cap, .solver = CH_SOLVER_DYKSTRA, .score = score};
    c.lambda = 0.05;
    c.iterations = 2000;
    run(&c);
    assert_true(c.certificate.expert_before < 1e-3 * c.k && c.certificate.token_before < 1e-3);
    assert_true(c.certificate.iterations > 2 && c.certificate.iterations < 2000);
    done(&c);
  }
  free(score);
}

/* A token with score -infinity is taken only if others run out; NaN and infinities neither crash nor break a
 * constraint. */
static void scores_that_are_no_numbers(void **state) {
  enum { N = 60, E = 6, K = 20 };
  real *score = test_new_normal(N * E, 4);
  for (int balanced = 0; balanced < 2; balanced++) {
    for (int t = 0; t < N; t++) score[t * E + t % E] = (real)-INFINITY;
    assignment c = {.n = N, .e = E, .k = K, .cap = 2, .balanced = balanced, .score = score};
    run(&c);
    check_feasible(&c);
    for (int t = 0; t < N; t++) assert_int_equal(c.count[t * E + t % E], 0);
    done(&c);
  }
  for (int round = 0; round < 60; round++) {
    static const real special[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN, 0, 1};
    ch_rng rng = ch_rng_make(5, CH_STREAM_TEST, (uint32_t)round);
    for (int j = 0; j < N * E; j++) score[j] = special[ch_rng_below(rng, (uint64_t)j, round % 3 ? 8 : 1)];
    assignment c = {.n = N, .e = E, .k = K, .cap = 2, .balanced = round % 2, .score = score};
    run(&c);
    check_feasible(&c);
    done(&c);
    c.solver = CH_SOLVER_DYKSTRA;
    c.balanced = 0;
    run(&c);
    done(&c);
  }
  free(score);
}

/* Several pools, run on run and interleaved: each is the problem it would be alone. */
static void pools_are_problems_of_their_own(void **state) {
  enum { N = 90, E = 5, POOLS = 3, SIZE = N / POOLS };
  real *score = make_scores(1, N, E, 12), *alone = test_new(SIZE * E);
  for (int interleaved = 0; interleaved < 2; interleaved++) {
    const int begin[] = {0, SIZE, 2 * SIZE, N}, k[] = {12, 7, 1};
    int order[N];
    uint8_t count[N * E];
    choir_certificate certificate, sum = {0};
    real beta[POOLS * E];
    for (int j = 0; j < N; j++) order[j] = interleaved ? j % SIZE * POOLS + j / SIZE : j;
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
      ch_assign(&x, &(ch_assign_args){.n = N,
                                      .e = E,
                                      .pools = POOLS,
                                      .largest = SIZE,
                                      .pool_begin = begin,
                                      .order = interleaved ? order : NULL,
                                      .k = k,
                                      .cap = 2,
                                      .score = score,
                                      .assigned = count,
                                      .beta = beta,
                                      .certificate = &certificate});
    });
    for (int p = 0; p < POOLS; p++) {
      for (int j = 0; j < SIZE; j++) memcpy(alone + j * E, score + order[p * SIZE + j] * E, sizeof(real) * E);
      assignment c = {.n = SIZE, .e = E, .k = k[p], .cap = 2, .score = alone};
      run(&c);
      for (int j = 0; j < SIZE; j++) assert_memory_equal(c.count + j * E, count + order[p * SIZE + j] * E, E);
      assert_memory_equal(c.beta, beta + p * E, sizeof(real) * E);
      ch_certificate_add(&sum, &c.certificate);
      done(&c);
    }
    assert_memory_equal(&sum, &certificate, sizeof sum);
  }
  free(score);
  free(alone);
}

TEST_MAIN(NULL, NULL, many_small_cases, large, without_a_cap_it_is_expert_choice, threads_change_nothing,
          scores_that_are_no_numbers, pools_are_problems_of_their_own, dykstra_says_what_it_left, dykstra_converges)
