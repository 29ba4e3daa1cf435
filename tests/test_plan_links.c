/* How long traffic takes on links of a shape, and which link is waited for: by hand. */
#include "model_testing.h"
#include "plan/network.h"

/* What a rank sends to all others on a square torus takes bytes sqrt(P) / (8 b), on a line four times an eighth as the
 * ring's two ways become one, and through a tree with less above than below as many times longer. */
static void topologies_by_hand(void **state) {
  (void)state;
  ch_cluster c = {.ranks = 64, .levels = 1, .level = {{.ranks = 64, .bandwidth = 10}}};
  ch_flow f = {.bytes = 64 * 63.0, .exchanges = 3, .messages = 1, .size = 64, .stride = 1};
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
  f.messages = 4;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 0.8 - 3 * (5 + 4 * 7 * 0.25)) < 1e-12);
  f.busiest = 2 * f.bytes;
  assert_true(fabs(ch_passage_of(&c, 64, &f).seconds - 1.6 - 3 * (5 + 4 * 7 * 0.25)) < 1e-12);
}

/* A matrix that visits four ranks leaves its owner, a share to each, before they pass shares on: 2 G / (G + 1) of the
 * mean. Its gradient comes to the owner as it would to everybody. */
static void an_owners_link_is_waited_for(void **state) {
  (void)state;
  choir_config c = model_config("expert_choice");
  const ch_layout whole = {.ranks = 4, .replicas = 1, .experts = 4, .hidden = 1},
                  sharded = {.ranks = 4, .replicas = 1, .experts = 4, .hidden = 1, .dense_sharded = 1};
  ch_params params;
  c.train.shards = 4;
  test_ok(ch_params_build(&c.model, &params));
  const ch_flow visits = ch_flow_of(&c, &params, &sharded, CH_FLOW_MATRICES),
                all = ch_flow_of(&c, &params, &whole, CH_FLOW_DENSE),
                owners = ch_flow_of(&c, &params, &sharded, CH_FLOW_DENSE);
  assert_true(visits.bytes > 0 && fabs(visits.busiest - visits.bytes * 8 / 5) < 1e-9 * visits.bytes);
  assert_true(owners.bytes < all.bytes && owners.busiest == all.bytes && all.busiest == all.bytes);
  ch_params_free(&params);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(topologies_by_hand),
                                     cmocka_unit_test(an_owners_link_is_waited_for)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
