/* Laws of the pools that experts choose among; test_routers.c holds each pool against its definition. */
#include "moe_testing.h"

enum { B = 12, T = 9, N = B * T, E = 5 };

static uint8_t mask[N];

static int set_up(void **state) {
  for (int t = 0; t < N; t++) mask[t] = t % 7 != 2;
  return 0;
}

static layer_case pool_case(const char *pool, int n, int length) {
  layer_case c = choice_case("expert_choice", n, E);
  c.T = length;
  c.options.pool = ch_word_number(ch_router_pools, pool);
  for (int j = 0; j < n * E; j++) c.scores[j] = (real)ch_rng_uniform(ch_rng_make(4, CH_STREAM_TEST, 70), (uint64_t)j);
  return c;
}

/* The same slots, gates and cut-offs, bit for bit. */
static void same(const layer_case *a, const layer_case *b) {
  assert_int_equal(ch_slots(&a->record), ch_slots(&b->record));
  assert_memory_equal(a->record.expert_begin, b->record.expert_begin, sizeof(int) * (E + 1));
  assert_memory_equal(a->record.slot_token, b->record.slot_token, sizeof(int) * (size_t)ch_slots(&a->record));
  assert_memory_equal(a->record.slot_gate, b->record.slot_gate, sizeof(real) * (size_t)ch_slots(&a->record));
  assert_memory_equal(a->counts.cutoff, b->counts.cutoff, sizeof(real) * E);
  assert_int_equal(a->counts.capacity, b->counts.capacity);
}

/* One pool of all tokens goes by several names; a group of T tokens is a sequence. */
static void names_of_the_same_pool(void **state) {
  const struct {
    const char *pool, *other;
    int length, group, other_length;
  } pairs[] = {{"sequence", "batch", 0, 1, T}, {"sequence", "batch", N, 1, T},  {"sequence", "batch", 5 * N, 1, T},
               {"group", "batch", T, N, T},    {"group", "batch", T, 9 * N, T}, {"position", "batch", 1, 1, T},
               {"group", "sequence", 3, T, T}, {"group", "sequence", 3, 25, 25}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    for (int padded = 0; padded < 2; padded++) {
      layer_case a = pool_case(pairs[i].pool, N, pairs[i].length),
                 b = pool_case(pairs[i].other, N, pairs[i].other_length);
      a.options.group_size = pairs[i].group;
      a.valid = b.valid = padded ? mask : NULL;
      router_run(&a, NULL);
      router_run(&b, NULL);
      same(&a, &b);
      layer_case_free(&a);
      layer_case_free(&b);
    }
}

/* Pool "position" is pool "sequence" of the transposed batch: token t of sequence b there is token b of sequence t
 * here. */
static void positions_are_transposed_sequences(void **state) {
  for (int padded = 0; padded < 2; padded++) {
    layer_case a = pool_case("position", N, T), b = pool_case("sequence", N, B);
    uint8_t turned[N];
    double gate_a[N * E], gate_b[N * E];
    for (int t = 0; t < N; t++) {
      int to = t % T * B + t / T;
      turned[to] = mask[t];
      memcpy(b.scores + to * E, a.scores + t * E, sizeof(real) * E);
    }
    a.valid = padded ? mask : NULL;
    b.valid = padded ? turned : NULL;
    router_run(&a, NULL);
    router_run(&b, NULL);
    record_gates(&a.record, gate_a);
    record_gates(&b.record, gate_b);
    for (int j = 0; j < N * E; j++) assert_true(gate_a[j] == gate_b[(j / E % T * B + j / E / T) * E + j % E]);
    assert_memory_equal(a.counts.cutoff, b.counts.cutoff, sizeof(real) * E);
    for (int i = 0; i < E; i++)
      for (int s = a.record.expert_begin[i] + 1; s < a.record.expert_begin[i + 1]; s++)
        assert_true(a.record.slot_token[s - 1] < a.record.slot_token[s]);
    layer_case_free(&a);
    layer_case_free(&b);
  }
}

/* A token's gates do not change when every other position of every sequence does. */
static void positions_do_not_compete(void **state) {
  layer_case a = pool_case("position", N, T), b = pool_case("position", N, T);
  double gate_a[N * E], gate_b[N * E];
  for (int t = 0; t < N; t++)
    for (int i = 0; i < E && t % T != 4; i++) b.scores[t * E + i] = 1 - b.scores[t * E + i];
  router_run(&a, NULL);
  router_run(&b, NULL);
  record_gates(&a.record, gate_a);
  record_gates(&b.record, gate_b);
  for (int t = 4; t < N; t += T)
    for (int i = 0; i < E; i++) assert_true(gate_a[t * E + i] == gate_b[t * E + i]);
  assert_memory_not_equal(gate_a, gate_b, sizeof gate_a);
  layer_case_free(&a);
  layer_case_free(&b);
}

/* The last batch of an evaluation: sequences of padding at its end are sequences that are not there. */
static void missing_sequences(void **state) {
  static const char *const pools[] = {"batch", "sequence", "position", "group"};
  for (int p = 0; p < 4; p++)
    for (int there = 1; there < B; there += 5) {
      layer_case a = pool_case(pools[p], N, T), b = pool_case(pools[p], there * T, T);
      uint8_t valid[N];
      for (int t = 0; t < N; t++) valid[t] = t < there * T;
      a.valid = valid;
      a.options.group_size = b.options.group_size = 20;
      memcpy(b.scores, a.scores, sizeof(real) * (size_t)(there * T * E));
      router_run(&a, NULL);
      router_run(&b, NULL);
      same(&a, &b);
      layer_case_free(&a);
      layer_case_free(&b);
    }
}

/* A last sequence cut short, any number of threads, both backends: always the same bits. */
static void threads_and_backends_agree(void **state) {
  static const char *const pools[] = {"sequence", "position", "group"};
  for (int p = 0; p < 3; p++)
    for (int n = N - 4; n <= N; n++) {
      layer_case one = pool_case(pools[p], n, T);
      one.options.group_size = 25;
      one.valid = mask;
      one.backend = "reference";
      one.threads = 1;
      router_run(&one, NULL);
      for (int threads = 1; threads < 4; threads++) {
        layer_case more = pool_case(pools[p], n, T);
        more.options = one.options;
        more.valid = mask;
        more.threads = threads;
        router_run(&more, NULL);
        same(&one, &more);
        layer_case_free(&more);
      }
      layer_case_free(&one);
    }
}

/* A text alone has nobody at its positions to compete with: every expert takes every token. */
static void one_sequence_by_position(void **state) {
  layer_case c = pool_case("position", T, T);
  router_run(&c, NULL);
  assert_int_equal(ch_slots(&c.record), T * E);
  layer_case_free(&c);
}

static void refused(const char *pool, int n, int e, int length, int group, double factor, const char *words) {
  ch_router_spec o = router_options("expert_choice");
  float gates[1], scores[1] = {0};
  o.pool = ch_word_number(ch_router_pools, pool);
  o.group_size = group;
  if (factor > 0) o.capacity_factor = factor;
  test_fails(ch_router_find("expert_choice")->check(&o, n, e, length), CHOIR_ERROR_ARGUMENT, words);
  assert_int_equal(choir_route(
                       &(choir_route_request){
                           .config = test_config_of(&o), .n = n, .e = e, .scores = scores, .sequence_length = length},
                       gates, NULL),
                   CHOIR_ERROR_ARGUMENT);
}

static void impossible_pools_are_refused(void **state) {
  refused("position", 64, 16, 8, 1, 0, "16 experts choose among only 8 tokens (pool 'position'");
  refused("position", 63, 8, 8, 1, 0, "8 experts choose among only 7 tokens (pool 'position'"); /* the last position */
  refused("position", 64, 2, 0, 1, 0, "sequence_length");
  refused("position", 128, 8, 8, 1, 0.2, "k = n c / e is 0 (pool of 16 tokens");
  refused("group", 64, 16, 8, 15, 0, "16 experts choose among only 15 tokens (pool 'group'");
  refused("group", 64, 16, 8, 0, 0, "group_size is 0");
  refused("group", 64, 16, 8, 64, 17, "capacity_factor 17");
}

TEST_MAIN(set_up, NULL, names_of_the_same_pool, positions_are_transposed_sequences, positions_do_not_compete,
          missing_sequences, one_sequence_by_position, threads_and_backends_agree, impossible_pools_are_refused)
