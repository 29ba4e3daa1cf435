/* How long traffic takes on links of a shape, and which link is waited for: by hand. */
#include "model_testing.h"
#include "plan/plan.h"
#include "plan/traffic.h"

/* A message from a rank to all others takes bytes sqrt(P) / (8 b) on a square torus; on a line it takes four times an
 * eighth, as the ring's two ways become one, and through a tree with less above than below as many times longer. */
static void topologies_by_hand(void **state) {
  ch_cluster c = {.ranks = 64, .levels = 1, .level = {{.ranks = 64, .bandwidth = 10}}};
  ch_flow f = {.bytes = 64 * 63.0, .exchanges = 3, .messages = 3, .size = 64, .stride = 1};
  c.level[0].oversubscription = 1;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 6.3) < 1e-12);
  c.level[0].topology = CH_FAT_TREE, c.level[0].oversubscription = 4;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 25.2) < 1e-12);
  c.level[0].topology = CH_TORUS, c.level[0].dims = 2, c.level[0].dim[0] = c.level[0].dim[1] = 8;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 64 * 8 / 8.0 / 10) < 1e-12);
  c.level[0].dims = 1, c.level[0].dim[0] = 64;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 64 * 64 / 8.0 / 10) < 1e-12);
  f.bytes = 64 * 31.0, f.size = 32; /* half of the ring is a line */
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 32 * 32 / 4.0 / 10) < 1e-12);
  c.level[0].dims = 2, c.level[0].dim[0] = c.level[0].dim[1] = 8;
  f.bytes = 64 * 7.0, f.size = 8, f.stride = 8; /* columns */
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 8 * 8 / 8.0 / 10) < 1e-12);
  c.level[0].latency = 5, c.message = 0.25;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 0.8 - 3 * (5 + 7 * 0.25)) < 1e-12);
  f.messages = 12;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 0.8 - 3 * (5 + 4 * 7 * 0.25)) < 1e-12);
  f.busiest = 2 * f.bytes;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 1.6 - 3 * (5 + 4 * 7 * 0.25)) < 1e-12);
}

/* Four layers on four ranks: four matrices of q = 32 x 32 in each, and three of f = 48 x 32 in the first and the third,
 * each to whom has least, q being 2 and f 3 of 512 elements:
 *
 *   layer   0: q k v o f f f       1: q k v o     2: q k v o f f f     3: q k v o
 *   owner      0 1 2 3 0 1 2          3 3 0 1        2 3 0 1 2 3 0        1 2 1 3
 *   of each    5 5 5 2                2 2 0 4        5 2 5 5              0 4 2 2
 *   all        5 5 5 2                7 7 5 6        12 9 10 11           12 13 12 13
 */
static void owners_links_are_waited_for(void **state) {
  enum { UNIT = 512 * sizeof(real), RANKS = 4 };
  choir_config c = model_config("expert_choice");
  const ch_layout whole = {.ranks = RANKS, .replicas = 1, .experts = RANKS, .hidden = 1},
                  sharded = {.ranks = RANKS, .replicas = 1, .experts = RANKS, .hidden = 1, .dense_sharded = 1};
  ch_params params;
  c.train.grad_chunks = RANKS;
  test_ok(ch_params_build(&c.model, &params));
  const ch_flow visits = ch_flow_of(&c, &params, &sharded, CH_FLOW_MATRICES),
                all = ch_flow_of(&c, &params, &whole, CH_FLOW_DENSE),
                owners = ch_flow_of(&c, &params, &sharded, CH_FLOW_DENSE);
  /* what there is goes to three; the last two layers' is still there before backward */
  assert_true(visits.bytes == (2 * (17 + 8) + 17 + 8) * (RANKS - 1) * UNIT);
  /* the owner of most hands it out, and then whoever owns least passes on two thirds of the rest */
  const double first = 5 + 15 * 2 / 3.0, second = 4 + 8 * 2 / 3.0, waits = 3 * (first + second);
  assert_true(fabs(visits.busiest - RANKS * waits * UNIT) < 1e-9 * visits.busiest);
  assert_true(visits.exchanges == 2 * 6 && visits.messages == 2 * 3 * (7 + 4));
  /* the busiest sends 18 units (attention 2 + 3 + 4, GEGLU 2 + 3 + 4) in place of 50 */
  assert_true(owners.bytes < all.bytes && all.busiest == all.bytes);
  assert_true(fabs(all.busiest - owners.busiest - (50 - (2 + 3 + 4 + 2 + 3 + 4)) * (RANKS - 1) * UNIT) < 1);
  assert_true(owners.messages == all.messages && owners.exchanges == all.exchanges);
  ch_params_free(&params);
}

static double seconds_of(const ch_plan_layout *l, const char *name) {
  for (int i = 0; i < l->parts; i++)
    if (!strcmp(l->part[i].name, name)) return l->part[i].seconds;
  fail_msg("no part '%s'", name);
  return 0;
}

/* Gives the hidden seconds of that model's step. Memory that is slow lets the update count. */
static double hidden(const choir_config *c, const ch_params *params, double bandwidth, ch_plan_layout *out) {
  const ch_layout sharded = {.ranks = 4, .replicas = 1, .experts = 4, .hidden = 1, .dense_sharded = 1};
  ch_cluster cluster = {.ranks = 4, .fp32 = 1e9, .memory_bandwidth = 1e9, .levels = 1};
  cluster.level[0] = (ch_level){.name = "switch", .ranks = 4, .bandwidth = bandwidth, .oversubscription = 1};
  for (int p = 0; p < CH_FLOPS_PARTS; p++) cluster.share[p] = 1;
  double all = 0;
  *out = (ch_plan_layout){0};
  ch_step_of(c, params, &cluster, &sharded, out);
  for (int i = 0; i < out->parts; i++) all += out->part[i].seconds;
  assert_true(out->overlapped <= out->seconds);
  /* the best there is: rows beside experts, what is sent of weights beside all other products */
  double rows = seconds_of(out, "expert rows"), experts = seconds_of(out, "experts");
  double sent =
      seconds_of(out, "dense gradients") + seconds_of(out, "dense matrices") + seconds_of(out, "expert gradients");
  double dense = seconds_of(out, "attention") + seconds_of(out, "dense layers") + seconds_of(out, "head");
  assert_true(fabs(all - out->overlapped - fmin(rows, experts) - fmin(sent, dense)) < 1e-9 * all);
  return all - out->seconds;
}

/* Rows go in one group and are not hidden. The prefetch of every layer except the first is hidden, for at most the
 * time of the half layers beside it: forward layers 0, 1 and 2; backward layers 1 (MoE) and 2, with their updates if
 * backward makes these. */
static void visits_pass_beside_halves(void **state) {
  const double first = 5 + 15 * 2 / 3.0, second = 4 + 8 * 2 / 3.0, word = 7 * 4 / 1e9;
  choir_config c = model_config("expert_choice");
  ch_plan_layout out;
  ch_params params;
  c.train.grad_chunks = 4;
  test_ok(ch_params_build(&c.model, &params));
  for (int clips = 0; clips < 2; clips++) {
    c.train.clip_norm = clips;
    double fast = hidden(&c, &params, 1e12, &out);
    assert_true(fabs(fast - seconds_of(&out, "dense matrices") * (1 - first / (3 * (first + second)))) < 1e-12);

    double slow = hidden(&c, &params, 1e6, &out), attention = seconds_of(&out, "attention") / 4,
           dense = seconds_of(&out, "dense layers") / 2, experts = seconds_of(&out, "experts") / 2;
    double moe = 2 * MODEL_E / 4 * 32 * 40 + 32 * MODEL_E, each = 32 * 2 + 2 * 32, sharded = (4 + 5) * 512;
    double updates = word * (moe + 2 * each + sharded), products = attention * 7 / 3 + dense * 4 / 3 + experts;
    assert_true(fabs(slow - products - (clips ? 0 : updates)) < 1e-9 * slow);

    /* the slowest rank of each layer, summed over layers; or the slowest rank of the whole update */
    double update = MODEL_V * 32 + 32 + 4 * each + 2 * moe + (clips ? 13 : 5 + 4 + 5 + 4) * 512;
    assert_true(fabs(seconds_of(&out, "update") - word * update) < 1e-9 * word * update);
  }
  ch_params_free(&params);
}

TEST_MAIN(NULL, NULL, visits_pass_beside_halves, topologies_by_hand, owners_links_are_waited_for)
