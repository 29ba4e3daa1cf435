/* Configs: every field round-trips; what is wrong is refused by file, key and value. */
#include <unistd.h>

#include "choir/layer.h"
#include "file/file.h"
#include "model/config.h"
#include "moe/router.h"
#include "optim/optim.h"
#include "testing.h"

static const char minimal[] =
    "{\"model\": {\"layers\": 4, \"d_model\": 64, \"d_hidden\": 256, \"heads\": 4, \"experts\": 8%s},"
    " \"train\": {\"sequence_length\": 128, \"batch_sequences\": 4%s}%s}";

/* Parses the minimal config with text added to its objects. */
static int parse(choir_config *config, const char *model, const char *train, const char *root) {
  char text[2048];
  int length = snprintf(text, sizeof text, minimal, model, train, root);
  return ch_config_parse(text, (size_t)length, "x.json", config);
}

static void refused_at(int code, const char *const *parts, const char *file, int line) {
  if (!code) fprintf(stderr, "%s:%d: accepted\n", file, line), _fail(file, line);
  for (; *parts; parts++)
    if (!strstr(choir_error_message(), *parts)) {
      fprintf(stderr, "%s:%d: '%s' is not in '%s'\n", file, line, *parts, choir_error_message());
      _fail(file, line);
    }
}
#define refused(code, ...) refused_at((code), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

static void defaults_are_the_design(void **state) {
  choir_config c;
  test_ok(parse(&c, "", "", ""));
  const ch_router_spec *o = &c.model.router;
  assert_true(!strcmp(o->kind->name, "expert_choice") && o->pool == CH_POOL_BATCH && o->capacity_factor == 2);
  assert_int_equal(c.model.moe_every, 2);
  assert_true(c.model.rel_buckets == 32 && c.model.rel_max_distance == 128);
  assert_true(c.model.norm_eps == 1e-6);
  assert_int_equal(c.train.optimizer, CH_ADAFACTOR);
  assert_true(c.train.learning_rate == 0.01 && c.train.beta2 == 0.99 && c.train.clip_norm == 0);
  assert_int_equal(c.train.constant_steps, 10000);
  assert_int_equal(c.train.cooldown_steps, 0); /* runs of versions without cooldown resume without */
  assert_int_equal(c.train.compute, CH_COMPUTE_FP32);
  assert_true(c.train.seed == 1 && c.train.accumulate == 1);
  choir_config fresh;
  ch_config_default(&fresh);
  refused(choir_config_check(&fresh), "model.layers", "missing");
}

/* A router, its solver, and an optimizer that take the field, if it is an option of some. */
static void choose_takers(choir_config *c, const ch_field *f) {
  const char *name = strrchr(f->path, '.') + 1;
  for (int i = 0; ch_router_option_names[i]; i++)
    for (int r = 0; ch_routers[r] && !strcmp(name, ch_router_option_names[i]); r++)
      if (ch_router_takes(ch_routers[r], (ch_router_option)i))
        test_ok(choir_config_set(c, "router.name", ch_routers[r]->name));
  for (int i = 0; ch_train_field_names[i]; i++)
    for (int k = 0; ch_optims[k] && !strcmp(name, ch_train_field_names[i]); k++)
      if (ch_optims[k]->options >> i & 1) test_ok(choir_config_set(c, "optimizer", ch_optims[k]->name));
  if (!strncmp(name, "solver_", 7)) test_ok(choir_config_set(c, "solver", "dykstra"));
  if (!strncmp(name, "rope_", 5)) test_ok(choir_config_set(c, "position", "rope"));
  if (!strcmp(name, "qk_norm_whole")) c->model.qk_norm = 1;
  if (!strcmp(name, "attention")) c->train.objective = CH_MASKED_LM;
  if (!strcmp(name, "objective")) c->model.attention = CH_BIDIRECTIONAL;
  if (strcmp(name, "mask_schedule") && strcmp(name, "capacity_schedule")) return;
  c->model.attention = CH_BIDIRECTIONAL;
  c->train.objective = CH_MASKED_DIFFUSION;
  if (!strcmp(name, "capacity_schedule")) c->model.router.pool = CH_POOL_SEQUENCE;
}

/* Another value than the default, within the limits, for any field. */
static void disturb(choir_config *c, const ch_field *f) {
  char value[64], *any = strstr(f->path, "layer_capacity") ? "1,2" : "a \"name\" \\ é";
  if (f->kind == CH_FIELD_TEXT)
    snprintf(value, sizeof value, "%s", any);
  else if (f->words)
    snprintf(value, sizeof value, "%s", f->words[f->value == 0]);
  else if (f->kind == CH_FIELD_FLAG)
    snprintf(value, sizeof value, f->value != 0 ? "false" : "true");
  else if (f->kind == CH_FIELD_NUMBER)
    ch_format(value, sizeof value, "%.17g", f->low + (f->high < 1 ? f->high : 1) / 3);
  else
    ch_format(value, sizeof value, "%.0f", f->high - 1);
  test_ok(choir_config_set(c, f->path, value));
}

static void every_field_round_trips(void **state) {
  char path[] = "/tmp/choir-config-XXXXXX";
  int fd = mkstemp(path), skipped = 0;
  assert_true(fd >= 0);
  close(fd);
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    choir_config c, before, back;
    test_ok(parse(&c, "", "", ""));
    choose_takers(&c, f);
    before = c;
    disturb(&c, f);
    assert_memory_not_equal(&c, &before, sizeof c);
    char low[32], high[32];
    ch_format(low, sizeof low, "%.17g", f->low - 1);
    ch_format(high, sizeof high, "%.17g", f->high * 2 + 1);
    before = c;
    if (f->kind < CH_FIELD_WORD) {
      refused(choir_config_set(&c, f->path, low), f->path, low);
      refused(choir_config_set(&c, f->path, high), f->path);
      refused(choir_config_set(&c, f->path, "\"text\""), f->path, "text");
      refused(choir_config_set(&c, f->path, "NaN"), f->path, "NaN");
    }
    if (f->words || strstr(f->path, "name"))
      refused(choir_config_set(&c, f->path, "a name that is longer than thirty-one bytes"), f->path);
    if (f->kind != CH_FIELD_NUMBER && f->kind < CH_FIELD_WORD)
      refused(choir_config_set(&c, f->path, "1.5"), f->path, "1.5", f->kind == CH_FIELD_FLAG ? "true" : "integer");
    assert_memory_equal(&c, &before, sizeof c); /* a refused value changes nothing */
    if (choir_config_check(&c)) {               /* the largest d_model is not divisible by 4, and so on */
      skipped++;
      continue;
    }
    test_ok(choir_config_save(&c, path));
    test_ok(ch_config_load(path, &back));
    assert_memory_equal(&c, &back, sizeof c);
  }
  assert_in_range(skipped, 0, 10);
  unlink(path);
}

static void wrong_keys_are_named(void **state) {
  choir_config c;
  refused(parse(&c, ", \"head\": 3", "", ""), "x.json", "model.head'", "did you mean 'heads'?");
  refused(parse(&c, ", \"router\": {\"capacity_fator\": 3}", "", ""), "model.router.capacity_fator",
          "'capacity_factor'");
  refused(parse(&c, "", ", \"optimiser\": \"adamw\"", ""), "train.optimiser", "'optimizer'");
  refused(parse(&c, "", "", ", \"trian\": {}"), "'trian'", "did you mean 'train'?");
  refused(parse(&c, ", \"zzzzzzzzzz\": 1", "", ""), "unknown key 'model.zzzzzzzzzz'");
  assert_null(strstr(choir_error_message(), "did you mean"));
  refused(parse(&c, ", \"heads\": 2", "", ""), "x.json: line 1, column", "duplicate");
  refused(parse(&c, ", \"router\": 3", "", ""), "x.json", "model.router", "object");
  refused(parse(&c, ", \"experts\"", "", ""), "x.json: line 1, column");
  refused(ch_config_parse("[1]", 3, "x.json", &c), "x.json", "object");
  refused(ch_config_parse("", 0, "x.json", &c), "x.json");
  refused(ch_config_load("/nonexistent/x.json", &c), "/nonexistent/x.json");
}

static void wrong_values_are_named(void **state) {
  choir_config c;
  refused(parse(&c, "", ", \"learning_rate\": \"fast\"", ""), "x.json", "train.learning_rate", "fast",
          "number above 0");
  refused(parse(&c, "", ", \"learning_rate\": 0", ""), "x.json", "train.learning_rate");
  assert_int_equal(parse(&c, "", ", \"learning_rate\": 0", ""), CHOIR_ERROR_FORMAT); /* of a file */
  refused(parse(&c, "", ", \"learning_rate\": 1e999", ""), "x.json");
  refused(parse(&c, "", ", \"learning_rate\": NaN", ""), "x.json: line");
  refused(parse(&c, "", ", \"steps\": -1", ""), "train.steps", "-1", "integer from 1");
  refused(parse(&c, "", ", \"seed\": 9007199254740993", ""), "train.seed", "9007199254740993");
  refused(parse(&c, "", ", \"optimizer\": \"adamv\"", ""), "adamv", "adafactor, adamw", "did you mean 'adamw'?");
  refused(parse(&c, "", ", \"schedule\": \"cosine\", \"cooldown_steps\": 9", ""), "cooldown_steps is 9", "cosine");
  refused(parse(&c, "", ", \"cooldown_steps\": 1.5", ""), "cooldown_steps is 1.5", "a share below 1, or an integer");
  refused(parse(&c, "", ", \"compute\": \"bf15\"", ""), "bf15", "'bf16'");
  refused(parse(&c, ", \"router\": {\"pool\": \"bach\"}", "", ""), "bach", "'batch'");
  refused(parse(&c, ", \"router\": {\"name\": \"expert_choise\"}", "", ""), "expert_choise", "'expert_choice'");
  refused(parse(&c, ", \"router\": {\"random_second\": 1}", "", ""), "model.router.random_second is 1",
          "true or false");
  refused(parse(&c, ", \"name\": 3", "", ""), "model.name is 3");
  choir_config ok;
  test_ok(parse(&ok, "", "", ""));
  c = ok;
  c.train.learning_rate = (double)NAN;
  refused(choir_config_check(&c), "train.learning_rate", "nan");
  refused(choir_config_save(&c, "/tmp/choir-never"), "/tmp/choir-never", "train.learning_rate");
}

static void impossible_sizes_are_named(void **state) {
  choir_config ok, c;
  test_ok(parse(&ok, "", "", ""));
#define TRY_SET(key, value) (c = ok, choir_config_set(&c, key, value) || choir_config_check(&c))
  refused(TRY_SET("heads", "3"), "d_model is 64", "heads 3");
  test_ok(choir_config_set(&c, "d_head", "20"));
  test_ok(choir_config_check(&c));
  refused(TRY_SET("experts", "1000"), "1000");
  refused(TRY_SET("capacity_factor", "0.001"), "0.001");
  refused(TRY_SET("moe_every", "5"), "moe_every is 5", "4 layers");
  refused(TRY_SET("router.name", "dense"), "dense", "experts");
  test_ok(choir_config_set(&ok, "router.name", "gshard_top2"));
  refused(TRY_SET("experts", "513"), "513", "512 tokens");
  test_ok(TRY_SET("experts", "512"));
  test_ok(choir_config_set(&ok, "router.name", "expert_choice"));
  c = ok;
  c.train.batch_sequences = c.train.sequence_length = 1 << 20;
  refused(choir_config_check(&c), "batch_sequences", "1048576", "accumulate");
  c = ok;
  c.model.layers = 4096, c.model.d_model = 1 << 17, c.model.d_hidden = 1 << 20, c.model.experts = 512;
  refused(choir_config_check(&c), "parameters", "d_hidden 1048576");
  c = ok; /* both draws of a sequence are in one micro-batch and shard */
  test_ok(choir_config_set(&c, "router.name", "random"));
  test_ok(choir_config_set(&c, "consistency_weight", "0.5"));
  c.train.batch_sequences = 1 << 15, c.train.sequence_length = 1 << 15;
  refused(choir_config_check(&c), "32768", "accumulate");
  c.train.batch_sequences = 4, c.train.sequence_length = 128, c.train.grad_chunks = 2;
  refused(choir_config_check(&c), "train.grad_chunks is 2", "must be 1");
  c.model.moe_every = 0; /* who routes nothing draws nothing */
  test_ok(choir_config_check(&c));
  refused(TRY_SET("rel_max_distance", "16"), "rel_max_distance is 16", "32");
}

/* A value that the option takes, other than the one of the config. */
static const char *other_value(const choir_config *c, const char *option) {
  static char text[CHOIR_VALUE_BYTES];
  choir_field f;
  test_ok(choir_config_describe(option, &f));
  test_ok(choir_config_get(c, option, text, sizeof text));
  double now = choir_config_number(c, option);
  if (f.kind == CHOIR_FIELD_WORD) return f.words[!strcmp(f.words[0], text)];
  if (f.kind == CHOIR_FIELD_FLAG) return now != 0 ? "false" : "true";
  if (f.kind != CHOIR_FIELD_INTEGER) return now == 0.5 ? "0.25" : "0.5";
  snprintf(text, sizeof text, "%d", (int)now + 1);
  return text;
}

/* A config with a router, for which it is right. */
static choir_config config_with(const char *router) {
  choir_config c;
  test_ok(parse(&c, "", "", ""));
  test_ok(choir_config_set(&c, "router.name", router));
  if (!strcmp(router, "dense")) test_ok(choir_config_set(&c, "experts", "1"));
  test_ok(choir_config_check(&c));
  return c;
}

/* An option that the router does not take is refused by name, in a file and with --set; its own options are taken. */
static void check_router_option(const ch_router *router, int number) {
  choir_config c = config_with(router->name);
  const char *option = ch_router_option_names[number], *value = other_value(&c, option);
  float score[64] = {0}, gate[64];
  choir_layer *layer;
  test_ok(choir_config_set(&c, option, value));
  choir_layer_options o = {.size = sizeof o, .tokens = 32, .d_model = 2, .d_hidden = 2, .experts = 2, .config = &c};
  int code = choir_config_check(&c), taken = ch_router_takes(router, (ch_router_option)number);
  if (taken && code) assert_null(strstr(choir_error_message(), "but router"));
  if (taken) return;
  refused(code, option, value, router->name, "does not take it");
  choir_route_request request = {.config = &c, .n = 32, .e = 2, .scores = score, .is_logits = 1};
  refused(choir_route(&request, gate, NULL), option, value, router->name);
  request.thresholds = score;
  refused(choir_route(&request, gate, NULL), option, value);
  refused(choir_layer_create(&o, &layer), option, value, router->name);
}

static void options_that_do_nothing(void **state) {
  choir_config exact = config_with("capped_expert_choice");
  test_ok(choir_config_set(&exact, "solver_lambda", "0.5"));
  refused(choir_config_check(&exact), "model.router.solver_lambda is 0.5, but solver 'exact' does not take it",
          "dykstra");
  test_ok(choir_config_set(&exact, "solver", "dykstra"));
  test_ok(choir_config_check(&exact));
  for (int i = 0; ch_routers[i]; i++)
    for (int j = 0; ch_router_option_names[j]; j++) check_router_option(ch_routers[i], j);
  uint64_t of_some = 0;
  for (int i = 0; ch_optims[i]; i++) of_some |= ch_optims[i]->options;
  assert_int_equal(__builtin_popcountll(of_some), 3);
  for (int i = 0; ch_optims[i]; i++)
    for (int j = 0; ch_train_field_names[j]; j++) {
      if (!(of_some >> j & 1)) continue;
      choir_config c = config_with("expert_choice");
      test_ok(choir_config_set(&c, "optimizer", ch_optims[i]->name));
      test_ok(choir_config_set(&c, ch_train_field_names[j], other_value(&c, ch_train_field_names[j])));
      if (ch_optims[i]->options >> j & 1)
        test_ok(choir_config_check(&c));
      else
        refused(choir_config_check(&c), ch_train_field_names[j], ch_optims[i]->name, "does not take it");
    }
  choir_config c;
  refused(parse(&c, ", \"router\": {\"cap\": 1}", "", ""), "model.router.cap is 1", "'expert_choice' does not take it");
}

/* choir reads what it writes: all fields, with those that the router does not take at its defaults. */
static void saved_configs_load(void **state) {
  for (int i = 0; ch_routers[i]; i++) {
    choir_config c = config_with(ch_routers[i]->name), back;
    json_t *all = ch_config_json(&c);
    char *text = json_dumps(all, 0);
    test_ok(ch_config_parse(text, strlen(text), "saved.json", &back));
    assert_memory_equal(&c, &back, sizeof c);
    free(text);
    json_decref(all);
  }
}

static void threshold_training_is_checked(void **state) {
  choir_config ok, c;
  test_ok(parse(&ok, "", "", ""));
  test_ok(choir_config_set(&ok, "threshold_after", "7"));
  refused(TRY_SET("pool", "sequence"), "threshold_after is 7", "pool 'sequence'");
}

static void set_takes_tails(void **state) {
  choir_config c;
  test_ok(parse(&c, "", "", ""));
  test_ok(choir_config_set(&c, "learning_rate", "0.05"));
  test_ok(choir_config_set(&c, "router.capacity_factor", "1.5"));
  test_ok(choir_config_set(&c, "train.steps", "1e4"));
  test_ok(choir_config_set(&c, "model.name", "me"));
  assert_true(c.train.learning_rate == 0.05 && c.model.router.capacity_factor == 1.5 && c.train.steps == 10000);
  assert_string_equal(c.model.name, "me");
  refused(choir_config_set(&c, "name", "me"), "model.name", "model.router.name");
  refused(choir_config_set(&c, "learning_rat", "1"), "unknown key 'learning_rat'", "'learning_rate'");
  refused(choir_config_set(&c, "", "1"), "unknown key ''");
  refused(choir_config_set(&c, "train.learning_rte", "1"), "train.learning_rate");
  refused(choir_config_set(&c, "learning_rate", "0.05x"), "train.learning_rate is '0.05x'");
  refused(choir_config_set(&c, "learning_rate", ".05"), "as JSON writes numbers: 0.05");
  refused(choir_config_set(&c, "model.name", "\xff"), "model.name");
}

static void a_router_brings_its_defaults(void **state) {
  choir_config c, d;
  test_ok(parse(&c, ", \"router\": {\"jitter\": 0.25, \"name\": \"switch_top1\"}", "", ""));
  assert_true(c.model.router.capacity_factor == 1.25 && c.model.router.jitter == 0.25);
  test_ok(parse(&d, "", "", ""));
  test_ok(choir_config_set(&d, "router.name", "switch_top1"));
  assert_true(d.model.router.capacity_factor == 1.25);
  test_ok(choir_config_set(&d, "capacity_factor", "3"));
  test_ok(choir_config_set(&d, "router.name", "switch_top1")); /* the same again changes nothing */
  assert_true(d.model.router.capacity_factor == 3);
}

/* What another router's name takes back is said, if the new one would have taken it. */
static void options_that_fall_back_are_named(void **state) {
  choir_config c;
  test_ok(parse(&c, ", \"router\": {\"score\": \"sigmoid\", \"capacity_factor\": 4}", "", ""));
  choir_notices();
  test_ok(choir_config_set(&c, "router.name", "topk"));
  assert_string_equal(choir_notices(),
                      "model.router.name is topk now, which brings defaults of its own: capacity_factor 0 (was 4), "
                      "score softmax (was sigmoid); set again what is to stay\n");
  test_ok(choir_config_set(&c, "score", "sigmoid"));
  test_ok(choir_config_set(&c, "router.name", "topk"));
  test_ok(choir_config_set(&c, "router.name", "hash"));
  assert_string_equal(choir_notices(), "");
}

/* Several fields set at once: the order of the keys has no effect, and an error changes nothing. */
static void fields_set_together_have_no_order(void **state) {
  static const char *const keys[] = {"router.score", "router.capacity_factor", "model.router.name", "router.cap"};
  static const char *const values[] = {"sigmoid", "3", "capped_expert_choice", "4"};
  choir_config c, before;
  test_ok(parse(&c, ", \"router\": {\"normalize_gates\": true, \"capacity_factor\": 4}", "", ""));
  choir_notices();
  before = c;
  for (int shift = 0; shift < 4; shift++) {
    const char *k[4], *v[4];
    c = before;
    for (int i = 0; i < 4; i++) k[i] = keys[(i + shift) % 4], v[i] = values[(i + shift) % 4];
    test_ok(choir_config_update(&c, k, v, 4));
    assert_string_equal(c.model.router.kind->name, "capped_expert_choice");
    assert_true(c.model.router.score == CH_SIGMOID && c.model.router.capacity_factor == 3 && c.model.router.cap == 4);
    assert_string_equal(choir_notices(),
                        "model.router.name is capped_expert_choice now, which brings defaults of its own: "
                        "normalize_gates false (was true); set again what is to stay\n");
  }
  c = before;
  test_fails(choir_config_update(&c, (const char *[]){"steps", "router.cap"}, (const char *[]){"7", "x"}, 2),
             CHOIR_ERROR_ARGUMENT, "model.router.cap is 'x'");
  assert_true(c.train.steps == before.train.steps);
  test_fails(choir_config_update(&c, (const char *[]){"steps", NULL}, (const char *[]){"7", "1"}, 2),
             CHOIR_ERROR_ARGUMENT, "keys[1] is NULL");
}

/* Files of earlier versions are read, and whoever sets a field by its former name is told of the present one. */
static void former_names_are_read(void **state) {
  choir_config c;
  choir_notices();
  test_ok(parse(&c, "", ", \"rate\": 0.25, \"shards\": 1", ", \"parallel\": {\"wire\": \"bf16\"}"));
  assert_string_equal(choir_notices(), "");
  assert_true(c.train.learning_rate == 0.25 && c.parallel.dispatch_dtype == CH_COMPUTE_BF16);
  refused(parse(&c, "", ", \"rate\": 0.25, \"learning_rate\": 0.25", ""), "train.learning_rate now", "both");
  refused(parse(&c, "", ", \"rate\": \"fast\"", ""), "train.learning_rate", "fast");
  test_ok(choir_config_set(&c, "train.rate", "0.5"));
  assert_string_equal(choir_notices(), "'train.rate' is called train.learning_rate now\n");
  test_ok(choir_config_set(&c, "shards", "1"));
  assert_string_equal(choir_notices(), "'shards' is called train.grad_chunks now\n");
  assert_true(c.train.learning_rate == 0.5);
  refused(choir_config_set(&c, "parallel.rate", "1"), "unknown key 'parallel.rate'");
}

static void shipped_configs_load(void **state) {
  static const char *const names[] = {"pico",     "nano",     "small",     "0.1b-dense", "0.1b-16e",
                                      "0.1b-32e", "0.1b-64e", "0.1b-128e", "8b-dense",   "8b-64e"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[512];
    choir_config c;
    snprintf(path, sizeof path, "%s/configs/%s.json", CHOIR_SOURCE_DIR, names[i]);
    test_ok(ch_config_load(path, &c));
    assert_int_equal(c.train.sequence_length * c.train.batch_sequences, strcmp(names[i], "pico") ? 4096 : 2048);
  }
}

TEST_MAIN(NULL, NULL, defaults_are_the_design, every_field_round_trips, wrong_keys_are_named, wrong_values_are_named,
          impossible_sizes_are_named, options_that_do_nothing, saved_configs_load, threshold_training_is_checked,
          set_takes_tails, a_router_brings_its_defaults, options_that_fall_back_are_named,
          fields_set_together_have_no_order, former_names_are_read, shipped_configs_load)
