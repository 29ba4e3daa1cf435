/* ch_bench_run of whole models and of text: the timed computation gives right results, and the reported counts equal
 * counts made another way. */
#include "bench/bench.h"
#include "model/config.h"
#include "op/backend.h"
#include "program.h"

#define PICO CHOIR_SOURCE_DIR "/configs/pico.json"
enum { V = 8192 }; /* of the bench, where a config leaves it to the data */

static ch_peak peak = {.threads = 2, .fp32_gflops = 100, .bf16_gflops = 200, .read_gbs = 10, .triad_gbs = 20};
static ch_bench_options options = {.threads = 2, .repetitions = 2, .seconds = 1e-6, .peak = &peak};

static ch_bench_result measured(const char *problem, double tolerance) {
  ch_bench_result r;
  test_ok(ch_bench_run(problem, &options, &r));
  if (!(r.error <= tolerance)) fail_msg("%s: error %g", problem, r.error);
  assert_true(r.repetitions >= 2 && r.min_seconds > 0 && r.min_seconds <= r.seconds && r.tokens > 0);
  return r;
}

static double figure(const ch_bench_result *r, const char *name) {
  for (int i = 0; i < r->figures; i++)
    if (!strcmp(r->figure[i].name, name)) return r->figure[i].value;
  fail_msg("no figure '%s' of %s", name, r->problem);
  return 0;
}

/* Gives what the config costs when tokens have that many experts and sequences that length. */
static choir_config_costs costs_at(double experts, int length) {
  choir_config c;
  choir_config_costs costs;
  test_ok(ch_config_load(PICO, &c));
  c.model.vocab_size = V;
  c.model.router.capacity_factor = experts;
  c.train.sequence_length = length;
  test_ok(choir_config_get_costs(&c, &costs));
  return costs;
}

static int near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * fabs(b); }

static void decoding_agrees_with_a_whole_pass(void **state) {
  ch_bench_result r = measured("decode prompt=7 tokens=5 config=" PICO, 1e-5);
  double experts = figure(&r, "experts a token");
  assert_true(experts > 1.2 && experts < 2.8); /* c = 2, but for so few tokens */
  assert_int_equal(r.tokens, 5);
  assert_string_equal(r.unit, "tokens/s");
  assert_true(near(r.rate, 5 / r.seconds, 1e-9) && near(r.share, r.gbs / figure(&r, "GB/s of reading"), 1e-9));
  /* all active parameters but norms and relative positions, which are small, in 4 bytes */
  double active = 4 * (double)costs_at(experts, 7).active_parameters;
  assert_true(near(r.bytes / 5, active, 0.01) && r.bytes / 5 < active);
}

static void prompts_agree_with_a_whole_pass(void **state) {
  enum { N = 40, D = 64 };
  ch_bench_result r = measured("prompt tokens=40 config=" PICO, 1e-5);
  double experts = figure(&r, "experts a token"), head = 2.0 * D * V;
  assert_true(experts > 1.2 && experts < 2.8);
  assert_true(near(r.flops, N * (costs_at(experts, N).forward_flops_per_token - head) + head, 1e-9));
  assert_true(near(figure(&r, "prompt over training"), r.gflops / figure(&r, "GFLOP/s of training's forward"), 1e-9));
  assert_true(r.share > 0 && near(r.share, r.gflops / peak.fp32_gflops, 1e-9));
}

static void bf16_halves_what_is_read(void **state) {
  if (ch_backend_find("cpu")->supports(CH_COMPUTE_BF16, 0) != CHOIR_OK) test_skip("bf16: the CPU has none");
  ch_bench_result full = measured("decode prompt=7 tokens=5 config=" PICO, 1e-5);
  ch_bench_result half = measured("decode prompt=7 tokens=5 compute=bf16 config=" PICO, 1);
  double each = figure(&full, "MB of weights a token") / figure(&half, "MB of weights a token");
  ch_bench_result rounded = measured("step B=1 T=32 compute=bf16 config=" PICO, 0.05);
  assert_true(rounded.error > 1e-7);     /* it is measured */
  assert_true(each > 1.6 && each < 2.4); /* the router's product stays fp32, and some token may take other experts */
}

static void steps_take_another_router(void **state) {
  ch_bench_result r = measured("step B=1 T=32 router=switch_top1 c=1 config=" PICO, 1e-5);
  assert_true(figure(&r, "% of choices dropped") > 0 && r.tokens == 32);
  assert_true(near(figure(&r, "slots a token"), 1 - figure(&r, "% of choices dropped") / 100, 1e-9));
  assert_true(near(r.flops, 3 * 32 * costs_at(1, 32).forward_flops_per_token, 1e-9));
  measured("step B=1 T=32 c=4 router=expert_choice config=" PICO, 1e-5);
}

static void text_comes_back(void **state) {
  ch_bench_result r = measured("tokenize MB=0.1 V=400", 0);
  assert_string_equal(r.unit, "MB/s");
  double bytes = figure(&r, "bytes a token") * (double)r.tokens;
  assert_true(bytes >= 1e5 && bytes < 1e5 + 200 && near(r.rate, bytes / r.seconds * 1e-6, 1e-9));
}

/* A file's beginning, and a tokenizer that is there already. */
static void takes_files(void **state) {
  ch_bench_result r;
  program_must(
      "for i in 1 2 3 4 5; do cat '%s/docs/performance.md' '%s/docs/design.md'; done >text.txt && "
      "choir tokenizer train --vocab-size 400 --out small.model text.txt",
      CHOIR_SOURCE_DIR, CHOIR_SOURCE_DIR);
  r = measured("tokenize file=text.txt MB=0.02 tokenizer=small.model", 0);
  assert_true(near(figure(&r, "bytes a token") * (double)r.tokens, 2e4, 1e-9) && r.tokens < 18000);
  test_fails(ch_bench_run("tokenize file=none.txt", &options, &r), CHOIR_ERROR_IO, "none.txt");
  assert_int_equal(ch_bench_run("tokenize MB=0.01 tokenizer=none.model", &options, &r), CHOIR_ERROR_IO);
  assert_int_equal(ch_bench_run("tokenize MB=0.02 V=20000", &options, &r), CHOIR_ERROR_ARGUMENT);
  assert_non_null(strstr(choir_error_message(), "V=20000"));
}

/* The program expands groups, and compares by the time of a token; keys of the user's come last and so count. */
static void groups_compare_with_their_first(void **state) {
  program_must(
      "choir bench --json --repetitions 1 --seconds 0 flat n=256 d=8 h=8 c=1 moe n=16 d=8 h=8 e=4 linear d=8 h=8");
  json_t *said = program_json(), *rows = json_object_get(said, "results"), *row;
  size_t i, linear = 4;
  assert_true(json_array_size(rows) > linear + 2);
  json_array_foreach(rows, i, row) {
    const json_t *first = json_array_get(rows, i < linear ? 0 : linear);
    if (i == 3) assert_null(json_object_get(row, "ratio"));
    if (i == 3) continue;
    double want = json_at(row, "min_seconds") / json_at(row, "tokens") * json_at(first, "tokens");
    assert_true(near(json_at(row, "ratio"), want / json_at(first, "min_seconds"), 1e-6));
    assert_true(json_at(row, "tokens") == (i < linear ? 256 : 1024 << (i - linear)));
    assert_non_null(strstr(json_string_value(json_object_get(row, "problem")), i < linear ? "c=1" : "d=8"));
  }
  json_decref(said);
  program_must("choir bench --repetitions 1 --seconds 0 routers n=64 d=8 h=8 e=4");
  assert_non_null(strstr(program_output, "x 1.000"));
  assert_non_null(strstr(program_output, "% of choices dropped"));
  program_refuses(2, "no key 'dd'", "choir bench flat dd=8");
}

/* One row for each number of threads, the last as many as there may be. */
static void scales_by_threads(void **state) {
  program_must("choir bench --json --repetitions 1 --seconds 0 --threads 3 scaling B=1 T=32 config=" PICO);
  json_t *said = program_json(), *rows = json_object_get(said, "results"), *row;
  size_t i;
  assert_int_equal(json_array_size(rows), 3);
  json_array_foreach(rows, i, row) {
    const json_t *first = json_array_get(rows, 0);
    assert_true(json_at(row, "threads") == (double)(i + 1) && json_at(row, "share") > 0);
    assert_true(near(json_at(row, "ratio"), json_at(row, "min_seconds") / json_at(first, "min_seconds"), 1e-6));
  }
  json_decref(said);
  program_must("choir bench --repetitions 1 --seconds 0 --threads 1 scaling B=1 T=32 config=" PICO);
  assert_null(strstr(program_output, "would be on a single thread")); /* of one nothing is said */
}

/* A case that the machine cannot run leaves those of the others. */
static void json_goes_on_without_bf16(void **state) {
  program_must(
      "CHOIR_ISA=generic choir bench --json --repetitions 1 --seconds 0 gemm m=8 n=8 k=8 compute=bf16 gelu count=10");
  json_t *said = program_json(), *rows = json_object_get(said, "results");
  assert_int_equal(json_array_size(rows), 2);
  assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "share")));
  assert_non_null(json_object_get(json_array_get(rows, 0), "unsupported"));
  assert_true(json_at(json_array_get(rows, 1), "seconds") > 0);
  json_decref(said);
}

TEST_MAIN(program_directory_make, program_directory_remove, decoding_agrees_with_a_whole_pass,
          prompts_agree_with_a_whole_pass, bf16_halves_what_is_read, steps_take_another_router, text_comes_back,
          takes_files, groups_compare_with_their_first, scales_by_threads, json_goes_on_without_bf16)
