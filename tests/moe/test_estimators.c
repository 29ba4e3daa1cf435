/* Whose prices training goes by with router quantile_balanced (router.estimator): what each of them chooses and keeps,
 * and that runs by it are the same however they are cut. */
#include "moe_testing.h"
#include "mpi.h"

enum { N = 1024, E = 8, K = 2, T = 256 };
static const char *const words[] = {"batch", "sequence", "last", "mean"};

/* Softmax of normal logits; sequences prefer different experts. */
static layer_case make(ch_estimator estimator) {
  layer_case c = choice_case("quantile_balanced", N, E);
  c.options.estimator = estimator;
  c.T = T;
  test_normal(c.scores, N * E, 4);
  for (int t = 0; t < N; t++) {
    real *row = c.scores + (int64_t)t * E;
    double sum = 0;
    for (int i = 0; i < E; i++) sum += exp((double)row[i] + 0.3 * ((i + t / T) % E));
    for (int i = 0; i < E; i++) row[i] = (real)(exp((double)row[i] + 0.3 * ((i + t / T) % E)) / sum);
  }
  return c;
}

/* Tokens of sequence s that expert i has. */
static int load_of(const layer_case *c, int i, int s) {
  int load = 0;
  for (int j = c->record.expert_begin[i]; j < c->record.expert_begin[i + 1]; j++)
    load += c->record.slot_token[j] / T == s;
  return load;
}

/* Largest distance of a sequence's load from an even one, as a share of that; and of the whole batch's. */
static double unevenness(const layer_case *c, int of_batch) {
  double max = 0, even = (double)T * K / E;
  for (int i = 0; i < E; i++) {
    double all = 0;
    for (int s = 0; s < N / T; s++) {
      all += load_of(c, i, s);
      if (!of_batch) max = fmax(max, fabs(load_of(c, i, s) / even - 1));
    }
    if (of_batch) max = fmax(max, fabs(all / (even * N / T) - 1));
  }
  return max;
}

/* Every sequence is balanced as if it were alone, and the mean of their prices is kept; padding counts for nobody. */
static void sequences_balance_themselves(void **state) {
  layer_case batch = make(CH_PRICES_BATCH), c = make(CH_PRICES_SEQUENCE);
  router_run(&batch, NULL), router_run(&c, NULL);
  assert_true(unevenness(&batch, 1) < 0.1 && unevenness(&batch, 0) > 0.4);
  assert_true(unevenness(&c, 0) < 0.1);
  for (int padded = 0; padded < 2; padded++) {
    uint8_t valid[N];
    double sum[E] = {0};
    for (int t = 0; t < N; t++) valid[t] = !padded || (t >= T && t % 3); /* nobody in the first sequence */
    c.valid = valid;
    router_run(&c, NULL);
    for (int s = padded; s < N / T; s++) {
      layer_case one = choice_case("quantile_balanced", T, E);
      one.valid = valid + s * T;
      memcpy(one.scores, c.scores + (int64_t)s * T * E, sizeof(real) * T * E);
      router_run(&one, NULL);
      for (int i = 0; i < E; i++) {
        assert_int_equal(load_of(&one, i, 0), load_of(&c, i, s));
        sum[i] += (double)one.counts.cutoff[i];
      }
      one.valid = NULL;
      layer_case_free(&one);
    }
    for (int i = 0; i < E; i++) assert_true(fabs((double)c.counts.cutoff[i] - sum[i] / (N / T - padded)) < 1e-6);
  }
  c.valid = NULL;
  layer_case_free(&batch), layer_case_free(&c);
}

/* By kept prices no token looks at another; the batch's own are what is kept next: alone, or in the running mean. */
static void kept_prices_are_the_last_or_their_mean(void **state) {
  layer_case own = make(CH_PRICES_BATCH);
  real kept[E];
  for (int i = 0; i < E; i++) kept[i] = (real)(0.02 * (i * 5 % E) - 0.05);
  own.thresholds = kept;
  router_run(&own, NULL);
  for (ch_estimator way = CH_PRICES_LAST; way <= CH_PRICES_MEAN; way++) {
    layer_case c = make(way), use = make(way);
    c.thresholds = use.thresholds = kept;
    use.causal = 1;
    router_run(&c, NULL), router_run(&use, NULL);
    assert_true(same_selection(&c, &use.record, use.counts.demand));
    assert_false(same_selection(&c, &own.record, own.counts.demand));
    assert_memory_equal(c.counts.cutoff, own.counts.cutoff, sizeof kept);
    ch_exec x;
    ch_routing seen = {.counts = c.counts};
    real next[E];
    memcpy(next, kept, sizeof next);
    test_ok(ch_exec_init(&x, test_backend("cpu"), CH_COMPUTE_FP32, 1, 1));
    test_ok(ch_exec_commit(&x));
    ch_router_observe(&x, c.options.kind, &c.options, E, &seen, (ch_router_state){.updated = next, .observed = 1000});
    for (int i = 0; i < E; i++) {
      double weight = way == CH_PRICES_LAST ? 1 : 0.01 / (1 - pow(0.99, 1001));
      double want = (double)kept[i] + weight * (double)(c.counts.cutoff[i] - kept[i]);
      if (!(fabs((double)next[i] - want) < 1e-6)) fail_msg("%s: %g is not %g", words[way], (double)next[i], want);
    }
    ch_exec_free(&x);
    c.thresholds = use.thresholds = NULL;
    layer_case_free(&c), layer_case_free(&use);
  }
  own.thresholds = NULL;
  layer_case_free(&own);
}

static void invalid_combinations_are_refused(void **state) {
  for (int i = 0; i < 4; i++) {
    choir_config *c;
    test_ok(choir_config_create(&c));
    test_ok(choir_config_set(c, "router.name", "quantile_balanced"));
    test_ok(choir_config_set(c, "router.estimator", words[i]));
    assert_int_equal(choir_router_looks_across_tokens(c, 1), i < 2);
    assert_int_equal(choir_router_looks_across_tokens(c, 0), 0);
    choir_config_free(c);
  }
  program_refuses(1, "threshold_after is 5 with estimator 'last'",
                  "choir train --config config.json --data data --out no --set router.name=quantile_balanced --set "
                  "router.estimator=last --set router.threshold_after=5");
}

/* Gone on with from the third step, and by two ranks: the same bytes. Evaluation looks at no other token. */
static void runs_by_each(void **state) {
  int ranks = !without_mpi();
  for (int i = 0; i < 4; i++) {
    char run[32];
    snprintf(run, sizeof run, "by_%s", words[i]);
#define BY FRESH "--set router.name=quantile_balanced --set steps=6 --set router.estimator="
    program_must(BY "%s --out %s && cp -r %s cut && rm -r cut/checkpoints/00000006 && " TRAIN "--resume --out cut",
                 words[i], run, run);
    assert_true(program_same_runs(run, "cut", 6));
    if (ranks) program_must(MPIRUN "-n 2 " BY "%s --out two", words[i]);
    if (ranks) assert_true(program_same_runs(run, "two", 6));
    program_must("choir eval %s --data data --sequences 4 --json", run);
    json_t *root = program_json();
    assert_true(json_is_false(json_object_get(root, "looks_across_tokens")) && json_at(root, "loss") > 0);
    json_decref(root);
    for (int j = 0; j < i; j++) program_must("! cmp -s by_%s/metrics.jsonl %s/metrics.jsonl", words[j], run);
    program_must("rm -rf cut two");
  }
  if (!ranks) test_skip("runs of two ranks: no mpirun here, or a build without MPI");
}

TEST_MAIN(program_setup, program_directory_remove, sequences_balance_themselves, kept_prices_are_the_last_or_their_mean,
          invalid_combinations_are_refused, runs_by_each)
