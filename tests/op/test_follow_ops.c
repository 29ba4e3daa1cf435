/* Ops whose thresholds or prices follow sequences, from their earlier tokens alone: in one call or in several, the
 * history taken along; each sequence against its own loop. */
#include "record_testing.h"

enum { N = 53, E = 6, B = 3, POSITIONS = 40 };

static const int length[B] = {30, 0, N - 30};
static uint8_t mask[N];
static real *score;

/* The rows of two calls: `first` tokens of sequence 0, and then the rest. */
typedef struct {
  int begin[2][B + 1], past[2][B];
} cut;

static cut cut_at(int first) {
  return (cut){{{0, first, first, first}, {0, 30 - first, 30 - first, N - first}}, {{0}, {first, 0, 0}}};
}

static int set_up(void **state) {
  score = test_new_normal(N * E, 2);
  for (int t = 0; t < N; t++) mask[t] = t % 6 != 1;
  for (int i = 0; i < E; i++) score[4 * E + i] = (real)0.5; /* ties */
  return 0;
}

static int tear_down(void **state) {
  free(score);
  return 0;
}

static void test_follow(void **state) {
  const real more = (real)1.05, less = (real)0.99, threshold[E] = {(real)0.1, 1, (real)0.5, 0, (real)-0.3, 2};
  real want[N * E], got[N * E], history[B * POSITIONS * E];
  for (int b = 0, t = 0; b < B; t += length[b++])
    for (int i = 0; i < E; i++) {
      real cutoff = threshold[i];
      for (int p = t; p < t + length[b]; p++) {
        want[p * E + i] = cutoff;
        if (mask[p] && cutoff > 0) cutoff *= score[p * E + i] >= cutoff ? more : less;
      }
    }
  for (int first = 0; first <= 30; first += 10)
    EVERYWHERE({
      const cut c = cut_at(first);
      test_poison(got, N * E);
      for (int call = 0; call < 2; call++)
        x.ops->follow(&x, &(ch_follow_args){.n = call ? N - first : first,
                                            .e = E,
                                            .sequences = B,
                                            .positions = POSITIONS,
                                            .begin = c.begin[call],
                                            .past = c.past[call],
                                            .more = more,
                                            .less = less,
                                            .valid = mask + (call ? first : 0),
                                            .score = score + (call ? first * E : 0),
                                            .threshold = threshold,
                                            .history = history,
                                            .cutoff = got + (call ? first * E : 0)});
      if (pass_) assert_memory_equal(got, want, sizeof got);
    });
}

/* One by one: the first of the largest that are left. */
static void naive_best(int t, int count, const real *price, int *choice) {
  uint8_t used[E] = {0};
  for (int j = 0; j < count; j++) {
    int best = -1;
    for (int i = 0; i < E; i++)
      if (!used[i] && (best < 0 || score[t * E + i] - price[i] > score[t * E + best] - price[best])) best = i;
    used[choice[j] = best] = 1;
  }
}

static void test_best_following(void **state) {
  enum { K = 3 };
  static const real prices[E] = {0, 1, (real)-0.5, 0, (real)0.25, 2}, more = (real)0.75, less = (real)-0.25;
  int want[N * K], choice[N * K];
  real value[N * K], history[B * POSITIONS * E], last[E];
  for (int b = 0, t = 0; b < B; t += length[b++]) {
    real price[E];
    memcpy(price, prices, sizeof price);
    for (int p = t; p < t + length[b]; p++) {
      naive_best(p, K, price, want + p * K);
      for (int i = 0; i < E && mask[p]; i++) last[i] = price[i] + less;
      for (int j = 0; j < K && mask[p]; j++) last[want[p * K + j]] = price[want[p * K + j]] + more;
      for (int j = 0; j < K && !mask[p]; j++) want[p * K + j] = -1;
      if (mask[p]) memcpy(price, last, sizeof price);
    }
  }
  for (int first = 0; first <= 30; first += 10) {
    EVERYWHERE({
      const cut c = cut_at(first);
      memset(choice, 0xee, sizeof choice);
      for (int call = 0, t = 0; call < 2; t += call++ ? 0 : first)
        x.ops->best_following(&x, &(ch_best_following_args){.n = call ? N - first : first,
                                                            .e = E,
                                                            .count = K,
                                                            .sequences = B,
                                                            .positions = POSITIONS,
                                                            .begin = c.begin[call],
                                                            .past = c.past[call],
                                                            .more = more,
                                                            .less = less,
                                                            .valid = mask + t,
                                                            .score = score + t * E,
                                                            .price = prices,
                                                            .history = history,
                                                            .choice = choice + t * K,
                                                            .value = value + t * K});
      if (pass_) assert_memory_equal(choice, want, sizeof want);
    });
    assert_memory_equal(history + ((B - 1) * POSITIONS + length[B - 1] - 1) * E, last, sizeof last);
  }
}

/* With null experts a token chooses as `best` lets it at the same prices, and null choices move none; so does one with
 * scores of NaN. */
static void test_best_following_with_nulls(void **state) {
  enum { T = 60, K = 3, NULLS = 2 };
  const real more = (real)0.0625, less = (real)-0.03125;
  int choice[T * K], alone[K], nulls = 0;
  real value[T * K], history[T * E], low[T * E], price[E] = {0};
  for (int k = 0; k < T * E; k++) low[k] = (real)ch_rng_uniform(ch_rng_make(4, CH_STREAM_TEST, 12), (uint64_t)k) / 4;
  for (int k = T / 3 * E; k < T * E; k++)
    if (ch_rng_below(ch_rng_make(4, CH_STREAM_TEST, 13), (uint64_t)k, 3) == 0) low[k] = NAN;
  EVERYWHERE({
    memset(choice, 0xee, sizeof choice);
    x.ops->best_following(&x, &(ch_best_following_args){.n = T,
                                                        .e = E,
                                                        .count = K,
                                                        .nulls = NULLS,
                                                        .sequences = 1,
                                                        .positions = T,
                                                        .begin = (const int[]){0, T},
                                                        .past = (const int[]){0},
                                                        .more = more,
                                                        .less = less,
                                                        .score = low,
                                                        .price = price,
                                                        .history = history,
                                                        .choice = choice,
                                                        .value = value});
  });
  for (int t = 0; t < T; t++) {
    TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
      x.ops->best(&x, &(ch_best_args){.n = 1,
                                      .e = E,
                                      .count = K,
                                      .nulls = NULLS,
                                      .score = low + t * E,
                                      .shift = price,
                                      .choice = alone,
                                      .value = value});
    });
    assert_memory_equal(alone, choice + t * K, sizeof alone);
    for (int i = 0; i < E; i++) price[i] += less;
    for (int j = 0; j < K; j++)
      if (alone[j] >= 0)
        price[alone[j]] += more - less;
      else
        nulls++;
    assert_memory_equal(price, history + t * E, sizeof price);
  }
  assert_in_range(nulls, 1, T * K - 1);
}

TEST_MAIN(set_up, tear_down, test_follow, test_best_following, test_best_following_with_nulls)
