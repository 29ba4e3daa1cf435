/* Drawing tokens: laws that hold for any logits, and frequencies. */
#include "infer/sample.h"
#include "testing.h"

enum { V = 40, DRAWS = 40000 };

static void softmax(const float *logits, double temperature, double *p) {
  double max = -INFINITY, sum = 0;
  for (int v = 0; v < V; v++) max = fmax(max, (double)logits[v]);
  for (int v = 0; v < V; v++) sum += p[v] = exp(((double)logits[v] - max) / temperature);
  for (int v = 0; v < V; v++) p[v] /= sum;
}

static double uniform(uint32_t sub, int i) { return ch_rng_uniform(ch_rng_make(3, CH_STREAM_TEST, sub), (uint64_t)i); }

/* How often each token comes. */
static void count_draws(const ch_sampling *how, const float *logits, int *count) {
  ch_candidate buffer[V];
  memset(count, 0, V * sizeof *count);
  for (int i = 0; i < DRAWS; i++) {
    int32_t token = ch_sample(how, logits, V, uniform(1, i), buffer);
    assert_true(token >= 0 && token < V);
    count[token]++;
  }
}

/* Chi-square of the counts under p, which may have zeros: those tokens must not come. The bound is six standard
 * deviations above the mean of as many degrees of freedom. */
static void expect_frequencies(const int *count, const double *p) {
  double chi = 0, freedom = -1;
  for (int v = 0; v < V; v++) {
    if (p[v] <= 0) {
      if (count[v]) fail_msg("token %d came %d times", v, count[v]);
      continue;
    }
    chi += (count[v] - DRAWS * p[v]) * (count[v] - DRAWS * p[v]) / (DRAWS * p[v]);
    freedom++;
  }
  if (!(chi < freedom + 6 * sqrt(2 * freedom + 1))) fail_msg("chi-square %g with %g degrees of freedom", chi, freedom);
}

/* Leaves the k largest of p, then the fewest of them that reach `share`, and divides by the sum. */
static void restrict_to(double *p, int k, double share) {
  double kept[V] = {0}, sum = 0, all = 0;
  for (int round = 0; round < 2; round++) {
    memset(kept, 0, sizeof kept);
    double reached = 0, total = round ? all : 1;
    for (int i = 0; i < (k ? k : V) && (!round || reached < share * total); i++) {
      int best = -1;
      for (int v = 0; v < V; v++)
        if (kept[v] == 0 && (best < 0 || p[v] > p[best])) best = v;
      reached += kept[best] = p[best];
    }
    all = sum = reached;
  }
  for (int v = 0; v < V; v++) p[v] = kept[v] / sum;
}

static void frequencies(void **state) {
  static const ch_sampling hows[] = {{1, 0, 1},      {0.5, 0, 1}, {2, 0, 1},      {1, 5, 1},
                                     {1, V, 1},      {1, 0, 0.6}, {1, 0, 0.05},   {100, 0, 0.2},
                                     {0.7, 12, 0.8}, {3, 2, 0.9}, {1, 100, 0.999}};
  float logits[V];
  for (uint32_t sub = 0; sub < 3; sub++) {
    test_normal(logits, V, sub);
    logits[7] = -INFINITY; /* never comes */
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++) {
      double p[V];
      int count[V];
      softmax(logits, hows[i].temperature, p);
      restrict_to(p, hows[i].top_k < V ? hows[i].top_k : 0, hows[i].top_p);
      count_draws(&hows[i], logits, count);
      expect_frequencies(count, p);
    }
  }
}

/* top_k of 1, temperature 0 and a very small one, and top_p near 0 are all the likeliest token; ties to the lower id.
 */
static void greedy(void **state) {
  static const ch_sampling hows[] = {{0, 0, 1}, {1, 1, 1}, {1e-6, 0, 1}, {1, 0, 1e-9}, {0, 7, 0.3}, {100, 1, 1}};
  ch_candidate buffer[V];
  float logits[V];
  for (int i = 0; i < 200; i++) {
    test_normal(logits, V, (uint32_t)i);
    int best = 0;
    if (i % 2) logits[30] = logits[11] = 9;
    for (int v = 0; v < V; v++)
      if (logits[v] > logits[best]) best = v;
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
      if (i % 2 && hows[h].temperature > 0 && hows[h].top_k == 0 && hows[h].top_p == 1) continue; /* a fair coin */
      assert_int_equal(ch_sample(&hows[h], logits, V, uniform(2, i), buffer), best);
    }
  }
}

/* Equal logits: top_k and top_p keep the lower ids. */
static void ties(void **state) {
  ch_candidate buffer[V];
  float logits[V] = {0};
  for (int i = 0; i < 300; i++) {
    assert_in_range(ch_sample(&(ch_sampling){1, 3, 1}, logits, V, uniform(4, i), buffer), 0, 2);
    assert_in_range(ch_sample(&(ch_sampling){1, 0, 0.25}, logits, V, uniform(4, i), buffer), 0, V / 4 - 1);
  }
}

static void refuses_what_is_no_number(void **state) {
  ch_candidate buffer[V];
  float logits[V] = {0};
  for (int kind = 0; kind < 3; kind++) {
    const ch_sampling how = {kind ? 1 : 0, 0, 1};
    logits[5] = NAN;
    assert_int_equal(ch_sample(&how, logits, V, 0.5, buffer), -1);
    logits[5] = INFINITY;
    assert_int_equal(ch_sample(&how, logits, V, 0.5, buffer), -1);
    logits[5] = 0;
  }
  logits[0] = -INFINITY; /* has no share, not even of the least draw */
  assert_int_equal(ch_sample(&(ch_sampling){1, 0, 1}, logits, V, 0, buffer), 1);
  for (int v = 0; v < V; v++) logits[v] = -INFINITY;
  assert_int_equal(ch_sample(&(ch_sampling){1, 0, 1}, logits, V, 0.5, buffer), -1);
}

TEST_MAIN(NULL, NULL, frequencies, greedy, ties, refuses_what_is_no_number)
