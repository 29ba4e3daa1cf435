/* The leak probe on every routing of every router: quiet where nothing leaks, loud where something does. */
#include "base/machine.h"
#include "model_testing.h"
#include "probe/probe.h"

static ch_probe_result run_probe(choir_model *model, const char *routing, int draws) {
  ch_probe_options options = CH_PROBE_OPTIONS_INIT;
  ch_probe_result result;
  options.routing = routing;
  options.draws = draws;
  test_ok(ch_probe(model, NULL, &options, &result));
  assert_string_equal(result.routing, routing);
  assert_int_equal(result.sequences, MODEL_B);
  assert_int_equal(result.length, MODEL_T);
  assert_true(result.spread > 0.1 && result.loss > 1);
  return result;
}

static void expect(const ch_probe_effect *e, int declared, int strict, const char *router, const char *routing) {
  if (declared || e->verdict == CH_PROBE_EQUAL || (!strict && e->verdict == CH_PROBE_ROUNDED)) return;
  fail_msg("%s, routing %s: verdict %d, %lld of %lld positions, largest change %g", router, routing, (int)e->verdict,
           (long long)e->changed, (long long)e->compared, e->largest);
}

/* A change that is declared not to matter does not: bit for bit where rows round alike, up to rounding elsewhere. */
static void every_routing_keeps_what_it_declares(void **state) {
  static const struct {
    const char *backend, *compute;
    int strict;
  } run[] = {{"reference", "fp32", 1}, {"cpu", "fp32", 0}, {"cpu", "bf16", 0}};
  int backends = ch_machine_has_fast_bf16() ? 3 : 2; /* elsewhere another rounding turns into another selection */
  for (const char *const *router = choir_router_names(); *router; router++)
    for (int i = 0; i < backends; i++) {
      choir_config config = model_config(*router);
      choir_model *model = model_new(&config, run[i].backend, run[i].compute);
      for (const char *const *each = choir_router_routings(*router); *each; each++) {
        const char *routing = *each;
        if (i == 2 && strcmp(routing, "threshold"))
          continue; /* primitives for every number of rows take long to make */
        ch_probe_result result = run_probe(model, routing, 1);
        const choir_routing_properties *d = &result.declared;
        expect(&result.later, d->looks_ahead, run[i].strict, *router, routing);
        expect(&result.others, d->depends_on_batch, run[i].strict, *router, routing);
        expect(&result.alone, d->looks_ahead || d->depends_on_batch, run[i].strict, *router, routing);
        assert_int_equal(result.leaks, 0);
      }
      assert_string_equal(choir_model_routing(model), *choir_router_routings(*router)); /* as it was */
      choir_model_free(model);
    }
}

/* A routing that does look at other tokens is seen. */
static void check_seen(const char *router, const char *routing, int later, int others) {
  choir_config config = model_config(router);
  config.model.router.capacity_factor = 0.6; /* room is scarce: drops */
  choir_model *model = model_new(&config, "reference", "fp32");
  ch_probe_result r = run_probe(model, routing, 8);
  if (r.declared.looks_ahead != later || r.declared.depends_on_batch != others ||
      r.later.verdict != (later ? CH_PROBE_CHANGED : CH_PROBE_EQUAL) ||
      r.others.verdict != (others ? CH_PROBE_CHANGED : CH_PROBE_EQUAL))
    fail_msg("%s, routing %s: declared %d %d, verdicts %d %d", router, routing, r.declared.looks_ahead,
             r.declared.depends_on_batch, (int)r.later.verdict, (int)r.others.verdict);
  assert_true(!later == (r.later.first < 0) && !others == (r.others.loss == 0));
  choir_model_free(model);
}

static void dependence_is_detected(void **state) {
  static const struct {
    const char *name;
    int later, others;
  } pools[] = {{"batch", 1, 1}, {"sequence", 1, 0}, {"position", 0, 1}, {"group", 1, 1}};
  for (int i = 0; ch_routers[i]; i++)
    for (int j = 0; ch_router_takes(ch_routers[i], CH_OPTION_pool) && ch_router_pools[j]; j++) {
      size_t p = 0;
      while (strcmp(pools[p].name, ch_router_pools[j])) assert_true(++p < sizeof pools / sizeof *pools);
      check_seen(ch_routers[i]->name, pools[p].name, pools[p].later, pools[p].others);
    }
  check_seen("gshard_top2", "batch", 1, 1);
  check_seen("switch_top1", "batch", 0, 1);
  check_seen("global_topk", "batch", 1, 1);
}

static void take_router(choir_model *model, const ch_router *router) {
  model->net.router = model->net.config.router.kind = router;
}

/* A router that looks at other tokens and declares that it does not is a leak. So is one whose causal routing does. */
static void undeclared_dependence_is_a_leak(void **state) {
  choir_config config = model_config("expert_choice");
  choir_model *model = model_new(&config, "cpu", "fp32");
  const ch_router *honest = model->net.router;
  ch_router liar = *honest;
  liar.depends_on = CHOIR_DEPENDS_ON_NONE;
  take_router(model, &liar);
  assert_int_equal(run_probe(model, "batch", 2).leaks, 1);
  assert_int_equal(run_probe(model, "sequence", 2).leaks, 1);
  liar = *honest;
  liar.causal = liar.route;
  ch_probe_result r = run_probe(model, "threshold", 2);
  assert_true(r.leaks && r.later.verdict == CH_PROBE_CHANGED && r.alone.verdict == CH_PROBE_CHANGED);
  take_router(model, honest);
  choir_model_free(model);
}

static void the_same_seed_the_same_result(void **state) {
  choir_config config = model_config("gshard_top2");
  choir_model *model = model_new(&config, "cpu", "fp32");
  ch_probe_result a, b;
  memset(&a, 0, sizeof a);
  memset(&b, 0, sizeof b);
  a = run_probe(model, "batch", 2);
  b = run_probe(model, "batch", 2);
  assert_memory_equal(&a.later, &b.later, sizeof a.later);
  assert_memory_equal(&a.others, &b.others, sizeof a.others);
  choir_model_free(model);
}

/* In a batch of one sequence the effect of others is untried; a length of 1,000 is cut to the 40 tokens of the text. */
static void refusals_and_small_batches(void **state) {
  choir_config config = model_config("hash");
  choir_model *model = model_new(&config, "cpu", "fp32");
  ch_probe_options o = CH_PROBE_OPTIONS_INIT;
  ch_probe_result r;
  o.sequences = 1;
  test_ok(ch_probe(model, NULL, &o, &r));
  assert_int_equal(r.others.verdict, CH_PROBE_UNTRIED);
  assert_int_not_equal(r.later.verdict, CH_PROBE_CHANGED);
  o.length = 1;
  assert_int_equal(ch_probe(model, NULL, &o, &r), CHOIR_ERROR_ARGUMENT);
  o.length = 8;
  o.draws = 0;
  assert_int_equal(ch_probe(model, NULL, &o, &r), CHOIR_ERROR_ARGUMENT);
  o.draws = 1;
  o.text = "some.txt";
  assert_int_equal(ch_probe(model, NULL, &o, &r), CHOIR_ERROR_ARGUMENT);
  assert_non_null(strstr(choir_error_message(), "tokenizer"));
  o.text = NULL;
  o.routing = "sequence";
  test_fails(ch_probe(model, NULL, &o, &r), CHOIR_ERROR_ARGUMENT, "batch, threshold");
  choir_model_free(model);
  config = model_config("expert_choice"); /* fresh: nothing has set its thresholds */
  test_ok(choir_model_create(&config, 5, NULL, &model));
  o.routing = "threshold";
  assert_int_equal(ch_probe(model, NULL, &o, &r), CHOIR_ERROR_UNSUPPORTED);
  choir_model_free(model);
}

/* Who wants to write text is told by name. */
static void causal_use_is_refused_by_name(void **state) {
  choir_config config = model_config("expert_choice");
  choir_model *model = model_new(&config, "cpu", "fp32");
  test_fails(choir_model_check_causal(model), CHOIR_ERROR_UNSUPPORTED,
             "'batch' of router 'expert_choice' looks at later tokens");
  assert_non_null(strstr(choir_error_message(), "'threshold'"));
  test_ok(choir_model_set_routing(model, "threshold"));
  test_ok(choir_model_check_causal(model));
  choir_model_free(model);
  config = model_config("switch_top1");
  model = model_new(&config, "cpu", "fp32");
  test_fails(choir_model_check_causal(model), CHOIR_ERROR_UNSUPPORTED, "other texts of its batch");
  choir_model_free(model);
}

static int yes(const char *word) {
  if (strcmp(word, "yes") && strcmp(word, "no")) fail_msg("docs/causality.md: '%s' is neither yes nor no", word);
  return !strcmp(word, "yes");
}

/* Names between backticks. */
static int names_in(const char *cell) {
  int ticks = 0;
  for (; *cell; cell++) ticks += *cell == '`';
  return ticks / 2;
}

/* `name` is one of this cell's; a cell without names, "every router", has all. */
static int names(const char *cell, const char *name) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "`%s`", name);
  return !names_in(cell) || strstr(cell, quoted);
}

/* Checks that one row of docs/causality.md has this routing of this router, with the properties that the library
 * declares. With NULL returns how many pairs of router and routing all rows have. */
static int rows_of(const char *router, const char *routing) {
  int rows = 0, pairs = 0, count = 0;
  char line[1024], routers[256], routings[128], ahead[8], batch[8], text[8];
  FILE *file = fopen(CHOIR_SOURCE_DIR "/docs/causality.md", "r");
  assert_non_null(file);
  while (choir_router_names()[count]) count++;
  while (fgets(line, sizeof line, file)) {
    choir_routing_properties p;
    if (sscanf(line, "| %255[^|]| %127[^|]| %7[a-z] | %7[a-z] | %7[a-z] |", routers, routings, ahead, batch, text) <
            5 ||
        !names_in(routings))
      continue;
    pairs += (names_in(routers) ? names_in(routers) : count) * names_in(routings);
    if (!router || !names(routers, router) || !names(routings, routing)) continue;
    test_ok(choir_router_get_properties(router, routing, &p));
    if (p.looks_ahead != yes(ahead) || p.depends_on_batch != yes(batch) ||
        yes(text) == (p.looks_ahead || p.depends_on_batch))
      fail_msg("docs/causality.md: router %s, routing %s: %s, %s, %s", router, routing, ahead, batch, text);
    rows++;
  }
  fclose(file);
  return router ? rows : pairs;
}

/* The table of docs/causality.md has every routing of every router once, and says what the library declares. */
static void the_docs_say_what_is_declared(void **state) {
  int routings = 0;
  for (const char *const *name = choir_router_names(); *name; name++)
    for (const char *const *routing = choir_router_routings(*name); *routing; routing++, routings++)
      if (rows_of(*name, *routing) != 1)
        fail_msg("docs/causality.md: routing %s of router %s has not one row", *routing, *name);
  if (rows_of(NULL, NULL) != routings) fail_msg("docs/causality.md names a router or a routing that is not there");
}

TEST_MAIN(NULL, NULL, every_routing_keeps_what_it_declares, dependence_is_detected, undeclared_dependence_is_a_leak,
          the_same_seed_the_same_result, refusals_and_small_batches, causal_use_is_refused_by_name,
          the_docs_say_what_is_declared)
