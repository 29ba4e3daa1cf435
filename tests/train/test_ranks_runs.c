/* Runs of several ranks: their files are those of one process, byte for byte, whoever goes on with them; and what fails
 * on one rank ends all with one message. */
#include <sys/resource.h>

#include "forked_runs.h"

enum { STEPS = 4 };

static job job_here(const char *router, const char *out) { return job_of(router, out, STEPS); }

static void same_files(void **state) {
  const char *const *names = choir_router_names();
  for (int i = 0; names[i]; i++) {
    program_must("rm -rf one many");
    go(job_here(names[i], "one"), 1);
    go(job_here(names[i], "many"), 2 << (i % 2));
    if (!program_same_runs("one", "many", STEPS)) fail_msg("%s: other bytes", names[i]);
  }
}

/* Ranks draw the masks that one process draws. */
static void masked_files(void **state) {
  for (int ranks = 1; ranks <= 4; ranks *= 4) {
    job j = job_here("expert_choice", ranks == 1 ? "one" : "many");
    j.config.model.attention = CH_BIDIRECTIONAL;
    j.config.train.objective = CH_MASKED_DIFFUSION;
    program_must("rm -rf %s", j.out);
    go(j, ranks);
  }
  if (!program_same_runs("one", "many", STEPS)) fail_msg("masked: other bytes");
}

/* A checkpoint in several files, each written by another rank: as one process writes it, and anybody goes on with it.
 */
static void same_sets_of_files(void **state) {
  job j = job_here("expert_choice", "one");
  program_must("rm -rf one");
  j.config.train.file_bytes = 6000;
  j.config.train.keep_checkpoints = 1;
  j.config.train.steps = 2;
  j.config.train.optimizer = CH_ADAMW;
  go(j, 1);
  program_must(
      "test $(ls one/checkpoints/*/model-*-of-*.safetensors one/checkpoints/*/state-*.safetensors | wc -l) -gt 9");
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    program_must("rm -rf many");
    j.out = "many";
    go(j, ranks);
    program_must("diff -r one/checkpoints many/checkpoints");
  }
  program_must("sed -i 's/\"steps\": 2/\"steps\": 4/' one/config.json many/config.json");
  j.resume = 1;
  go(j, 4);
  j.out = "one";
  go(j, 1);
  program_must("diff -r one/checkpoints many/checkpoints && test \"$(ls one/checkpoints)\" = 00000004");
}

/* A run that one rank stopped after two steps is resumed by another number of ranks. */
static void resumes_on_any_number_of_ranks(void **state) {
  const int ranks[] = {1, 2, 4, 8};
  program_must("rm -rf one");
  go(job_here("expert_choice", "one"), 1);
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < 4; b++) {
      job j = job_here("expert_choice", "many");
      program_must("rm -rf many");
      j.stop_rank = ranks[a] - 1;
      j.code = CHOIR_ERROR_INTERRUPTED;
      go(j, ranks[a]);
      j = job_here("expert_choice", "many");
      j.resume = 1;
      go(j, ranks[b]);
      if (!program_same_runs("one", "many", STEPS)) fail_msg("%d ranks, then %d: other bytes", ranks[a], ranks[b]);
    }
}

/* One rank is asked to stop when the others have agreed to go on: all stop after the same step, which is saved. */
static void all_stop_after_the_same_step(void **state) {
  static const int events[] = {CHOIR_EVENT_STEP, CHOIR_EVENT_EVAL, CHOIR_EVENT_CHECKPOINT};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
    job j = job_here("expert_choice", "stopped");
    program_must("rm -rf stopped");
    j.stop_rank = 1, j.stop_at = events[i];
    j.code = CHOIR_ERROR_INTERRUPTED, j.message = "stopped after step 2 of 4; its checkpoint is saved";
    go(j, 2);
    assert_int_equal(program_newest("stopped"), 2);
  }
}

static void other_config(choir_train_options *o, choir_config *config) { (void)o, config->train.learning_rate *= 2; }
static void no_data(choir_train_options *o, choir_config *config) { (void)config, o->data = "nowhere"; }
static void other_data(choir_train_options *o, choir_config *config) { (void)config, o->data = "data2"; }

static void one_fails_all_end(void **state) {
  const struct {
    void (*odd)(choir_train_options *, choir_config *);
    int code;
    const char *message;
  } odd[] = {{other_config, CHOIR_ERROR_ARGUMENT, "rank 2 of 4 has another config than rank 0"},
             {other_data, CHOIR_ERROR_ARGUMENT, "rank 2 of 4 has another data than rank 0"},
             {no_data, CHOIR_ERROR_IO, "rank 2 of 4: nowhere: cannot open data"}};
  program_must("choir data build --tokenizer tokenizer.model --separator '\\f' --holdout 0.2 --out data2 corpus.txt");
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    job j = job_here("expert_choice", "odd");
    j.odd_rank = 2, j.odd = odd[i].odd, j.code = odd[i].code, j.message = odd[i].message;
    program_must("rm -rf odd");
    go(j, 4);
    program_must("! test -e odd/metrics.jsonl");
  }
  job j = job_here("expert_choice", "odd"); /* what all find wrong is told once */
  j.config.train.grad_chunks = 4;
  j.code = CHOIR_ERROR_ARGUMENT, j.message = "train.grad_chunks is 4, which 8 processes cannot share evenly";
  go(j, 8);
}

static void other_run(choir_train_options *o, choir_config *config) { (void)config, o->out = "damaged"; }

/* Whoever cannot read the newest checkpoint says so. */
static void one_cannot_read_all_end(void **state) {
  job j = job_here("expert_choice", "whole");
  program_must("rm -rf whole damaged");
  go(j, 1);
  program_must("cp -r whole damaged && sed -i 's/\"steps\": 4/\"steps\": 6/' whole/config.json damaged/config.json");
  program_must("printf x | dd of=damaged/checkpoints/00000004/state.safetensors bs=1 seek=5000 conv=notrunc");
  j.resume = 1, j.odd_rank = 1, j.odd = other_run, j.code = CHOIR_ERROR_ARGUMENT;
  j.message =
      "rank 1 of 2: goes on from step 2, and rank 0 from step 4: all must see the same checkpoints in damaged; "
      "damaged/checkpoints/00000004/state.safetensors: damaged";
  go(j, 2);
}

/* The first rank's files may grow no more: it cannot write a checkpoint, and the others send theirs all the same. */
static int no_more_bytes(void *context, const choir_event *e) {
  const struct rlimit limit = {20000, 20000};
  if (*(const int *)context && e->kind == CHOIR_EVENT_STEP) {
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit)) return -1;
  }
  return 0;
}

static int cannot_write(const ch_comm *comm, void *context) {
  const job *j = context;
  const choir_ranks ranks = {.comm = comm};
  int first = !comm->rank;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = 1, .ranks = &ranks};
  o.config = &j->config, o.data = j->data, o.out = j->out, o.model = &model;
  o.event = no_more_bytes, o.context = &first;
  int code = choir_train(&o);
  if (code == CHOIR_ERROR_IO && strstr(choir_error_message(), "checkpoint of step 2 not saved")) return 0;
  fprintf(stderr, "rank %d of %d: code %d: %s\n", comm->rank, comm->size, code, choir_error_message());
  return 1;
}

static void the_writer_fails(void **state) {
  job j = job_here("expert_choice", "short");
  if (forked_run(4, 0, cannot_write, &j)) fail_msg("4 ranks");
  program_must("! ls short/checkpoints | grep .");
}

TEST_MAIN(program_setup, program_directory_remove, same_files, masked_files, same_sets_of_files,
          resumes_on_any_number_of_ranks, all_stop_after_the_same_step, one_fails_all_end, one_cannot_read_all_end,
          the_writer_fails)
