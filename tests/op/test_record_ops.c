/* Ops around the routing record and what routers keep: thresholds, marks, parts, tallies, means, prices, centroids,
 * jitter, against naive loops. */
#include "record_testing.h"

enum { N = 53, E = 6, D = 9 };

static uint8_t mask[N];

static int set_up(void **state) {
  for (int t = 0; t < N; t++) mask[t] = t % 6 != 1;
  return 0;
}

/* keep: [N,E] marks of about a third of all pairs. */
static void some_marks(uint8_t *keep, uint32_t sub) {
  for (int at = 0; at < N * E; at++)
    keep[at] = ch_rng_below(ch_rng_make(6, CH_STREAM_TEST, sub), (uint64_t)at, 3) == 0 && mask[at / E];
}

static void test_threshold(void **state) {
  real *score = test_new_normal(N * E, 2), threshold[E] = {0, (real)-0.5, 1, 0, (real)0.3, -9};
  for (int cap = 0; cap <= 3; cap++)
    for (int masked = 0; masked < 2; masked++) {
      uint8_t keep[N * E];
      EVERYWHERE({
        memset(keep, 0xff, sizeof keep);
        x.ops->threshold(&x, &(ch_threshold_args){.n = N,
                                                  .e = E,
                                                  .cap = cap,
                                                  .valid = masked ? mask : NULL,
                                                  .score = score,
                                                  .threshold = threshold,
                                                  .keep = keep});
      });
      for (int t = 0; t < N; t++)
        for (int i = 0; i < E; i++) {
          real own = score[t * E + i] - threshold[i];
          int better = 0; /* experts that pass, by a larger margin or by the same and a lower number */
          for (int j = 0; j < E; j++) {
            real other = score[t * E + j] - threshold[j];
            better += other >= 0 && (other > own || (other == own && j < i));
          }
          int want = own >= 0 && (!cap || better < cap) && (!masked || mask[t]);
          assert_int_equal(keep[t * E + i], want);
        }
    }
  free(score);
}

static void test_collect(void **state) {
  uint8_t keep[N * E];
  int demand[E];
  ch_record r = new_record(N, E, N * E), want = new_record(N, E, N * E);
  some_marks(keep, 1);
  record_from(&want, keep);
  EVERYWHERE({
    poison_record(&r);
    x.ops->collect(&x, &(ch_collect_args){.keep = keep, .record = &r});
    if (pass_) same_slots(&r, &want);
    x.ops->loads(&x, &(ch_loads_args){.record = &want, .demand = demand});
  });
  for (int i = 0; i < E; i++) assert_int_equal(demand[i], want.expert_begin[i + 1] - want.expert_begin[i]);
  free_record(&r), free_record(&want);
}

/* Pools as runs, or of every stride-th token. */
typedef struct {
  int n, e, pools, stride;
} pooling;

static int pool_of(const pooling *p, int t) { return p->stride ? t % p->stride : (int)((int64_t)t * p->pools / p->n); }

/* The naive selection of k[pool] tokens: marks, and each expert's last score. Every sixth token is not valid. */
static void select_naively(const pooling *p, const int *k, const real *score, uint8_t *keep, real *cutoff) {
  for (int i = 0; i < p->pools * p->e; i++) cutoff[i] = INFINITY;
  for (int t = 0; t < p->n; t++)
    for (int i = 0; i < p->e; i++) {
      int rank = 0, pool = pool_of(p, t), valid = t % 6 != 1;
      real own = score[t * p->e + i];
      for (int s = 0; s < p->n; s++) {
        real other = score[s * p->e + i];
        rank += pool_of(p, s) == pool && s % 6 != 1 && (other > own || (other == own && s < t));
      }
      keep[t * p->e + i] = valid && rank < k[pool];
      if (valid && rank == k[pool] - 1) cutoff[pool * p->e + i] = own;
    }
}

/* On a device, several tiles of tokens and of experts, and more pools than it takes at a time; many scores are equal.
 */
static void test_select_from_pools(void **state) {
  static const pooling poolings[] = {{N, E, 5, 5}, {1100, 34, 2, 0}, {400, 34, 65, 65}};
  for (size_t c = 0; c < sizeof poolings / sizeof *poolings; c++) {
    const pooling *p = &poolings[c];
    int cells = p->n * p->e, begun = 0, *begin = calloc((size_t)p->pools + 1, sizeof *begin), k[65];
    real *score = test_new_normal(cells, 4), *cutoff = test_new(p->pools * p->e), *wanted = test_new(p->pools * p->e);
    uint8_t *keep = malloc((size_t)cells), *valid = malloc((size_t)p->n);
    ch_record r = new_record(p->n, p->e, cells), want = new_record(p->n, p->e, cells);
    for (int i = 0; i < cells; i++)
      if (i % p->e % 3) score[i] = rintf(score[i]);
    for (int t = 0; t < p->n; t++) valid[t] = t % 6 != 1, begin[pool_of(p, t) + 1]++;
    for (int i = 0; i < p->pools; i++) k[i] = begin[i + 1] * (i % 4) / 5, begin[i + 1] += begin[i]; /* of some none */
    if (!p->stride) k[0] = 100;
    select_naively(p, k, score, keep, wanted);
    record_from(&want, keep);
    for (int backend = 0; backend < 2; backend++)
      TEST_EXEC(backend ? "cpu" : "reference", CH_COMPUTE_FP32, 2, {
        poison_record(&r);
        begun = 0;
        test_poison(cutoff, p->pools * p->e);
        x.ops->select(&x, &(ch_select_args){.pools = p->pools,
                                            .pool_begin = begin,
                                            .k = k,
                                            .stride = p->stride,
                                            .valid = valid,
                                            .score = score,
                                            .record = &r,
                                            .cutoff = cutoff});
        if (pass_) same_slots(&r, &want);
        x.ops->index(&x, &(ch_index_args){&r});
        for (int at = 0; pass_ && at < cells; at++)
          begun += keep[at], assert_true(at % p->e < p->e - 1 || r.token_begin[at / p->e + 1] == begun);
        for (int i = 0; pass_ && i < p->pools * p->e; i++) assert_true(cutoff[i] == wanted[i]);
      });
    free_record(&r), free_record(&want);
    free(score), free(cutoff), free(wanted), free(keep), free(valid), free(begin);
  }
}

/* least and most are k best of every expert; the result is between them. */
static void test_within(void **state) {
  enum { MIN = 3, MAX = 12 };
  real *score = test_new_normal(N * E, 5), threshold[E] = {0, 1, 3, -3, (real)0.7, (real)-0.2}, cutoff[E];
  uint8_t few[N * E] = {0}, many[N * E] = {0}, keep[N * E];
  int demand[E], asked[E] = {0}, refused = 0;
  int64_t dropped = -1;
  ch_record min = new_record(N, E, E * MAX), max = new_record(N, E, E * MAX), r = new_record(N, E, E * MAX),
            want = new_record(N, E, E * MAX);
  for (int i = 0; i < E; i++) {
    int held = 0;
    for (int t = 0; t < N; t++) {
      int rank = 0, at = t * E + i;
      for (int s = 0; s < N; s++) rank += mask[s] && score[s * E + i] > score[at];
      few[at] = mask[t] && rank < MIN;
      many[at] = mask[t] && rank < MAX;
      if (few[at] && rank == MIN - 1) cutoff[i] = score[at];
      keep[at] = few[at] || (many[at] && score[at] >= threshold[i]);
      held += keep[at];
      asked[i] += mask[t] && score[at] >= threshold[i];
    }
    if (asked[i] > held) refused += asked[i] - held;
  }
  record_from(&min, few), record_from(&max, many), record_from(&want, keep);
  EVERYWHERE({
    poison_record(&r);
    x.ops->within(&x, &(ch_within_args){.min = &min,
                                        .max = &max,
                                        .min_cutoff = cutoff,
                                        .valid = mask,
                                        .score = score,
                                        .threshold = threshold,
                                        .record = &r,
                                        .demand = demand,
                                        .dropped = &dropped});
    if (pass_) same_slots(&r, &want);
  });
  assert_memory_equal(demand, asked, sizeof demand);
  assert_int_equal(dropped, refused);
  assert_true(refused > 0);
  free_record(&min), free_record(&max), free_record(&r), free_record(&want), free(score);
}

static void test_part_and_tally(void **state) {
  enum { BEGIN = 11, END = 30 };
  uint8_t keep[N * E], some[N * E] = {0};
  ch_record all = new_record(N, E, N * E), part = new_record(END - BEGIN, E, N * E),
            want = new_record(END - BEGIN, E, N * E);
  some_marks(keep, 2);
  record_from(&all, keep);
  memcpy(some, keep + BEGIN * E, (size_t)(END - BEGIN) * E);
  record_from(&want, some);
  const int demand[E] = {9, 8, 7, 6, 5, 4};
  const double aux = 1.5;
  const int64_t dropped = 77;
  double sums[3], gates = 0, squares = 0, valid = 0;
  real lse[N];
  int64_t counts[3 * E + 2], histogram[E + 1] = {0};
  test_normal(lse, N, 5);
  for (int t = 0; t < N; t++) valid += mask[t], squares += mask[t] ? (double)lse[t] * (double)lse[t] : 0;
  EVERYWHERE({
    poison_record(&part);
    x.ops->part(&x, &(ch_part_args){.all = &all, .begin = BEGIN, .end = END, .part = &part});
    if (pass_) same_slots(&part, &want);
    x.ops->index(&x, &(ch_index_args){.record = &all});
    memset(counts, 0xff, sizeof counts);
    x.ops->tally(&x, &(ch_tally_args){.record = &all,
                                      .valid = mask,
                                      .aux_loss = &aux,
                                      .dropped = &dropped,
                                      .demand = demand,
                                      .lse = lse,
                                      .sums = sums,
                                      .counts = counts});
  });
  for (int i = 0, at = 0; i < E; i++)
    for (int s = all.expert_begin[i]; s < all.expert_begin[i + 1]; s++) {
      gates += (double)all.slot_gate[s];
      if (all.slot_token[s] < BEGIN || all.slot_token[s] >= END) continue;
      assert_true(part.slot_gate[at++] == all.slot_gate[s]);
    }
  for (int t = 0; t < N; t++) {
    int held = 0;
    for (int i = 0; i < E; i++) held += keep[t * E + i];
    histogram[held] += mask[t];
  }
  assert_true(sums[0] == aux && sums[1] == gates);
  assert_true(fabs(sums[2] - squares / valid) <= 1e-9);
  assert_int_equal(counts[0], dropped);
  for (int i = 0; i < E; i++) {
    assert_int_equal(counts[1 + i], all.expert_begin[i + 1] - all.expert_begin[i]);
    assert_int_equal(counts[1 + E + i], demand[i]);
  }
  assert_memory_equal(counts + 1 + 2 * E, histogram, sizeof histogram);
  free_record(&all), free_record(&part), free_record(&want);
}

static void test_means_and_prices(void **state) {
  const real cutoff[3 * E] = {1,        2,  INFINITY, 4, -1,  INFINITY, 3, 2,  5,
                              INFINITY, -2, INFINITY, 2, NAN, 7,        0, -3, INFINITY};
  const real means[E] = {2, 2, 6, 2, -2, INFINITY}, next[E] = {3, 1, 2, 0, 5, 7};
  real mean[E], kept[E], fresh[E], beta[E], centred[E];
  EVERYWHERE({
    for (int i = 0; i < E; i++) kept[i] = 10, fresh[i] = NAN, beta[i] = (real)i, centred[i] = (real)(i * i);
    x.ops->mean_cutoff(&x, &(ch_mean_cutoff_args){.pools = 3, .e = E, .cutoff = cutoff, .mean = mean});
    x.ops->running_mean(&x, &(ch_running_mean_args){.count = E, .weight = 0.25, .value = means, .mean = kept});
    x.ops->running_mean(&x,
                        &(ch_running_mean_args){.count = E, .fresh = 1, .weight = 0.25, .value = means, .mean = fresh});
    x.ops->price(&x, &(ch_price_args){.e = E, .next = next, .beta = beta});
    x.ops->price(&x, &(ch_price_args){.e = E, .beta = centred});
  });
  double sum = 0, sum_centred = 0;
  for (int i = 0; i < E; i++) {
    assert_true(mean[i] == means[i]);
    assert_true(kept[i] == (isinf(means[i]) ? 10 : (real)(10 + 0.25 * ((double)means[i] - 10))));
    if (isfinite(means[i])) assert_true(fresh[i] == (real)(0.25 * (double)means[i]));
    if (i) assert_true(fabs((double)(beta[i] - beta[0]) - ((i + next[i]) / 2 - next[0] / 2)) <= 1e-6);
    if (i) assert_true(fabs((double)(centred[i] - centred[0]) - i * i) <= 1e-5);
    sum += (double)beta[i], sum_centred += (double)centred[i];
  }
  assert_true(isnan(fresh[E - 1]));
  assert_true(fabs(sum - 1) <= 1e-5 && fabs(sum_centred - 1) <= 1e-5);
}

/* Dearer where demand is above the mean, cheaper below it, unmoved at it. */
static void bias_steps(void **state) {
  const int demand[3] = {7, 3, 5};
  real kept[3], fresh[3];
  EVERYWHERE({
    for (int i = 0; i < 3; i++) kept[i] = (real)0.5, fresh[i] = NAN;
    x.ops->update_bias(&x, &(ch_update_bias_args){.e = 3, .rate = 0.25, .demand = demand, .price = kept});
    x.ops->update_bias(&x, &(ch_update_bias_args){.e = 3, .fresh = 1, .rate = 0.25, .demand = demand, .price = fresh});
  });
  const real step[3] = {0.25, -0.25, 0};
  for (int i = 0; i < 3; i++) assert_true(kept[i] == (real)0.5 + step[i] && fresh[i] == step[i]);
}

static double distance_to(const real *x, const real *centroid, int i) {
  double sum = 0;
  for (int j = 0; j < D; j++)
    sum += ((double)x[j] - (double)centroid[j * E + i]) * ((double)x[j] - (double)centroid[j * E + i]);
  return sum;
}

/* Experts with tokens move; 2 and 4, which have none, go to the token that is farthest from all, one after the other.
 */
static void test_kmeans(void **state) {
  const double weight = 0.3;
  real *in = test_new_normal(N * D, 7), *centroid = test_new_normal(D * E, 8), *old = test_new_normal(D * E, 8),
       logits[N * E];
  uint8_t keep[N * E] = {0};
  ch_record r = new_record(N, E, N);
  for (int t = 0; t < N; t++) {
    int best = 0;
    for (int i = 0; i < E; i++) {
      double dot = 0;
      for (int j = 0; j < D; j++) dot += (double)in[t * D + j] * (double)old[j * E + i];
      logits[t * E + i] = (real)dot;
      if (i != 2 && i != 4 && distance_to(in + t * D, old, i) < distance_to(in + t * D, old, best)) best = i;
    }
    if (mask[t]) keep[t * E + best] = 1;
  }
  record_from(&r, keep);
  ch_router_spec options = ch_router_default(ch_router_find("kmeans"));
  options.decay = 1 - weight;
  TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, {
    ch_routing routing = {.record = r, .logits = logits};
    ch_route_args a = {.d = D, .x = in, .weight = centroid, .tokens.valid = mask, .routing = &routing};
    memcpy(centroid, old, sizeof *old * D * E);
    ch_route_args_set(&a, options.kind, &options, N, E, N);
    a.router_state = (ch_router_state){.updated = centroid, .observed = 1000};
    options.kind->observe(&x, &a);
  });
  double nearest[N];
  for (int t = 0; t < N; t++) {
    nearest[t] = mask[t] ? INFINITY : 0;
    for (int i = 0; i < E; i++) nearest[t] = fmin(nearest[t], distance_to(in + t * D, old, i));
    if (!mask[t]) nearest[t] = 0;
  }
  for (int i = 0; i < E; i++) {
    int begin = r.expert_begin[i], end = r.expert_begin[i + 1], far = 0;
    for (int t = 0; t < N; t++)
      if (nearest[t] > nearest[far]) far = t;
    for (int j = 0; j < D; j++) {
      double sum = 0, was = (double)old[j * E + i];
      for (int s = begin; s < end; s++) sum += (double)in[r.slot_token[s] * D + j];
      double want = begin == end ? (double)in[far * D + j] : was + weight * (sum / (end - begin) - was);
      assert_true(fabs((double)centroid[j * E + i] - want) <= 1e-5);
    }
    for (int t = 0; t < N && begin == end; t++) nearest[t] = fmin(nearest[t], distance_to(in + t * D, centroid, i));
  }
  assert_true(r.expert_begin[2] == r.expert_begin[3] && r.expert_begin[4] == r.expert_begin[5]);
  free_record(&r), free(in), free(centroid), free(old);
}

/* Factors are those of the token's number, wherever it stands, spread over the whole interval. */
static void test_jitter_and_multiply(void **state) {
  real factor[N * D], later[N * D], product[N * D], *in = test_new_normal(N * D, 9);
  ch_jitter_args a = {.n = N, .d = D, .jitter = 0.2, .rng = ch_rng_make(1, CH_STREAM_TEST, 2), .factor = factor}, b = a;
  double low = 2, high = 0;
  b.n = N - 10, b.rng_base = 10, b.factor = later;
  EVERYWHERE({
    test_poison(factor, N * D), test_poison(later, N * D);
    for (int i = 0; i < N * D; i++) product[i] = 1;
    x.ops->jitter(&x, &a);
    x.ops->jitter(&x, &b);
    x.ops->multiply(&x, &(ch_multiply_args){.count = N * D, .a = in, .b = factor, .y = product, .accumulate = 1});
  });
  assert_memory_equal(later, factor + 10 * D, sizeof *later * (N - 10) * D);
  for (int i = 0; i < N * D; i++) {
    low = fmin(low, (double)factor[i]), high = fmax(high, (double)factor[i]);
    assert_true(fabs((double)product[i] - (1 + (double)in[i] * (double)factor[i])) <= 4e-7); /* GPUs round once */
  }
  assert_true(low >= 0.8 && low < 0.82 && high <= 1.2 && high > 1.18);
  EVERYWHERE({
    test_poison(product, N * D);
    x.ops->multiply(&x, &(ch_multiply_args){.count = N * D, .a = in, .b = factor, .y = product});
  });
  for (int i = 0; i < N * D; i++) assert_true(product[i] == in[i] * factor[i]);
  free(in);
}

TEST_MAIN(set_up, NULL, test_threshold, test_collect, test_select_from_pools, test_within, test_part_and_tally,
          test_means_and_prices, bias_steps, test_kmeans, test_jitter_and_multiply)
