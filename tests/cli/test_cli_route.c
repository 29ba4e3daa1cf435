/* choir route: every router as the library has it, tables of text, and what is refused. */
#include "moe/router.h"
#include "npy/npy.h"
#include "program.h"

static void save(const char *path, ch_npy_type type, int dims, void *data) {
  test_ok(ch_npy_write(path, &(ch_npy){.type = type, .dims = dims, .shape = {4, 4}, .data = data}));
}

/* A value that is refused is named by file, place and value. */
static void values_are_named(void) {
  float scores[16], thresholds[4] = {0, NAN, 0, 0};
  int32_t ids[4] = {1, 2, -3, 4};
  for (int i = 0; i < 16; i++) scores[i] = 0.25f;
  save("one.npy", CH_NPY_FLOAT32, 2, scores);
  save("beta.npy", CH_NPY_FLOAT32, 1, thresholds);
  save("ids.npy", CH_NPY_INT32, 1, ids);
  scores[6] = NAN;
  save("nan.npy", CH_NPY_FLOAT32, 2, scores);
  program_refuses(1, "nan.npy: scores[1,2] (row, column) is nan", "choir route --router base nan.npy --logits");
  program_refuses(1, "ids.npy: tokens[2] is -3", "choir route --router hash one.npy --tokens ids.npy");
  program_refuses(1, "beta.npy: thresholds[1] is nan",
                  "choir route --router expert_choice one.npy --thresholds beta.npy");
}

/* The table of docs/moe.md, whose answers a reader checks by it: who took whom, and the cut-offs. */
static void route_of_a_table(void **state) {
  (void)state;
  static const char table[] =
      "0.55, 0.25,0.20\r\n0.35\t0.55\t0.10\n\n0.65 0.25 0.10\n0.70,0.20,0.10\n0.15 0.35 0.50\n0.30 0.30 0.40";
  static const int wanted[3][2] = {{2, 3}, {1, 4}, {4, 5}};
  static const double cutoffs[] = {0.65, 0.35, 0.40};
  test_ok(ch_file_save("table.csv", table, sizeof table - 1));
  program_must("choir route --router expert_choice --capacity-factor 1 table.csv --json");
  json_t *root = program_json();
  for (size_t i = 0; i < 3; i++) {
    const json_t *tokens = json_array_get(json_object_get(root, "taken"), i);
    assert_int_equal(json_array_size(tokens), 2);
    for (size_t k = 0; k < 2; k++) assert_int_equal(json_integer_value(json_array_get(tokens, k)), wanted[i][k]);
    assert_float_equal(json_real_value(json_array_get(json_object_get(root, "cutoffs"), i)), cutoffs[i], 1e-6);
  }
  json_decref(root);
  program_must("choir route --router expert_choice --capacity-factor 1 table.csv");
  assert_non_null(strstr(program_output, "1   0.3500  1 (0.5500) 4 (0.3500)"));
  program_must("choir route --router switch_top1 --set capacity_factor=0.9 table.csv"); /* one is dropped */
  assert_non_null(strstr(program_output, "mean 1.67"));
  program_must(
      "printf '0.65 0.35 0.40' >cut.txt && printf '0.2 0.5 0.3' >one.txt && "
      "choir route --router expert_choice --thresholds cut.txt one.txt");
  assert_non_null(strstr(program_output, "1  0 (0.5000)"));
  program_refuses(1, "x: line 2 has 1 numbers, the lines before it 2",
                  "printf '1 2\n3' >x && choir route --router base x");
  program_refuses(1, "x: line 1: 'a' is no number", "printf 'a 2' >x && choir route --router base x");
  program_refuses(1, "x: line 1: '' is no number", "printf '1,,2' >x && choir route --router base x");
  program_refuses(1, "x: has no numbers", "printf '\n' >x && choir route --router base x");
  program_refuses(1, "x: scores[0,1] (row, column) is nan", "printf '1 nan' >x && choir route --router base x");
  program_refuses(1, "table.csv: has 6 rows of 3", "choir route --router expert_choice --thresholds table.csv one.txt");
}

static void route(void **state) {
  enum { n = 48, e = 6 };
  float scores[n * e], wanted[n * e];
  uint8_t valid[n];
  test_normal(scores, n * e, 1);
  for (int t = 0; t < n; t++) valid[t] = t % 5 != 0;
  test_ok(ch_npy_write("s.npy", &(ch_npy){.type = CH_NPY_FLOAT32, .dims = 2, .shape = {n, e}, .data = scores}));
  test_ok(ch_npy_write("v.npy", &(ch_npy){.type = CH_NPY_UINT8, .dims = 1, .shape = {n}, .data = valid}));
  for (const char *const *name = choir_router_names(); *name; name++) {
    if (!strcmp(*name, "hash") || !strcmp(*name, "random")) {
      program_refuses(1, "token", "choir route --router %s s.npy", *name);
      continue;
    }
    if (!strcmp(*name, "dense")) {
      program_refuses(1, "one expert", "choir route --router dense s.npy");
      continue;
    }
    ch_router_spec options;
    options = test_router(*name);
    int capacity = ch_router_takes(ch_router_find(*name), CH_OPTION_capacity_factor);
    if (capacity) options.capacity_factor = 1.5;
    test_ok(choir_route(
        &(choir_route_request){
            .config = test_config_of(&options), .n = n, .e = e, .scores = scores, .is_logits = 1, .valid = valid},
        wanted, NULL));
    program_must("choir route --router %s %s s.npy --logits --valid v.npy --out g.npy --json", *name,
                 capacity ? "--capacity-factor 1.5" : "");
    json_t *root = program_json();
    int64_t assigned = 0, loads = 0;
    ch_npy gates;
    test_ok(ch_npy_read("g.npy", CH_NPY_FLOAT32, 2, &gates));
    assert_memory_equal(gates.data, wanted, sizeof wanted);
    for (int i = 0; i < n * e; i++) assigned += wanted[i] != 0;
    for (int i = 0; i < e; i++) loads += json_integer_value(json_array_get(json_object_get(root, "load"), (size_t)i));
    assert_int_equal(assigned, loads);
    assert_int_equal(loads, (int64_t)json_at(root, "assignments"));
    ch_npy_free(&gates);
    json_decref(root);
  }
  program_must("choir route --router quantile_balanced s.npy --logits --set experts_per_token=3 --json");
  json_t *root = program_json();
  assert_int_equal((int64_t)json_at(root, "assignments"), 3 * n);
  json_decref(root);
  program_refuses(1, "router.cap is -1", "choir route --router global_topk s.npy --set cap=-1");
  program_refuses(1, "expert_choice", "choir route --router expert_chioce s.npy");
  values_are_named();
  program_refuses(1, "s.npy", "choir route --router hash s.npy --tokens s.npy");
  program_refuses(1, "router 'expert_choice' does not take", "choir route --router expert_choice s.npy --set cap=1");
  program_refuses(1, "'base' does not take", "choir route --router base s.npy --capacity-factor 2");
  program_refuses(1, "'base' does not take", "choir route --router base s.npy --pool sequence --length 8");
  program_refuses(2, "only options of the router", "choir route --router base s.npy --set train.steps=3");
  program_refuses(2, "select the router with --router", "choir route --router base s.npy --set router.name=hash");
  program_refuses(2, "without --training", "choir route --router gshard_top2 s.npy --random-second");
  program_refuses(2, "--length has an effect only", "choir route --router expert_choice s.npy --length 8");
  program_refuses(2, "--training has no effect", "choir route --router expert_choice s.npy --thresholds t --training");
  program_refuses(2, "--tokens has no effect", "choir route --router expert_choice s.npy --tokens t.npy");
  program_refuses(2, "--seed has no effect", "choir route --router gshard_top2 s.npy --seed 3 --training");
  program_refuses(2, "has an effect in training only",
                  "choir route --router switch_top1 s.npy --set router.jitter=0.1");
  program_refuses(1, "capacity_factor is -0.5", "choir route --router expert_choice s.npy --capacity-factor -0.5");
}

TEST_MAIN(program_directory_make, program_directory_remove, route, route_of_a_table)
