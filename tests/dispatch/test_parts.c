/* Parts of a batch whose tokens go by thresholds: they hold what they may hold, and what comes out does not depend on
 * the number of ranks, whoever takes everything. */
#include "base/hash.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "model_testing.h"
#include "moe/layer.h"
#include "record_testing.h"

enum { N = 500, E = 7 };

/* Slots of tokens begin .. end-1, and the most of one expert. */
static void taken(const uint8_t *keep, int begin, int end, int *slots, int *max) {
  *slots = *max = 0;
  for (int i = 0; i < E; i++) {
    int of_expert = 0;
    for (int t = begin; t < end; t++) of_expert += keep[t * E + i];
    *slots += of_expert;
    if (of_expert > *max) *max = of_expert;
  }
}

/* All tokens once, in order; no part beyond its limits, and none that had room for one token more. */
static void parts_are_full(void **state) {
  static const int limits[][2] = {{E, 1}, {40, 9}, {40, 40}, {1000, 50}, {N * E, N}};
  uint8_t keep[N * E];
  for (int i = 0; i < N * E; i++) /* the first expert takes most, the last one hardly any */
    keep[i] = ch_rng_below(ch_rng_make(3, CH_STREAM_TEST, 0), (uint64_t)i, 8) > (uint64_t)(i % E);
  ch_record record = new_record(N, E, N * E);
  record_from(&record, keep);
  for (size_t l = 0; l < sizeof limits / sizeof *limits; l++)
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 1, {
      ch_parts parts;
      x.ops->index(&x, &(ch_index_args){.record = &record});
      ch_parts_begin(&x, &record, limits[l][0], limits[l][1], &parts);
      for (int begin = 0, end, slots, max; pass_ && begin < N; begin = end) {
        end = ch_parts_end(&parts, begin);
        assert_true(end > begin && end <= N);
        taken(keep, begin, end, &slots, &max);
        assert_true(slots <= limits[l][0] && max <= limits[l][1]);
        if (end == N) break;
        taken(keep, begin, end + 1, &slots, &max);
        assert_true(slots > limits[l][0] || max > limits[l][1]);
      }
    });
  assert_int_equal(ch_parts_max_load(8 * 1000, 8), 2000);
  assert_int_equal(ch_parts_max_load(8 * 10, 8), 256);
  free_record(&record);
}

enum { B = 16, T = 64 };

typedef struct {
  int hidden;
  uint64_t *logits; /* the first rank's, shared */
  double *loss;
} job;

/* One expert takes every token, and three times the room that there is for it at once. */
static int serve(const ch_comm *comm, void *context) {
  const job *j = context;
  const choir_ranks ranks = {.comm = comm, .hidden = j->hidden};
  choir_model_options o = {.size = sizeof o, .threads = 1, .ranks = &ranks};
  choir_config config = model_config("expert_choice");
  choir_model *model;
  choir_forward_result f;
  float thresholds[MODEL_E] = {-1, 2, 2, 2, 2, 2, 2, 2};
  static int32_t token[B * T];
  static float logits[B * T * MODEL_V];
  config.train.batch_sequences = config.train.grad_chunks = B;
  config.model.d_expert = 2048; /* above the rounding of arenas to 2 MiB */
  config.model.router.capacity_factor = 1;
  model_tokens(token, B * T, 5);
  test_ok(choir_model_create(&config, 4, &o, &model));
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (strstr(p.name, "thresholds")) test_ok(choir_model_set_parameter(model, i, thresholds));
  }
  test_ok(choir_model_set_routing(model, "threshold"));
  test_ok(choir_model_forward(model, B, T, token, logits, 0, &f));
  if (!comm->rank) *j->logits = XXH64(logits, sizeof logits, 0), *j->loss = f.loss;
  choir_model_free(model);
  return 0;
}

static void everything_to_one_expert(void **state) {
  uint64_t one;
  double loss;
  job j = {.hidden = 1};
  j.logits = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  j.loss = (double *)(j.logits + 1);
  assert_true(ch_parts_max_load(B * T, MODEL_E) < B * T / 3);
  assert_int_equal(forked_run(1, 0, serve, &j), 0);
  one = *j.logits, loss = *j.loss;
  assert_true(loss > 0);
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    if (forked_run(ranks, 0, serve, &j)) fail_msg("%d ranks", ranks);
    assert_true(*j.logits == one);
  }
  j.hidden = 2;
  assert_int_equal(forked_run(4, 0, serve, &j), 0);
  if (!(fabs(*j.loss - loss) <= 1e-6 * loss)) fail_msg("hidden shards: loss %g, of one process %g", *j.loss, loss);
  munmap(j.logits, 4096);
}

TEST_MAIN(NULL, NULL, parts_are_full, everything_to_one_expert)
