/* The library used hard: two models in two threads at once, models made and freed in a loop, messages that belong to
 * threads; and nothing that grows.
 * test_stress [CYCLES]: so many lives of a model, instead of a sample. */
#include <malloc.h>
#include <pthread.h>

#include "choir/choir.h"
#include "model/config.h"
#include "program.h"

#ifdef CHOIR_SANITIZED
enum { PASSES = 6 };
static int cycles = 20;
#else
enum { PASSES = 40 };
static int cycles = 300;
#endif

static choir_config config;

static int32_t token(int t, int number) { return (t * 7 + number * 13) % 300; }

typedef struct worker {
  pthread_t thread;
  int number, threads;
  double loss; /* the same in every pass */
  char wrong[512];
} worker;

#define WANT(w, condition)                                                                  \
  do {                                                                                      \
    if (!(condition) && !*(w)->wrong)                                                       \
      snprintf((w)->wrong, sizeof(w)->wrong, "%s (%s)", #condition, choir_error_message()); \
  } while (0)

/* Passes with gradients over its own model, and between them a mistake whose message must be this thread's. */
static void *work(void *argument) {
  worker *w = argument;
  choir_model *model = NULL, *none;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  choir_config bad = config;
  int32_t tokens[32];
  char words[32];
  run.threads = w->threads;
  for (int t = 0; t < 32; t++) tokens[t] = token(t, w->number);
  WANT(w, !choir_model_create(&config, (uint64_t)w->number, &run, &model));
  bad.model.layers = -w->number;
  snprintf(words, sizeof words, "is -%d", w->number);
  for (int i = 0; i < PASSES && model; i++) {
    choir_forward_result result;
    WANT(w, !choir_model_forward(model, 2, 16, tokens, NULL, 1, &result));
    if (!i) w->loss = result.loss;
    WANT(w, result.loss == w->loss);
    WANT(w, choir_model_create(&bad, 1, &run, &none) == CHOIR_ERROR_ARGUMENT);
    WANT(w, strstr(choir_error_message(), words) != NULL);
  }
  choir_model_free(model);
  return NULL;
}

static void two_models_in_two_threads(void **state) {
  for (int threads = 1; threads <= 2; threads++) {
    worker w[4] = {{.number = 1}, {.number = 2}, {.number = 1}, {.number = 2}};
    for (int i = 0; i < 4; i++) w[i].threads = threads;
    for (int i = 0; i < 2; i++) work(&w[i]); /* one after the other */
    for (int i = 2; i < 4; i++) assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    for (int i = 2; i < 4; i++) pthread_join(w[i].thread, NULL);
    for (int i = 0; i < 4; i++)
      if (*w[i].wrong) fail_msg("worker %d of model %d: %s", i, w[i].number, w[i].wrong);
    assert_true(w[0].loss == w[2].loss && w[1].loss == w[3].loss && w[0].loss != w[1].loss);
  }
}

/* One life of everything: made, saved, loaded, used, freed; and what goes wrong on the way. */
static void live(const choir_tokenizer *tokenizer) {
  choir_model *model, *loaded;
  choir_forward_result result;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  int32_t tokens[32], *ids;
  size_t count;
  run.threads = 1;
  for (int t = 0; t < 32; t++) tokens[t] = token(t, 1);
  test_ok(choir_model_create(&config, 1, &run, &model));
  test_ok(choir_model_forward(model, 2, 16, tokens, NULL, 1, &result));
  test_ok(choir_model_load("kept", &run, &loaded, NULL));
  test_ok(choir_tokenizer_encode(tokenizer, "kalo miten", 10, &ids, &count));
  free(ids);
  assert_int_equal(choir_model_load("absent", &run, &(choir_model *){NULL}, NULL), CHOIR_ERROR_IO);
  choir_model_free(model);
  choir_model_free(loaded);
}

static void nothing_grows(void **state) {
  choir_tokenizer *tokenizer;
  choir_model *model;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  run.threads = 1;
  test_ok(choir_tokenizer_load("tokenizer.model", &tokenizer));
  test_ok(choir_model_create(&config, 1, &run, &model));
  program_must("rm -rf kept");
  test_ok(choir_model_save(model, NULL, "kept"));
  choir_model_free(model);
  for (int i = 0; i < 10; i++) live(tokenizer); /* what is kept for ever is made by now */
  size_t before = mallinfo2().uordblks;
  for (int i = 0; i < cycles; i++) live(tokenizer);
  size_t after = mallinfo2().uordblks;
  program_run("ls /proc/%d/fd | wc -l", (int)getpid());
  assert_true(atoi(program_output) < 20);
  if (after > before) fail_msg("%d cycles hold %zu bytes more", cycles, after - before);
  choir_tokenizer_free(tokenizer);
}

static int setup(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_config_load("config.json", &config));
  config.model.vocab_size = 300;
  return 0;
}

/* Training under the thread sanitizer: data, update in backward, evaluation, checkpoints, on two threads. */
static void training_on_two_threads(void **state) {
  program_must(
      "choir train --threads 2 --config config.json --data data --set steps=8 --set eval_every=4 --set "
      "accumulate=2 --out two && choir train --threads 1 --config config.json --data data --set steps=8 --set "
      "eval_every=4 --set accumulate=2 --out one");
  assert_true(program_same_runs("one", "two", 8));
}

int main(int argc, char **argv) {
  if (argc > 1) cycles = atoi(argv[1]);
  /* Without what glibc keeps for each thread, which it counts as in use: then nothing grows by a byte. */
  if (!getenv("GLIBC_TUNABLES") && !setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1))
    execv("/proc/self/exe", argv);
  const struct CMUnitTest tests[] = {cmocka_unit_test(two_models_in_two_threads), cmocka_unit_test(nothing_grows),
                                     cmocka_unit_test(training_on_two_threads)};
  return cmocka_run_group_tests(tests, setup, program_directory_remove);
}
