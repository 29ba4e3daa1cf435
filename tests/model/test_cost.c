/* Configs cost what the paper says: its sizes, and one model reckoned by hand. */
#include "model/config.h"
#include "modern.h"
#include "testing.h"

static choir_config load(const char *name) {
  char path[512];
  choir_config c;
  snprintf(path, sizeof path, "%s/configs/%s.json", CHOIR_SOURCE_DIR, name);
  test_ok(ch_config_load(path, &c));
  return c;
}

static void the_papers_sizes(void **state) {
  /* Zhou et al. 2022, table 1, but for 0.1B dense and active, where the formulas give 138M and 152M with 32,000 tokens.
   */
  static const struct {
    const char *name;
    double parameters, active, digit; /* digit: of the last place given */
  } want[] = {
      {"0.1b-dense", 138e6, 138e6, 1e6}, {"0.1b-16e", 548e6, 152e6, 1e6},  {"0.1b-32e", 1.0e9, 152e6, 1e8},
      {"0.1b-64e", 1.9e9, 152e6, 1e8},   {"0.1b-128e", 3.7e9, 153e6, 1e8}, {"8b-dense", 8.7e9, 8.7e9, 1e8},
      {"8b-64e", 143e9, 9.8e9, 1e9},
  };
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    choir_config c = load(want[i].name);
    choir_config_costs costs;
    test_ok(choir_config_get_costs(&c, &costs));
    double active_digit = want[i].active < 1e9 ? 1e6 : 1e8;
    if (!(fabs((double)costs.parameters - want[i].parameters) <= want[i].digit / 2) ||
        !(fabs((double)costs.active_parameters - want[i].active) <= active_digit / 2))
      fail_msg("%s: %lld, %lld active", want[i].name, (long long)costs.parameters, (long long)costs.active_parameters);
    assert_true(costs.train_bytes > 4 * costs.parameters);
    assert_true(costs.serve_bytes > 4 * costs.parameters);
    assert_true(costs.train_flops_per_token == 3 * costs.forward_flops_per_token);
  }
}

static void nano_by_hand(void **state) {
  const double V = 8192, d = 128, h = 512, H = 4, e = 16, c = 2, T = 128;
  choir_config config = load("nano");
  choir_config_costs costs;
  test_fails(choir_config_get_costs(&config, &costs), CHOIR_ERROR_ARGUMENT, "model.vocab_size is 0");
  config.model.vocab_size = V;
  test_ok(choir_config_get_costs(&config, &costs));
  assert_true(costs.embedding_parameters == V * d);
  assert_true(costs.expert_parameters == 2 * e * 2 * d * h);
  assert_true(costs.parameters ==
              V * d + 4 * (4 * d * d + 32 * H + 2 * d) + 2 * 3 * d * h + 2 * (d * e + e * 2 * d * h) + d);
  assert_true(costs.active_parameters == costs.parameters - 2 * (e - c) * 2 * d * h);
  double attention = 4 * (8 * d * d + 4 * d * (T + 1) / 2), ffn = 2 * 6 * d * h, moe = 2 * (2 * d * e + c * 4 * d * h);
  assert_true(costs.forward_flops_per_token == attention + ffn + moe + 2 * V * d);
}

/* Fewer heads of keys, norms of heads, no bias, and a head of its own beside an embedding that costs no products. */
static void modern_by_hand(void **state) {
  const double V = 8192, d = 128, h = 512, e = 16, c = 2, T = 128, a = 32, L = 4;
  choir_config config = load("nano");
  choir_config_costs old, costs;
  config.model.vocab_size = V;
  test_ok(choir_config_get_costs(&config, &old));
  test_modern(&config);
  test_ok(choir_config_get_costs(&config, &costs));
  assert_true(costs.embedding_parameters == V * d);
  assert_true(costs.parameters == 2 * V * d + L * (2 * d * d + 2 * d * a + 2 * a + 2 * d) + 2 * 3 * d * h +
                                      2 * (d * e + e * 2 * d * h) + d);
  double attention = L * (4 * d * d + 4 * d * a + 4 * d * (T + 1) / 2), ffn = 2 * 6 * d * h;
  assert_true(costs.forward_flops_per_token == attention + ffn + 2 * (2 * d * e + c * 4 * d * h) + 2 * V * d);
  double caches = 4 * 2 * L * T * (d - a); /* bytes less */
  assert_true((double)(costs.serve_bytes - old.serve_bytes) ==
              4 * (double)(costs.parameters - old.parameters) - caches);
}

/* The same layer under each router: only the experts a token goes through differ, and whether there is a router weight.
 */
static void routers_differ_in_experts_per_token(void **state) {
  const double d = 128, h = 512, e = 16;
  choir_config config = load("nano");
  choir_config_costs base, costs;
  config.model.vocab_size = 8192;
  test_ok(choir_config_get_costs(&config, &base));
  static const struct {
    const char *name;
    double experts, router;
  } want[] = {{"gshard_top2", 2, 1}, {"switch_top1", 1, 1}, {"hash", 1, 0}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    test_ok(choir_config_set(&config, "router.name", want[i].name));
    test_ok(choir_config_get_costs(&config, &costs));
    double fewer = 2 * ((2 - want[i].experts) * 4 * d * h + (1 - want[i].router) * 2 * d * e);
    assert_true(base.forward_flops_per_token - costs.forward_flops_per_token == fewer);
  }
  test_set(&config, "router.name=topk experts_per_token=4 null_experts=16"); /* 4 choices, half of them null experts */
  test_ok(choir_config_get_costs(&config, &costs));
  assert_true(base.forward_flops_per_token == costs.forward_flops_per_token);
  test_ok(choir_config_set(&config, "router.name", "dense"));
  assert_int_not_equal(choir_config_get_costs(&config, &costs), CHOIR_OK); /* 16 experts: checked first */
  test_ok(choir_config_set(&config, "experts", "1"));
  test_ok(choir_config_get_costs(&config, &costs));
  assert_true(costs.active_parameters == costs.parameters);
  test_ok(choir_config_set(&config, "d_expert", "1024")); /* as wide as the two experts of 512 that a token met */
  test_ok(choir_config_get_costs(&config, &costs));
  assert_true(base.forward_flops_per_token - costs.forward_flops_per_token == 2 * 2 * d * e);
}

TEST_MAIN(NULL, NULL, the_papers_sizes, nano_by_hand, modern_by_hand, routers_differ_in_experts_per_token)
