/* What a host may have done to the thread that calls: a small stack, floating-point exceptions that trap, another
 * rounding mode. A call works as ever or is refused, and leaves the thread as it was. */
#include <fenv.h>
#include <limits.h>
#include <pthread.h>

#include "choir/choir.h"
#include "made_up_task.h"
#include "program.h"

enum { LOAD, GENERATE, BUILD, TRAIN, TUNE, CALLS };

static const choir_model_options one_thread = {.size = sizeof one_thread, .threads = 1};

static int generate(const char *out) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  o.max_tokens = 8;
  CH_TRY(choir_model_load("run", NULL, &model, &tokenizer));
  int code = choir_generate(model, tokenizer, &(choir_prompt){.text = "kalo"}, 1, &o, &r);
  if (!code) code = ch_file_save(out, r.sequences->text, strlen(r.sequences->text));
  if (!code) choir_generate_result_clear(&r);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
  return code;
}

static int build(const char *out) {
  const char *files[] = {"corpus.txt", NULL};
  choir_data_source source = {.name = "text", .inputs = files};
  choir_data_build_options o = CHOIR_DATA_BUILD_OPTIONS_INIT;
  o.sources = &source, o.source_count = 1, o.tokenizer = "tokenizer.model", o.output = out;
  return choir_data_build(&o);
}

static int train(const char *out) {
  choir_config *config;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  CH_TRY(choir_config_load("config.json", &config));
  config->train.steps = 3;
  o.config = config, o.data = "data", o.out = out, o.model = &one_thread;
  int code = choir_train(&o);
  choir_config_free(config);
  return code;
}

static int tune(const char *out) {
  choir_config *config;
  choir_task *task;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  CH_TRY(choir_finetune_config_create("run", "constant", &config));
  CH_TRY(choir_task_load("mine.json", &task));
  config->train.steps = 2, config->train.batch_sequences = 2;
  o.config = config, o.init_from = "run", o.task = task, o.data = ".", o.out = out, o.model = &one_thread;
  int code = choir_finetune(&o);
  choir_task_free(task);
  choir_config_free(config);
  return code;
}

static int load(void) {
  choir_config *config;
  CH_TRY(choir_config_load("run/config.json", &config));
  choir_config_free(config);
  return CHOIR_OK;
}

static int call(int which, const char *out) {
  switch (which) {
    case GENERATE:
      return generate(out);
    case BUILD:
      return build(out);
    case TRAIN:
      return train(out);
    case TUNE:
      return tune(out);
    default:
      return load();
  }
}

/* ---- stacks */

static void *call_in_thread(void *which) { return (void *)(intptr_t)call(*(int *)which, "small"); }

/* The code of a call by a thread with such a stack, in a process of its own. */
static int with_stack(int which, int kib) {
  program_must("rm -rf small");
  pid_t child = fork();
  if (!child) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *code;
    if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, (size_t)kib << 10) ||
        pthread_create(&thread, &attributes, call_in_thread, &which) || pthread_join(thread, &code))
      _exit(127);
    _exit((int)(intptr_t)code);
  }
  return program_wait(child);
}

/* Every size from 48 KiB, or the least that the system allows, on gives a result or a refusal; what docs/embedding.md
 * promises is enough. A build without optimization, or with sanitizers, has larger frames. */
static void small_stacks(void **state) {
#if !defined __OPTIMIZE__ || defined CHOIR_SANITIZED
  skip();
#endif
  static const int enough[CALLS] = {[LOAD] = 144, [GENERATE] = 144, [BUILD] = 144, [TRAIN] = 256, [TUNE] = 256};
  const int min = PTHREAD_STACK_MIN > 48 << 10 ? (int)(PTHREAD_STACK_MIN >> 10) : 48; /* aarch64: 128 */
  for (int which = 0; which < CALLS; which++)
    for (int kib = min; kib <= 256; kib += 16) {
      int status = with_stack(which, kib);
      if (status != CHOIR_OK && (status != CHOIR_ERROR_UNSUPPORTED || kib >= enough[which]))
        fail_msg("call %d with %d KiB: status %d", which, kib, status);
    }
}

/* ---- floating point */

/* In the thread's environment as it is. */
static void same_results(const char *name) {
  program_must("rm -rf %s; mkdir %s", name, name);
  for (int which = 0; which < CALLS; which++) {
    char out[64];
    snprintf(out, sizeof out, "%s/%d", name, which);
    int mode = fegetround(), traps = fegetexcept();
    test_ok(call(which, out));
    assert_int_equal(fegetround(), mode);
    assert_int_equal(fegetexcept(), traps);
  }
}

static void rounding_modes_and_traps(void **state) {
  static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  same_results("plain");
  for (int i = 1; i < 5; i++) {
    fenv_t before;
    fegetenv(&before);
    if (i < 4)
      fesetround(modes[i]);
    else
      feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
    same_results("other");
    fesetenv(&before);
    program_must("diff -r -x timing.jsonl -x lock -x data.path plain other");
  }
}

static int set_up(void **state) {
  int status = program_setup_run(state);
  if (!status) made_up_four_rows("rows.tsv");
  return status;
}

TEST_MAIN(set_up, program_directory_remove, small_stacks, rounding_modes_and_traps)
