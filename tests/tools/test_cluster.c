/* Files about clusters: what they say, what a bench adds, and what is refused, by name and with a way out. */
#include <glob.h>

#include "plan/cluster.h"
#include "testing.h"

static const char whole[] =
    "{\"name\": \"two racks\", \"notes\": \"made up\", \"ranks\": 16, \"fp32_gflops\": 100, \"bf16_gflops\": 400, "
    "\"shares\": {\"experts\": 0.5, \"head\": 0.25}, \"memory_gib\": 8, \"memory_gbs\": 20, \"message_us\": 2, "
    "\"levels\": [{\"name\": \"node\", \"ranks\": 2, \"bandwidth_gbs\": 10, \"latency_us\": 1}, "
    "{\"name\": \"rack\", \"ranks\": 8, \"bandwidth_gbs\": 5, \"latency_us\": 3, \"topology\": \"torus\", "
    "\"dimensions\": [2, 2]}, "
    "{\"name\": \"top\", \"ranks\": 16, \"bandwidth_gbs\": 4, \"latency_us\": 9, \"topology\": \"fat_tree\", "
    "\"oversubscription\": 2}], \"price_per_rank_hour\": 3, \"currency\": \"EUR\"}";

static int parse(const char *text, ch_cluster *c) {
  int code = ch_cluster_parse(text, strlen(text), "c.json", 0, c);
  return code ? code : ch_cluster_check("c.json", c);
}

static void prints_the_cluster(void **state) {
  ch_cluster c;
  test_ok(parse(whole, &c));
  assert_string_equal(c.name, "two racks");
  assert_string_equal(c.currency, "EUR");
  assert_int_equal(c.ranks, 16);
  assert_true(c.fp32 == 100e9 && c.bf16 == 400e9 && c.memory == 8 * 0x1p30 && c.memory_bandwidth == 20e9);
  assert_true(c.message == 2e-6 && c.price == 3);
  assert_true(c.share[CH_FLOPS_EXPERTS] == 0.5 && c.share[CH_FLOPS_HEAD] == 0.25);
  assert_int_equal(c.assumed, 1u << CH_FLOPS_ATTENTION | 1u << CH_FLOPS_DENSE | 1u << CH_FLOPS_ROUTER);
  assert_int_equal(c.levels, 3);
  assert_true(c.level[1].topology == CH_TORUS && c.level[1].dims == 2 && c.level[1].dim[0] == 2);
  assert_true(c.level[1].bandwidth == 5e9 && c.level[1].latency == 3e-6 && c.level[1].oversubscription == 1);
  assert_true(c.level[2].topology == CH_FAT_TREE && c.level[2].oversubscription == 2);
}

/* The file with `from` as `to` is refused, with the name of the file and a message that has `part`. */
static void refused(const char *from, const char *to, const char *part) {
  char text[2048];
  ch_cluster c;
  const char *at = strstr(whole, from);
  assert_non_null(at);
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
  test_fails(parse(text, &c), CHOIR_ERROR_FORMAT, part);
  if (!strstr(choir_error_message(), "c.json")) fail_msg("no file in: %s", choir_error_message());
}

static void refusals_name_field_and_value(void **state) {
  refused("\"ranks\": 16", "\"rank\": 16", "did you mean 'ranks'");
  refused("\"ranks\": 16", "\"ranks\": 16, \"ranks\": 16", "duplicate");
  refused("\"ranks\": 16", "\"ranks\": 0", "\"ranks\" is 0: must be an integer from 1 to 1024");
  refused("\"ranks\": 16", "\"ranks\": 16.5", "16.5");
  refused("\"ranks\": 16", "\"ranks\": 1e3", "1000");
  refused("\"ranks\": 16", "\"ranks\": 99999999999999999999", "integer");
  refused("\"ranks\": 16", "\"ranks\": 32", "tie 16 ranks together, and there are 32: add a level of 32");
  refused("\"ranks\": 16, ", "", "\"ranks\" is missing");
  refused("\"name\": \"two racks\"", "\"name\": 7", "\"name\" is 7");
  refused("\"name\": \"two racks\", ", "", "\"name\" is missing");
  refused("two racks", "a name that is longer than the sixty-three bytes which a cluster's name may have",
          "at most 63");
  refused("\"EUR\"", "\"Deutschmarks\"", "\"currency\" has 12 bytes: at most 7");
  refused("\"fp32_gflops\": 100, ", "", "\"fp32_gflops\" is missing: give it, or \"bench\"");
  refused("\"memory_gbs\": 20, ", "", "\"memory_gbs\" is missing");
  refused("\"fp32_gflops\": 100", "\"fp32_gflops\": -1", "\"fp32_gflops\" is -1");
  refused("\"fp32_gflops\": 100", "\"fp32_gflops\": \"fast\"", "\"fast\"");
  refused("\"memory_gib\": 8", "\"memory_gib\": null", "\"memory_gib\" is null");
  refused("\"experts\": 0.5", "\"experts\": 0", "shares: \"experts\" is 0");
  refused("\"experts\": 0.5", "\"experts\": 1.5", "shares: \"experts\" is 1.5");
  refused("\"experts\": 0.5", "\"expert\": 0.5", "shares: unknown key 'expert', did you mean 'experts'");
  refused("\"shares\": {\"experts\": 0.5, \"head\": 0.25}", "\"shares\": 1", "\"shares\" is 1");
  refused("\"rack\"", "\"node\"", "levels[1]: \"name\" is \"node\", as that of another level");
  refused("\"ranks\": 2", "\"ranks\": 3", "levels[1]: \"ranks\" is 8: must be a multiple of the 3");
  refused("\"ranks\": 8", "\"ranks\": 2", "levels[1]: \"ranks\" is 2: must be a multiple of the 2");
  refused("\"bandwidth_gbs\": 5", "\"bandwidth_gbs\": 0", "levels[1]: \"bandwidth_gbs\" is 0");
  refused("\"bandwidth_gbs\": 5", "\"bandwith_gbs\": 5", "did you mean 'bandwidth_gbs'");
  refused("\"latency_us\": 3", "\"latency_us\": -3", "levels[1]: \"latency_us\" is -3");
  refused("\"torus\"", "\"ring\"", "levels[1]: \"topology\" is \"ring\": must be one of: flat, fat_tree, torus");
  refused("\"torus\"", "\"flat\"", "\"dimensions\" belong to a torus");
  refused("[2, 2]", "[2, 3]", "\"dimensions\" make 6 places for 4 units");
  refused("[2, 2]", "[]", "\"dimensions\" has 0 numbers");
  refused("[2, 2]", "[2, -2]", "\"dimensions\"[1]");
  refused("[2, 2]", "[1024, 1024, 1024, 1024]", "1099511627776 places");
  refused(", \"dimensions\": [2, 2]", "", "\"dimensions\" is missing");
  refused("\"fat_tree\"", "\"flat\"", "\"oversubscription\" belongs to a fat_tree");
  refused("\"oversubscription\": 2", "\"oversubscription\": 0.5", "levels[2]: \"oversubscription\" is 0.5");
  refused("\"levels\": [", "\"levels\": [7, ", "levels[0]: must be an object");
  refused("\"price_per_rank_hour\": 3", "\"price_per_rank_hour\": 1e400", "c.json");
  refused("}", "", "c.json");
}

static void one_rank_needs_no_links(void **state) {
  ch_cluster c;
  test_ok(parse("{\"name\": \"one\", \"ranks\": 1, \"fp32_gflops\": 1, \"memory_gib\": 1, \"memory_gbs\": 1}", &c));
  assert_int_equal(c.levels, 0);
  test_fails(parse("{\"name\": \"two\", \"ranks\": 2, \"fp32_gflops\": 1, \"memory_gib\": 1, \"memory_gbs\": 1}", &c),
             CHOIR_ERROR_FORMAT, "\"levels\" is missing");
}

/* The file's word goes before what was measured. */
static void a_bench_fills_what_is_open(void **state) {
  static const char bare[] =
      "{\"name\": \"one\", \"ranks\": 1, \"bench\": \"b.json\", \"fp32_gflops\": 7, \"memory_gib\": 1, "
      "\"shares\": {\"head\": 0.125}}";
  static const char bench[] =
      "{\"peak\": {\"fp32_gflops\": 50, \"bf16_gflops\": 90, \"read_gbs\": 12}, \"results\": ["
      "{\"problem\": \"moe n=4096 d=768\", \"share\": 0.5}, {\"problem\": \"head n=1\", \"share\": 0.75}, "
      "{\"problem\": \"gelu count=9\", \"share\": 0.9}, {\"problem\": \"attention B=8\", \"share\": null}]}";
  ch_cluster c;
  test_ok(ch_cluster_parse(bare, strlen(bare), "c.json", 0, &c));
  assert_string_equal(c.bench, "b.json");
  test_ok(ch_cluster_parse(bench, strlen(bench), "b.json", 1, &c));
  test_ok(ch_cluster_check("c.json", &c));
  assert_true(c.fp32 == 7e9 && c.bf16 == 90e9 && c.memory_bandwidth == 12e9);
  assert_true(c.share[CH_FLOPS_EXPERTS] == 0.5 && c.share[CH_FLOPS_HEAD] == 0.125);
  assert_int_equal(c.assumed, 1u << CH_FLOPS_ATTENTION | 1u << CH_FLOPS_DENSE | 1u << CH_FLOPS_ROUTER);
  const char *wrong = "{\"peak\": {\"fp32_gflops\": 50, \"bf16_gflops\": 90, \"read_gbs\": 0}, \"results\": []}";
  test_fails(ch_cluster_parse(wrong, strlen(wrong), "b.json", 1, &c), CHOIR_ERROR_FORMAT,
             "b.json: peak: \"read_gbs\" is 0");
}

static void examples_are_clusters(void **state) {
  glob_t found = {0};
  ch_cluster c;
  assert_int_equal(glob(CHOIR_SOURCE_DIR "/examples/clusters/*.json", 0, NULL, &found), 0);
  assert_true(found.gl_pathc >= 4);
  for (size_t i = 0; i < found.gl_pathc; i++) test_ok(ch_cluster_load(found.gl_pathv[i], &c));
  globfree(&found);
  test_fails(ch_cluster_load("/nonexistent/cluster.json", &c), CHOIR_ERROR_IO, "/nonexistent/cluster.json");
}

TEST_MAIN(NULL, NULL, prints_the_cluster, refusals_name_field_and_value, one_rank_needs_no_links,
          a_bench_fills_what_is_open, examples_are_clusters)
