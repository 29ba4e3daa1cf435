/* Ranks that share a model: what fails on one of them, or is for one process, or asked for otherwise by one, ends for
 * all with one message. */
#include "choir/choir.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "pages/inspect.h"
#include "program.h"

enum { B = 16, T = 24 };

typedef struct {
  int (*body)(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer);
  const char *message;
  int code;
} odd_job;

static int odd_text(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return choir_eval(
      model, tokenizer,
      &(choir_eval_options){.size = sizeof(choir_eval_options), .text = comm->rank == 1 ? "nowhere.txt" : "page.txt"},
      &r);
}

/* Nothing on one rank. */
static int odd_source(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return choir_eval(model, tokenizer,
                    &(choir_eval_options){.size = sizeof(choir_eval_options), .data = comm->rank == 2 ? NULL : "data"},
                    &r);
}

static int odd_batch(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return choir_eval(model, tokenizer,
                    &(choir_eval_options){
                        .size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 8 + comm->rank / 3 * 8},
                    &r);
}

static int odd_capacity(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return choir_eval(
      model, tokenizer,
      &(choir_eval_options){
          .size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 8, .capacity_factor = comm->rank == 1},
      &r);
}

/* On one rank no capacity at all. */
static int wrong_capacity(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return choir_eval(model, tokenizer,
                    &(choir_eval_options){.size = sizeof(choir_eval_options),
                                          .data = "data",
                                          .batch_sequences = 8,
                                          .capacity_factor = -(comm->rank == 2)},
                    &r);
}

static int odd_calibration(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  return (comm->rank == 3 ? choir_calibrate : choir_eval)(
      model, tokenizer, &(choir_eval_options){.size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 8},
      &r);
}

static int stop(void *context, const choir_progress *p) { return *(const int *)context && p->done > 10; }

static int differing_request(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  int asks = comm->rank == 2;
  return choir_eval(
      model, tokenizer,
      &(choir_eval_options){
          .size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 8, .progress = stop, .context = &asks},
      &r);
}

static int odd_inspection(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  ch_inspect_options o = CH_INSPECT_OPTIONS_INIT;
  ch_inspection inspection = {0};
  o.text = comm->rank == 3 ? "nowhere.txt" : "page.txt";
  return ch_inspect_text(model, tokenizer, &o, &inspection);
}

static int odd_tokens(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)tokenizer;
  int32_t token[B * T] = {0};
  choir_forward_result f;
  token[5] = comm->rank == 1;
  return choir_model_forward(model, B, T, token, NULL, 0, &f);
}

static int outside_the_vocabulary(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)tokenizer;
  int32_t token[B * T] = {0};
  choir_forward_result f;
  token[5] = comm->rank == 1 ? -1 : 0;
  return choir_model_forward(model, B, T, token, NULL, 1, &f);
}

static int odd_routing(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)tokenizer;
  const int32_t token[B * T] = {0};
  choir_forward_result f;
  if (comm->rank == 1) test_ok(choir_model_set_routing(model, "threshold"));
  return choir_model_forward(model, B, T, token, NULL, 1, &f);
}

static int odd_routing_of_eval(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  if (comm->rank == 1) test_ok(choir_model_set_routing(model, "threshold"));
  return choir_eval(model, tokenizer, &(choir_eval_options){.size = sizeof(choir_eval_options), .data = "data"}, &r);
}

static void see(void *context, const choir_routing *routing) { (void)context, (void)routing; }

static int differing_read(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)tokenizer;
  const int32_t token[B * T] = {0};
  choir_forward_result f;
  if (comm->rank == 1) choir_model_on_routing(model, see, NULL);
  return choir_model_forward(model, B, T, token, NULL, 0, &f);
}

static int differing_read_in_eval(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  choir_eval_result r;
  if (comm->rank == 1) choir_model_on_routing(model, see, NULL);
  return choir_eval(model, tokenizer, &(choir_eval_options){.size = sizeof(choir_eval_options), .data = "data"}, &r);
}

static int part_of_a_shard(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)comm, (void)tokenizer;
  int32_t token[B * T] = {0};
  choir_forward_result f;
  return choir_model_forward(model, B - 4, T, token, NULL, 0, &f); /* by whole ranks, but not by shards */
}

static int alone(const ch_comm *comm, choir_model *model, const choir_tokenizer *tokenizer) {
  (void)comm, (void)tokenizer;
  choir_session *session;
  return choir_session_create(model, NULL, &session);
}

static int ends(const ch_comm *comm, void *context) {
  const odd_job *j = context;
  const choir_ranks ranks = {.comm = comm};
  choir_model_options o = {.size = sizeof o, .threads = 1, .ranks = &ranks};
  choir_model *model;
  choir_tokenizer *tokenizer;
  test_ok(choir_model_load("expert_choice", &o, &model, &tokenizer));
  int code = j->body(comm, model, tokenizer);
  const char *message = choir_error_message();
  if (code != j->code || !strstr(message, j->message)) {
    fprintf(stderr, "rank %d of %d: code %d: %s\n", comm->rank, comm->size, code, message);
    return 1;
  }
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return 0;
}

static void one_fails_all_end(void **state) {
  const odd_job odd[] = {
      {odd_text, "rank 1 of 4: nowhere.txt: ", CHOIR_ERROR_IO},
      {odd_source, "rank 2 of 4: evaluation takes either data or a text", CHOIR_ERROR_ARGUMENT},
      {odd_batch, "rank 3 of 4 has another batch size than rank 0", CHOIR_ERROR_ARGUMENT},
      {odd_capacity, "rank 1 of 4 has another capacity factor than rank 0", CHOIR_ERROR_ARGUMENT},
      {wrong_capacity, "rank 2 of 4: model.router.eval_capacity_factor is -1", CHOIR_ERROR_ARGUMENT},
      {odd_calibration, "rank 3 of 4 has another request to calibrate than rank 0", CHOIR_ERROR_ARGUMENT},
      {differing_request, "rank 2 of 4: stopped after ", CHOIR_ERROR_INTERRUPTED},
      {odd_inspection, "rank 3 of 4: nowhere.txt: ", CHOIR_ERROR_IO},
      {odd_tokens, "rank 1 of 4 has another batch of tokens than rank 0", CHOIR_ERROR_ARGUMENT},
      {outside_the_vocabulary, "rank 1 of 4: token -1 at sequence 0, position 5", CHOIR_ERROR_ARGUMENT},
      {odd_routing, "rank 1 of 4: gradients go with the router's own routing", CHOIR_ERROR_UNSUPPORTED},
      {odd_routing_of_eval, "rank 1 of 4 has another routing than rank 0", CHOIR_ERROR_ARGUMENT},
      {differing_read, "rank 1 of 4 has another request for routings than rank 0", CHOIR_ERROR_ARGUMENT},
      {differing_read_in_eval, "rank 1 of 4 has another request for routings than rank 0", CHOIR_ERROR_ARGUMENT},
      {part_of_a_shard, "a batch of 12 sequences, which 4 processes share by shards", CHOIR_ERROR_ARGUMENT},
      {alone, "choir_session_create is for a model of one process; 4 processes share this one",
       CHOIR_ERROR_UNSUPPORTED}};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    odd_job j = odd[i];
    if (forked_run(4, 0, ends, &j)) fail_msg("%s", j.message);
  }
}

/* What one rank has otherwise, or the directory in which it looks for the checkpoint. */
typedef struct {
  const char *name, *compute, *backend, *directory;
  int64_t shards;
  choir_ranks ranks;
} other;

static int another_model(const ch_comm *comm, void *context) {
  const other *w = context;
  const int odd = comm->rank == 2;
  choir_ranks ranks = odd ? w->ranks : (choir_ranks){0};
  ranks.comm = comm;
  choir_model_options o = {.size = sizeof o, .threads = 1, .ranks = &ranks, .emulate_bf16 = 1};
  if (odd) o.compute = w->compute, o.backend = w->backend, o.shards = w->shards;
  choir_model *model;
  char want[80];
  if (odd && w->directory && chdir(w->directory)) return 1;
  snprintf(want, sizeof want, "rank 2 of 4 has another %s than rank 0", w->name);
  int code = choir_model_load("expert_choice", &o, &model, NULL);
  if (code == CHOIR_ERROR_ARGUMENT && !model && strstr(choir_error_message(), want)) return 0;
  fprintf(stderr, "rank %d of %d: code %d: %s\n", comm->rank, comm->size, code, choir_error_message());
  return 1;
}

/* The checkpoint once more, but for the last number of a parameter. */
static void change_last(const char *parameter, const char *directory) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  int changed = 0;
  test_ok(choir_model_load("expert_choice", NULL, &model, &tokenizer));
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (strcmp(p.name, parameter)) continue;
    int64_t count = 1;
    for (int d = 0; d < p.dims; d++) count *= p.shape[d];
    p.data[count - 1] += 1;
    changed = 1;
  }
  assert_true(changed);
  program_must("mkdir -p %s/expert_choice/checkpoints", directory);
  char path[128];
  snprintf(path, sizeof path, "%s/expert_choice/checkpoints/00000002", directory);
  test_ok(choir_model_save(model, tokenizer, path));
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

static void other_models_are_refused(void **state) {
  other odd[] = {{"compute type", .compute = "bf16"},
                 {"backend", .backend = "reference"},
                 {"number of gradient chunks", .shards = 4},
                 {"number of replicas", .ranks = {.replicas = 2}},
                 {"number of hidden shards", .ranks = {.hidden = 2}},
                 {"sharding of dense matrices", .ranks = {.dense_sharded = 1}},
                 {"set of weights", .directory = "other-weights"},
                 {"set of weights", .directory = "other-thresholds"}};
  change_last("embed.weight", "other-weights");
  change_last("layers.1.moe.thresholds", "other-thresholds");
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    if (forked_run(4, 0, another_model, &odd[i])) fail_msg("%s, case %zu", odd[i].name, i);
}

static int setup(void **state) {
  return program_setup(state) ||
         program_run(
             "head -c 3000 corpus.txt >page.txt; choir train --threads 1 --config config.json --data data --set "
             "router.name=expert_choice --set experts=4 --set batch_sequences=16 --set grad_chunks=8 --set "
             "sequence_length=24 --set steps=2 --set eval_every=0 --out expert_choice");
}

TEST_MAIN(setup, program_directory_remove, one_fails_all_end, other_models_are_refused)
