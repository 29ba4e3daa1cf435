/* Evaluation, forward passes and statistics of a model that ranks share: the numbers of one process, whatever the
 * router. */
#include "base/hash.h"
#include "choir/choir.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "pages/inspect.h"
#include "program.h"

enum { B = 16, T = 24, MAX_REPORT = 1 << 16 };

/* A rank found out this: a JSON of every number, and hashes of what is long. */
typedef struct {
  char text[MAX_REPORT];
  size_t used;
} report;

typedef struct {
  const char *run;
  int shards; /* 0: those that it was trained with */
  report *of; /* [FORKED_MOST + 1], by number of ranks: the first one's, in memory that they share */
} job;

static void add(report *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(report *r, const char *format, ...) {
  va_list args;
  va_start(args, format);
  r->used += (size_t)vsnprintf(r->text + r->used, sizeof r->text - r->used, format, args);
  va_end(args);
  if (r->used >= sizeof r->text) abort();
}

static void add_stats(report *r, const choir_model *model) {
  for (int i = 0; i < choir_model_moe_layer_count(model); i++) {
    choir_route_stats s;
    test_ok(choir_model_get_route_stats(model, i, &s));
    add(r, "layer %d: %lld slots, %lld dropped, gates %a, loss %a, load %llx\n", i, (long long)s.assignments,
        (long long)s.dropped, s.gate_mass, s.aux_loss,
        (unsigned long long)XXH64(s.load, (size_t)s.experts * sizeof *s.load, 0));
    choir_route_stats_clear(&s);
  }
}

static int use_it(void *model, const choir_progress *p) {
  int32_t token[8] = {0};
  choir_forward_result result;
  assert_true(p->seconds > 0 && p->seconds < 1000); /* of this call */
  test_fails(choir_model_forward(model, 1, 8, token, NULL, 0, &result), CHOIR_ERROR_BUSY, "in use");
  return 0;
}

/* By source, the losses are the same on any number of ranks and come to the whole's. */
static void evaluate_sources(report *r, choir_model *model) {
  double loss = 0;
  int64_t tokens = 0;
  choir_eval_result e;
  choir_eval_options o = {.size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 5, .sequences = 13};
  test_ok(choir_eval(model, NULL, &o, &e));
  for (int i = 0; i < e.source_count; i++) {
    const choir_eval_source *s = &e.sources[i];
    add(r, "%s: %a, %lld tokens\n", s->name, s->loss, (long long)s->tokens);
    loss += s->loss * (double)s->tokens;
    tokens += s->tokens;
  }
  assert_int_equal(tokens, e.tokens);
  assert_true(fabs(loss / (double)tokens - e.loss) < 1e-6);
  choir_eval_result again;
  test_ok(choir_eval(model, NULL, &o, &again)); /* a result is its caller's, whatever the model does */
  assert_true(again.sources != e.sources && again.sources->loss == e.sources->loss);
  choir_eval_result_clear(&again);
  choir_eval_result_clear(&e);
  assert_true(!e.sources && !e.source_count);
}

/* A capacity of this evaluation alone; the last one takes more memory than batches of the others. */
static void evaluate_capacity(choir_model *model) {
  static const double factor[] = {0, 1, 0, 4};
  choir_eval_options o = {.size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 1000};
  choir_eval_result with[4];
  for (int i = 0; i < 4; i++) {
    o.capacity_factor = factor[i];
    test_ok(choir_eval(model, NULL, &o, &with[i]));
    assert_true(choir_model_config(model)->model.router.eval_capacity_factor == 0);
    free(with[i].sources);
  }
  assert_true(with[1].loss != with[0].loss && with[2].loss == with[0].loss && with[3].loss != with[0].loss);
}

/* 5 sequences are no multiple of train.grad_chunks, and the last batch is not full. */
static void evaluate(report *r, choir_model *model, const choir_tokenizer *tokenizer, const char *routing) {
  const choir_eval_options options[] = {
      {.size = sizeof(choir_eval_options), .data = "data", .progress = use_it, .context = model},
      {.size = sizeof(choir_eval_options), .data = "data", .batch_sequences = 5, .sequences = 13},
      {.size = sizeof(choir_eval_options), .text = "page.txt"}};
  test_ok(choir_model_set_routing(model, routing));
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    choir_eval_result e;
    test_ok(choir_eval(model, tokenizer, &options[i], &e));
    add(r, "%s %zu: %a %a %a, %lld tokens\n", e.routing, i, e.loss, e.bits_per_byte, e.unigram_loss,
        (long long)e.tokens);
    add_stats(r, model);
    choir_eval_result_clear(&e);
  }
  evaluate_sources(r, model);
  if (!routing && !strcmp(choir_model_config(model)->model.router.kind->name, "expert_choice"))
    evaluate_capacity(model);
  test_ok(choir_model_set_routing(model, NULL));
}

static void forward(report *r, choir_model *model) {
  static int32_t token[B * T];
  int V = choir_model_config(model)->model.vocab_size;
  float *logits = malloc((size_t)B * T * (size_t)V * sizeof *logits);
  choir_forward_result f;
  for (int i = 0; i < B * T; i++) token[i] = (i * 37 + i / 7) % V;
  test_ok(choir_model_forward(model, B, T, token, logits, 1, &f));
  add(r, "forward: %a %a, logits %llx\n", f.loss, f.aux_loss,
      (unsigned long long)XXH64(logits, (size_t)B * T * (size_t)V * sizeof *logits, 0));
  free(logits);
  add_stats(r, model);
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    size_t count = 1;
    for (int d = 0; d < p.dims; d++) count *= (size_t)p.shape[d];
    float *values = malloc(count * sizeof *values);
    test_ok(choir_model_get_parameter(model, i, p.trained, values));
    add(r, "%s %llx\n", p.name, (unsigned long long)XXH64(values, count * sizeof *values, 0));
    free(values);
  }
}

static void inspect(report *r, choir_model *model, const choir_tokenizer *tokenizer) {
  ch_inspect_options o = CH_INSPECT_OPTIONS_INIT;
  ch_inspection inspection;
  o.text = "page.txt";
  o.top = 3;
  test_ok(ch_inspect_text(model, tokenizer, &o, &inspection));
  json_t *json = ch_inspection_json(model, tokenizer, &o, &inspection);
  char *text = json_dumps(json, JSON_REAL_PRECISION(10));
  add(r, "%s\n", text);
  free(text);
  json_decref(json);
  ch_inspection_free(&inspection);
}

static int look(const ch_comm *comm, void *context) {
  const job *j = context;
  const choir_ranks ranks = {.comm = comm};
  choir_model_options o = {.size = sizeof o, .threads = 1, .ranks = &ranks, .shards = j->shards};
  choir_model *model;
  choir_tokenizer *tokenizer;
  report *r = comm->rank ? calloc(1, sizeof *r) : &j->of[comm->size];
  test_ok(choir_model_load(j->run, &o, &model, &tokenizer));
  evaluate(r, model, tokenizer, NULL);
  if (!choir_model_set_routing(model, "threshold")) evaluate(r, model, tokenizer, "threshold");
  forward(r, model);
  inspect(r, model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  if (comm->rank) free(r);
  return 0;
}

/* Trains for two steps, so that there are thresholds. */
static void make_run(const char *router, int shards, const char *out) {
  program_must(
      "choir train --threads 1 --config config.json --data data --set router.name=%s --set experts=%d --set "
      "batch_sequences=16 --set grad_chunks=%d --set sequence_length=24 --set steps=2 --set eval_every=0 --out %s",
      router, strcmp(router, "dense") ? 4 : 1, shards, out);
}

static void same_numbers(job j, const int *ranks) {
  size_t bytes = (FORKED_MAX + 1) * sizeof(report);
  j.of = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int size; (size = *ranks); ranks++) {
    if (forked_run(size, 0, look, &j)) fail_msg("%s: %d ranks", j.run, size);
    assert_true(j.of[size].used > 2000);
    if (strcmp(j.of[1].text, j.of[size].text))
      fail_msg("%s: %d ranks: other numbers\n%s\nand of one process\n%s", j.run, size, j.of[size].text, j.of[1].text);
  }
  munmap(j.of, bytes);
}

static void numbers_of_one_process(void **state) {
  const char *const *names = choir_router_names();
  for (int i = 0; names[i]; i++) {
    make_run(names[i], 8, names[i]);
    forked_means = i % 3 ? CH_COMM_MEANS : 0; /* 0: in rounds */
    same_numbers((job){.run = names[i]}, (const int[]){1, 2 << i % 3, i ? 0 : 8, 0});
  }
  forked_means = CH_COMM_MEANS;
}

/* A run of one shard, which its config says, and its batches in four. */
static void shards_of_the_caller(void **state) {
  choir_model *model;
  make_run("expert_choice", 1, "single");
  same_numbers((job){.run = "single", .shards = 4}, (const int[]){1, 2, 4, 0});
  test_fails(choir_model_load("single", &(choir_model_options){.size = sizeof(choir_model_options), .shards = -1},
                              &model, NULL),
             CHOIR_ERROR_ARGUMENT, "shards is -1: it must be 1 to");
  test_fails(
      choir_model_load("single", &(choir_model_options){.size = sizeof(choir_model_options), .shards = (1 << 20) + 1},
                       &model, NULL),
      CHOIR_ERROR_ARGUMENT, "shards is 1048577: it must be 1 to 1048576");
  test_ok(choir_model_load("single", &(choir_model_options){.size = sizeof(choir_model_options), .shards = 1 << 20},
                           &model, NULL));
  choir_model_free(model);
}

static int setup(void **state) { return program_setup(state) || program_run("head -c 3000 corpus.txt >page.txt"); }

TEST_MAIN(setup, program_directory_remove, numbers_of_one_process, shards_of_the_caller)
