/* Ops by which tokens choose experts: best, modulo, sample_second, place, gate, balance, against naive loops. */
#include "record_testing.h"

enum { N = 61, E = 7, MAX = 4 };

static uint8_t mask[N];
static int32_t ids[N];
static real *score;

static int set_up(void **state) {
  score = test_new_normal(N * E, 3);
  for (int t = 0; t < N; t++) mask[t] = t % 5 != 2, ids[t] = t * t % 23;
  for (int i = 0; i < E; i++) score[4 * E + i] = (real)0.5; /* ties */
  for (int i = 0; i < E; i++) score[9 * E + i] = NAN;
  return 0;
}

static int tear_down(void **state) {
  free(score);
  return 0;
}

/* One by one: the first of the largest that are left; in a row of NaN the first that are left. */
static void naive_best(int t, int count, const real *shift, int *choice) {
  uint8_t used[E] = {0};
  for (int j = 0; j < count; j++) {
    int best = -1;
    for (int i = 0; i < E; i++)
      if (!used[i] && (best < 0 || score[t * E + i] - shift[i] > score[t * E + best] - shift[best])) best = i;
    used[choice[j] = best] = 1;
  }
}

static void test_best(void **state) {
  static const real none[E] = {0}, prices[E] = {0, 1, (real)-0.5, 0, (real)0.25, 2, 0};
  int choice[N * MAX];
  real value[N * MAX], margin[N * E];
  for (int count = 1; count <= MAX; count++)
    for (int variant = 0; variant < 4; variant++) {
      const real *shift = variant & 1 ? prices : none;
      EVERYWHERE({
        memset(choice, 0xee, sizeof choice);
        test_poison(value, N * MAX), test_poison(margin, N * E);
        x.ops->best(&x, &(ch_best_args){.n = N,
                                        .e = E,
                                        .count = count,
                                        .valid = variant & 2 ? mask : NULL,
                                        .score = score,
                                        .shift = variant & 1 ? prices : NULL,
                                        .choice = choice,
                                        .value = value,
                                        .margin = count > 1 ? margin : NULL});
      });
      for (int t = 0; t < N; t++) {
        int want[MAX];
        naive_best(t, count, shift, want);
        for (int j = 0; j < count; j++) {
          assert_int_equal(choice[t * count + j], variant & 2 && !mask[t] ? -1 : want[j]);
          if (t != 9) assert_true(value[t * count + j] == score[t * E + want[j]] - shift[want[j]]);
        }
        real half_way = count > 1 && t != 9 ? (value[t * count + count - 2] + value[t * count + count - 1]) / 2 : 0;
        for (int i = 0; i < E && count > 1 && t != 9; i++)
          assert_true(margin[t * E + i] == score[t * E + i] - half_way);
      }
    }
}

/* Of null experts the choices are those of null columns beside the others, which come last. */
static void test_best_with_nulls(void **state) {
  enum { NULLS = 2, ALL = E + NULLS };
  int choice[N * MAX], want[N * MAX];
  real value[N * MAX], *low = test_new(N * E), *wide = test_new(N * ALL);
  for (int t = 0; t < N; t++)
    for (int i = 0; i < ALL; i++) wide[t * ALL + i] = i < E ? (real)exp((double)score[t * E + i]) / 32 : 1;
  for (int t = 0; t < N; t++) {
    for (int i = 0; i < E; i++) wide[t * ALL + E] -= low[t * E + i] = wide[t * ALL + i];
    wide[t * ALL + E] = wide[t * ALL + E + 1] = wide[t * ALL + E] / NULLS;
  }
  for (int count = 1; count <= MAX; count++) {
    EVERYWHERE({
      x.ops->best(&x, &(ch_best_args){.n = N, .e = ALL, .count = count, .score = wide, .choice = want, .value = value});
      x.ops->best(&x, &(ch_best_args){.n = N,
                                      .e = E,
                                      .count = count,
                                      .nulls = NULLS,
                                      .valid = mask,
                                      .score = low,
                                      .choice = choice,
                                      .value = value});
    });
    for (int t = 0; t < N; t++) { /* null experts may come between the others, whose order stays */
      int had = 0, left = 0;
      for (int j = 0; j < count; j++) {
        while (had < count && want[t * count + had] >= E) had++;
        int i = choice[t * count + j];
        assert_true(mask[t] || i < 0);
        if (i >= 0) assert_int_equal(i, want[t * count + had++]);
        if (mask[t]) left += (i >= 0) - (want[t * count + j] < E);
      }
      assert_true(t == 9 || left == 0);
    }
  }
  free(low), free(wide);
}

static void test_modulo(void **state) {
  int choice[N];
  for (int masked = 0; masked < 2; masked++) {
    EVERYWHERE({
      memset(choice, 0xee, sizeof choice);
      x.ops->modulo(&x, &(ch_modulo_args){.n = N, .e = E, .valid = masked ? mask : NULL, .id = ids, .choice = choice});
    });
    for (int t = 0; t < N; t++) assert_int_equal(choice[t], masked && !mask[t] ? -1 : ids[t] % E);
  }
}

/* The second one stays with probability 2 g2: never where its value is 0, always where both are the same. */
static void test_sample_second(void **state) {
  ch_rng rng = ch_rng_make(5, CH_STREAM_TEST, 9);
  int choice[2 * N], kept = 0, expected = 0;
  real value[2 * N];
  for (int t = 0; t < N; t++) {
    value[2 * t] = t == 1 ? 0 : (real)0.5;
    value[2 * t + 1] = t == 1 ? 0 : t % 3 == 0 ? (real)0.5 : t % 3 == 1 ? 0 : (real)0.125;
  }
  EVERYWHERE({
    for (int t = 0; t < N; t++) choice[2 * t] = 1, choice[2 * t + 1] = 2;
    x.ops->sample_second(&x,
                         &(ch_sample_second_args){.n = N, .rng = rng, .rng_base = 7, .value = value, .choice = choice});
  });
  for (int t = 0; t < N; t++) {
    assert_int_equal(choice[2 * t], 1);
    if (t % 3 == 0) assert_int_equal(choice[2 * t + 1], 2);
    if (t % 3 == 1) assert_int_equal(choice[2 * t + 1], -1);
    if (t % 3 == 2) kept += choice[2 * t + 1] == 2, expected += ch_rng_uniform(rng, 7 + (uint64_t)t) < 0.4;
  }
  assert_int_equal(kept, expected);
  assert_in_range(kept, 1, N / 3 - 1);
}

/* The token whose turn it is behind `before` others: in order, or the largest first value first. */
static int turn_of(const real *value, int count, int before) {
  for (int t = 0; t < N; t++) {
    int ahead = 0;
    for (int u = 0; u < N && value; u++) {
      real mine = value[t * count], other = value[u * count];
      ahead +=
          other > mine || (isnan(mine) && !isnan(other)) || ((other == mine || (isnan(mine) && isnan(other))) && u < t);
    }
    if ((value ? ahead : t) == before) return t;
  }
  return -1;
}

static void check_places(const real *value) {
  static const int capacities[] = {0, 3, 9, N};
  for (int count = 1; count <= 2; count++)
    for (int c = 0; c < 4; c++) {
      int chosen[2 * N], choice[2 * N], demand[E], asked[E] = {0}, held[E] = {0}, refused = 0;
      uint8_t keep[N * E] = {0};
      int64_t dropped = -1;
      ch_record r = new_record(N, E, 2 * N), want = new_record(N, E, 2 * N);
      for (int t = 0; t < N; t++)
        for (int j = 0; j < count; j++) chosen[t * count + j] = mask[t] ? (ids[t] * ids[t] + j) % E : -1;
      for (int j = 0; j < count; j++)
        for (int at = 0; at < N; at++) {
          int t = turn_of(value, count, at), i = chosen[t * count + j];
          if (i < 0) continue;
          asked[i]++;
          if (held[i] == capacities[c]) {
            refused++;
          } else {
            held[i]++;
            keep[t * E + i] = 1;
          }
        }
      record_from(&want, keep);
      EVERYWHERE({
        memcpy(choice, chosen, sizeof choice);
        memset(demand, 0xff, sizeof demand);
        poison_record(&r);
        x.ops->place(&x, &(ch_place_args){.count = count,
                                          .capacity = capacities[c],
                                          .choice = choice,
                                          .value = value,
                                          .record = &r,
                                          .demand = demand,
                                          .dropped = &dropped});
        if (pass_) same_slots(&r, &want);
      });
      assert_memory_equal(demand, asked, sizeof demand);
      assert_int_equal(dropped, refused);
      free_record(&r), free_record(&want);
    }
}

static void test_place(void **state) {
  real value[2 * N];
  for (int j = 0; j < 2 * N; j++) value[j] = (real)(j * j % 7);
  value[6] = value[20] = NAN;
  check_places(NULL);
  check_places(value);
}

/* Slots of the two best of every valid token, but for some. */
static void hold(ch_record *r, int *choice, real *value) {
  uint8_t keep[N * E] = {0};
  const real none[E] = {0};
  for (int t = 0; t < N; t++) {
    naive_best(t, 2, none, choice + 2 * t);
    for (int j = 0; j < 2; j++) {
      value[2 * t + j] = score[t * E + choice[2 * t + j]];
      if (mask[t] && (t + j) % 4) keep[t * E + choice[2 * t + j]] = 1;
      if (!mask[t]) choice[2 * t + j] = -1;
    }
  }
  record_from(r, keep);
}

static void test_gate(void **state) {
  int choice[2 * N];
  real value[2 * N];
  ch_record r = new_record(N, E, 2 * N);
  hold(&r, choice, value);
  for (ch_gate_rule rule = CH_GATE_EVEN; rule <= CH_GATE_SHARE; rule++) {
    EVERYWHERE({
      test_poison(r.slot_gate, 2 * N);
      x.ops->gate(&x, &(ch_gate_args){.rule = rule,
                                      .count = 3,
                                      .record = &r,
                                      .score = rule == CH_GATE_EVEN ? NULL : score,
                                      .value = rule == CH_GATE_SHARE ? value : NULL});
    });
    for (int i = 0; i < E; i++)
      for (int s = r.expert_begin[i]; s < r.expert_begin[i + 1]; s++) {
        int t = r.slot_token[s];
        double own = (double)score[t * E + i], both = (double)value[2 * t] + (double)value[2 * t + 1];
        double want[] = {1.0 / 3, own, 1 / (1 + exp(-own)), own / both};
        if (t != 9 || rule == CH_GATE_EVEN) assert_true(fabs((double)r.slot_gate[s] - want[rule]) <= 1e-6);
      }
  }
  free_record(&r);
}

/* The loss by its definition; slope [N,E]: its gradient. Null experts share what others leave of choices and scores. */
static double balance_of(const ch_balance_args *a, double *slope) {
  double loss = 0;
  for (int j = 0; j < N * E; j++) slope[j] = 0;
  for (int begin = 0; begin < N; begin += a->span) {
    double f[E] = {0}, P[E] = {0}, valid = 0, all = E + a->nulls, rest[2] = {1, 1}, null = 0;
    int end = begin + a->span < N ? begin + a->span : N;
    for (int t = begin; t < end; t++) {
      double whole = 0;
      for (int i = 0; i < E; i++) whole += a->shares ? (double)score[t * E + i] : 1.0 / E;
      for (int j = 0; j < a->counted && mask[t]; j++) f[a->choice[t * 2 + j]] += 1.0 / a->counted;
      for (int i = 0; i < E && mask[t]; i++) P[i] += (double)score[t * E + i] / whole;
      valid += mask[t];
    }
    for (int i = 0; i < E && valid > 0; i++) {
      loss += all * (f[i] / valid) * (P[i] / valid) / a->groups;
      rest[0] -= f[i] / valid, rest[1] -= P[i] / valid;
    }
    if (a->nulls && valid > 0) loss += all * rest[0] * rest[1] / a->nulls / a->groups, null = rest[0] / a->nulls;
    for (int t = begin; t < end; t++) {
      double whole = 0, mean = 0;
      for (int i = 0; i < E; i++) whole += a->shares ? (double)score[t * E + i] : 1.0 / E;
      for (int i = 0; i < E && a->shares; i++) mean += f[i] * (double)score[t * E + i] / whole;
      for (int i = 0; i < E && mask[t]; i++)
        slope[t * E + i] = 3.0 * all * (f[i] / valid - null - mean / valid) / whole / valid / a->groups;
    }
  }
  return loss;
}

static void test_balance(void **state) {
  int choice[2 * N];
  real value[2 * N], dscore[N * E];
  double loss = NAN, slope[N * E];
  ch_record r = new_record(N, E, 2 * N);
  for (int i = 0; i < E; i++) score[9 * E + i] = (real)0.1;
  hold(&r, choice, value);
  for (int variant = 0; variant < 12; variant++) {
    ch_balance_args args = {.n = N,
                            .e = E,
                            .count = 2,
                            .counted = 1 + (variant & 1),
                            .nulls = variant & 8 ? 3 : 0,
                            .shares = variant >> 1 & !(variant & 8),
                            .span = variant & 4 ? 10 : N,
                            .groups = 0,
                            .valid = mask,
                            .choice = choice,
                            .score = score,
                            .loss = &loss,
                            .scale = 3,
                            .dscore_acc = dscore};
    for (int begin = 0; begin < N; begin += args.span)
      args.groups += ch_valid_count(mask + begin, args.span < N - begin ? args.span : N - begin) > 0;
    double want = balance_of(&args, slope);
    EVERYWHERE({
      loss = NAN;
      for (int i = 0; i < N * E; i++) dscore[i] = 1;
      x.ops->balance(&x, &args);
      x.ops->balance_backward(&x, &args);
    });
    assert_true(fabs(loss - want) <= 1e-6);
    for (int j = 0; j < N * E; j++) assert_true(fabs((double)dscore[j] - 1 - slope[j]) <= 1e-5);
  }
  free_record(&r);
}

static void test_z_loss(void **state) {
  real lse[N], dlogit[N * E];
  EVERYWHERE({
    test_poison(lse, N);
    for (int i = 0; i < N * E; i++) dlogit[i] = 1;
    const ch_z_loss_args args = {
        .n = N, .e = E, .valid = mask, .logit = score, .lse = lse, .scale = (real)0.5, .dlogit_acc = dlogit};
    x.ops->z_loss(&x, &args);
    x.ops->z_loss_backward(&x, &args);
  });
  for (int t = 0; t < N; t++) {
    double sum = 0;
    for (int i = 0; i < E; i++) sum += exp((double)score[t * E + i]);
    if (mask[t]) assert_true(fabs((double)lse[t] - log(sum)) <= 1e-6);
    for (int i = 0; i < E; i++) {
      double slope = mask[t] ? 0.5 * log(sum) * exp((double)score[t * E + i]) / sum : 0;
      assert_true(fabs((double)dlogit[t * E + i] - 1 - slope) <= 1e-6);
    }
  }
}

TEST_MAIN(set_up, tear_down, test_best, test_best_with_nulls, test_modulo, test_sample_second, test_place, test_gate,
          test_balance, test_z_loss)
