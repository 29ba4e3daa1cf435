/* Selection, index, dispatch and combine: every variant against the reference, and the laws they keep. */
#include "record_testing.h"
#include "variants.h"

/* Scores that are hard to select from. */
typedef enum { NORMAL, SOFTMAX, COARSE, EQUAL, ONE_HOT, SPECIAL, KINDS } kind;

static real *new_scores(int64_t n, int64_t e, kind kind) {
  static const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, -1e-40f, -1, -NAN, 3.4e38f};
  real *s = test_new_normal(n * e, 2);
  for (int64_t i = 0; i < n * e; i++) {
    if (kind == SOFTMAX) s[i] = expf(0.3f * s[i]) / (real)e;
    if (kind == COARSE) s[i] = rintf(s[i]);
    if (kind == EQUAL) s[i] = 0.25f;
    if (kind == ONE_HOT) s[i] = i % e == (i / e) % e;
    if (kind == SPECIAL) s[i] = special[ch_rng_below(ch_rng_make(3, CH_STREAM_TEST, 0), (uint64_t)i, 10)];
  }
  return s;
}

typedef struct {
  int n, e, pools, k; /* k of the first pool; each further one takes one less */
  int masked;         /* every third token is invalid */
  kind kind;
} selection;

enum { MAX_POOLS = 3 };

static int total_k(const selection *s) {
  int sum = 0;
  for (int p = 0; p < s->pools; p++) sum += s->k - p;
  return sum;
}

/* A number that compares: NaN and the infinities as finite values of their own. */
static real comparable(real x) { return isnan(x) ? -12345 : isinf(x) ? (x > 0 ? 54321 : -54321) : x; }

/* Out: slots, expert_begin, slot_token, cutoff. */
static void run_select(ch_exec *x, const void *context, real *out) {
  const selection *s = context;
  int slots = s->e * total_k(s), k[MAX_POOLS], begin[MAX_POOLS + 1] = {0};
  for (int p = 0; p < s->pools; p++) k[p] = s->k - p, begin[p + 1] = (p + 1) * s->n / s->pools;
  uint8_t *valid = malloc((size_t)s->n);
  for (int t = 0; t < s->n; t++) valid[t] = t % 3 != 1;
  real *score = new_scores(s->n, s->e, s->kind), *cutoff = test_new(s->pools * s->e);
  test_poison(cutoff, s->pools * s->e);
  ch_record r = new_record(s->n, s->e, slots);
  x->ops->select(x, &(ch_select_args){.pools = s->pools,
                                      .pool_begin = begin,
                                      .k = k,
                                      .valid = s->masked ? valid : NULL,
                                      .score = score,
                                      .record = &r,
                                      .cutoff = cutoff});
  *out++ = (real)ch_slots(&r);
  for (int i = 0; i <= s->e; i++) *out++ = (real)r.expert_begin[i];
  for (int i = 0; i < slots; i++) *out++ = (real)r.slot_token[i];
  for (int i = 0; i < s->pools * s->e; i++) *out++ = comparable(cutoff[i]);
  free(valid), free(score), free(cutoff);
  free_record(&r);
}

static void test_select(void **state) {
  static const selection sizes[] = {{1, 1, 1, 1, 0, 0},     {40, 3, 1, 1, 0, 0},   {40, 3, 1, 40, 0, 0},
                                    {100, 33, 1, 12, 1, 0}, {301, 5, 3, 30, 1, 0}, {1000, 40, 2, 50, 0, 0},
                                    {64, 70, 1, 0, 0, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (kind kind = 0; kind < KINDS; kind++) {
      selection s = sizes[i];
      s.kind = kind;
      char what[100];
      snprintf(what, sizeof what, "select n=%d e=%d pools=%d k=%d masked=%d scores %d", s.n, s.e, s.pools, s.k,
               s.masked, kind);
      if (s.k)
        test_variants(what, run_select, &s, TEST_PARTS(1, s.e + 1, s.e * total_k(&s), s.pools * s.e), 0);
      else
        test_variants(what, run_select, &s, TEST_PARTS(1, s.e + 1, s.pools * s.e), 0);
    }
}

/* Selects k of n for every expert from scores that the caller made; the record is the caller's. */
static void select_all(ch_exec *x, ch_record *r, const real *score, int k) {
  x->ops->select(
      x, &(ch_select_args){.pools = 1, .pool_begin = (int[]){0, r->tokens}, .k = &k, .score = score, .record = r});
}

/* Both backends: ties go to lower tokens, k = 1 is argmax, tokens with equal rows are neighbours in rank. */
static void check_select_laws(const char *backend) {
  enum { N = 50, E = 6, K = 9 };
  ch_record r = new_record(N, E, N * E);
  real score[N * E];
  TEST_EXEC(backend, CH_COMPUTE_FP32, 2, {
    for (int i = 0; i < N * E; i++) score[i] = i % E == 5 ? -INFINITY : 0.5f;
    select_all(&x, &r, score, K);
    for (int s = 0; pass_ && s < E * K; s++) assert_int_equal(r.slot_token[s], s % K);
    test_normal(score, N * E, 5);
    for (int i = 0; i < E; i++) score[20 * E + i] = score[10 * E + i]; /* the same token twice */
    int best[E] = {0};
    for (int i = 0; i < N * E; i++)
      if (score[i] > score[best[i % E] * E + i % E]) best[i % E] = i / E;
    select_all(&x, &r, score, 1);
    for (int i = 0; pass_ && i < E; i++) assert_int_equal(r.slot_token[i], best[i]);
    for (int k = 1; k <= N; k++) {
      select_all(&x, &r, score, k);
      for (int i = 0; pass_ && i < E; i++) {
        int first = 0;
        int second = 0;
        for (int s = i * k; s < (i + 1) * k; s++) first |= r.slot_token[s] == 10, second |= r.slot_token[s] == 20;
        assert_true(first >= second);
        for (int s = i * k + 1; s < (i + 1) * k; s++) assert_true(r.slot_token[s] > r.slot_token[s - 1]);
      }
    }
    for (int s = 0; pass_ && s < N * E; s++) assert_int_equal(r.slot_token[s], s % N); /* k = n: everybody */
  });
  free_record(&r);
}

static void test_select_laws(void **state) {
  check_select_laws("reference");
  check_select_laws("cpu");
}

/* Permuting experts permutes what they take. */
static void test_permuted_experts(void **state) {
  enum { N = 333, E = 37, K = 18 };
  real *score = new_scores(N, E, COARSE), *permuted = test_new(N * E);
  for (int i = 0; i < N * E; i++) permuted[i / E * E + (i % E * 5 + 3) % E] = score[i];
  ch_record a = new_record(N, E, K * E), b = new_record(N, E, K * E);
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    select_all(&x, &a, score, K);
    select_all(&x, &b, permuted, K);
  });
  for (int i = 0; i < E; i++)
    assert_memory_equal(a.slot_token + i * K, b.slot_token + (i * 5 + 3) % E * K, K * sizeof(int));
  free(score), free(permuted);
  free_record(&a), free_record(&b);
}

typedef struct {
  int n, e, k, d, gated, out_acc;
} movement;

/* Out: gather, combine, dy, dgate. Some tokens are in no slot, some in several. */
static void run_movement(ch_exec *x, const void *context, real *out) {
  const movement *s = context;
  int64_t slots = (int64_t)s->e * s->k, d = s->d, n = s->n;
  real *score = new_scores(n, s->e, NORMAL), *in = test_new_normal(n * d, 6), *y = test_new_normal(slots * d, 7);
  ch_record r = new_record(s->n, s->e, (int)slots);
  select_all(x, &r, score, s->k);
  x->ops->index(x, &(ch_index_args){&r});
  x->ops->gather(x, &(ch_gather_args){.record = &r, .d = s->d, .x = in, .y = out});
  ch_combine_args a = {
      .record = &r, .d = s->d, .gated = s->gated, .out_acc = s->out_acc, .y = y, .out = out + slots * d};
  a.dout = in, a.dy = a.out + n * d, a.dgate = a.dy + slots * d;
  if (s->out_acc) test_normal(a.out, n * d, 8);
  x->ops->combine(x, &a);
  x->ops->combine_backward(x, &a);
  a.dy = y; /* in place: the same again */
  real *dgate = a.dgate = test_new(slots);
  x->ops->combine_backward(x, &a);
  if (!ch_counting(x)) assert_memory_equal(y, out + slots * d + n * d, (size_t)(slots * d) * sizeof *y);
  if (!ch_counting(x)) assert_memory_equal(dgate, out + 2 * slots * d + n * d, (size_t)slots * sizeof *y);
  free(score), free(in), free(y), free(dgate);
  free_record(&r);
}

static void test_movement(void **state) {
  static const movement sizes[] = {
      {1, 1, 1, 1, 1, 0}, {50, 3, 9, 7, 1, 0}, {50, 3, 9, 7, 0, 1}, {300, 8, 70, 65, 1, 1}, {300, 8, 70, 65, 0, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int64_t n = sizes[i].n, d = sizes[i].d, slots = sizes[i].e * sizes[i].k;
    test_variants("gather, combine", run_movement, &sizes[i], TEST_PARTS(slots * d, n * d, slots * d, slots), 3e-6);
  }
}

/* The index lists every slot once, under its token, ascending. */
static void test_index(void **state) {
  enum { N = 100, E = 7, K = 31 };
  real *score = new_scores(N, E, NORMAL);
  ch_record r = new_record(N, E, E * K);
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    select_all(&x, &r, score, K);
    x.ops->index(&x, &(ch_index_args){&r});
  });
  assert_int_equal(r.token_begin[0], 0);
  assert_int_equal(r.token_begin[N], E * K);
  for (int t = 0; t < N; t++)
    for (int i = r.token_begin[t]; i < r.token_begin[t + 1]; i++) {
      assert_int_equal(r.slot_token[r.token_slot[i]], t);
      assert_true(i == r.token_begin[t] || r.token_slot[i] > r.token_slot[i - 1]);
    }
  free(score);
  free_record(&r);
}

/* A record without slots: nothing is read, combine still sets or keeps its output. */
static void test_no_slots(void **state) {
  enum { N = 3, D = 5 };
  ch_record r = new_record(N, 2, 0);
  real out[N * D], kept[N * D];
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    x.ops->index(&x, &(ch_index_args){&r});
    x.ops->gather(&x, &(ch_gather_args){.record = &r, .d = D});
    test_poison(out, N * D);
    test_normal(kept, N * D, 9);
    x.ops->combine(&x, &(ch_combine_args){.record = &r, .d = D, .gated = 1, .out = out});
    x.ops->combine(&x, &(ch_combine_args){.record = &r, .d = D, .gated = 1, .out = kept, .out_acc = 1});
    x.ops->combine_backward(&x, &(ch_combine_args){.record = &r, .d = D, .gated = 1});
  });
  real *before = test_new_normal(N * D, 9);
  for (int i = 0; i < N * D; i++) assert_true(out[i] == 0 && kept[i] == before[i]);
  free(before);
  free_record(&r);
}

/* --- exchange --- */

typedef struct {
  int rows, columns, of; /* rows listed, of so many */
  kind kind;
} exchange_case;

/* Out: costs and carriers, infinity as a number. A third of the entries are closed. */
static void run_exchange(ch_exec *x, const void *context, real *out) {
  const exchange_case *c = context;
  int64_t ld = (c->columns + 15) / 16 * 16;
  real *score = new_scores(c->of, ld, c->kind), *open = test_new(c->of * ld);
  int *row = malloc(sizeof *row * (size_t)c->rows + 1), *carrier = malloc(sizeof *carrier * (size_t)ld);
  double *cost = malloc(sizeof *cost * (size_t)ld);
  for (int64_t j = 0; j < c->of * ld; j++) open[j] = j % 3 == 1 || j % ld >= c->columns ? (real)-INFINITY : score[j];
  for (int i = 0; i < c->rows; i++) row[i] = (7 * i + 3) % c->of;
  x->ops->exchange(x, &(ch_exchange_args){.rows = c->rows,
                                          .from = c->columns / 2,
                                          .row = row,
                                          .ld = ld,
                                          .score = score,
                                          .open = open,
                                          .cost = cost,
                                          .carrier = carrier});
  for (int64_t j = 0; j < ld && !ch_counting(x); j++) {
    *out++ = comparable((real)cost[j]);
    *out++ = (real)carrier[j];
  }
  free(score), free(open), free(row), free(carrier), free(cost);
}

static void test_exchange(void **state) {
  static const exchange_case sizes[] = {
      {0, 5, 9, NORMAL}, {1, 1, 1, NORMAL}, {37, 65, 100, NORMAL}, {64, 33, 64, NORMAL}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (kind kind = 0; kind < SPECIAL; kind++) {
      exchange_case c = sizes[i];
      c.kind = kind;
      test_variants_of_cpu("exchange", run_exchange, &c, TEST_PARTS(2 * ((c.columns + 15) / 16 * 16)), 0);
    }
}

TEST_MAIN(NULL, NULL, test_exchange, test_select, test_select_laws, test_permuted_experts, test_movement, test_index,
          test_no_slots)
