/* The system withholds descriptors, address space, file sizes, stacks, threads. Every command ends with a message, and
 * never by a signal. */
#include <signal.h>
#include <sys/stat.h>

#include "base/threads.h"
#include "choir/choir.h"
#include "model/config.h"
#include "program.h"

#define TRAIN "choir train --config config.json --data data --set steps=9 --threads 1 "

/* Where standard streams are closed, files take their numbers: what is printed must not land in them. */
static void closed_descriptors(void **state) {
  program_must(TRAIN "--out open && ! " TRAIN "--out closed <&- >&- 2>&-"); /* its words are lost, and nothing else */
  program_must(
      "cmp open/metrics.jsonl closed/metrics.jsonl && grep -qx '[0-9]*' closed/lock && test $(wc -l <closed/lock) = 1");
  program_must("cmp open/checkpoints/00000009/model.safetensors closed/checkpoints/00000009/model.safetensors");
}

/* Never by a signal, but for SIGABRT, with a word, where SentencePiece works, which does not catch everything that
 * memory lacks for; and what ends without success has said why. */
static void ends_in_order(int kib, const char *command, int with_pieces) {
  int status = program_run("ulimit -v %d; rm -rf v; %s", kib, command);
  int gave_up =
      with_pieces && status == 128 + SIGABRT && strstr(program_output, "choir: a library that it uses gave up");
  if (status > 128 && !gave_up) fail_msg("ulimit -v %d: status %d of %s:\n%s", kib, status, command, program_output);
  if (status && !*program_output) fail_msg("ulimit -v %d: status %d without a word of %s", kib, status, command);
}

static void limited_address_space(void **state) {
#ifdef CHOIR_SANITIZED
  skip(); /* sanitizers take terabytes of addresses */
#endif
  for (int kib = 100000; kib <= 180000; kib += 8000) {
    ends_in_order(kib, "choir train --config config.json --data data --set steps=2 --threads 2 --out v", 0);
    ends_in_order(kib, "choir data build --tokenizer tokenizer.model --holdout 0.1 --out v corpus.txt", 1);
    ends_in_order(kib, "choir tokenizer train --vocab-size 300 --out v corpus.txt", 1);
  }
}

/* What could not be finished for want of descriptors is removed with the few that there are. */
static void few_open_files(void **state) {
  for (int files = 4; files <= 8; files++) {
    program_run("ulimit -n %d; exec \"$CHOIR\" init config.json --tokenizer tokenizer.model --out few%d", files, files);
    if (program_run("! ls -A | grep choir-tmp")) fail_msg("ulimit -n %d left %s", files, program_output);
  }
}

static void too_many_threads(void **state) {
  program_refuses(1, "threads is 2147483647; must be 0 (all CPUs) to 1024",
                  "choir data build --threads 2147483647 --tokenizer tokenizer.model --out many corpus.txt");
  program_refuses(1, "threads is 5000",
                  "choir tokenizer train --threads 5000 --vocab-size 300 --out many.model corpus.txt");
  program_refuses(1, "threads is 5000", "choir train --config config.json --data data --threads 5000 --out many");
}

/* The system starts fewer threads than are asked for: pthread_create fails, and OpenMP would end the process. */
static void threads_that_do_not_start(void **state) {
  if (!*CHOIR_SHIM) skip();
  program_refuses(1, "the system starts 3 of 4 threads (Resource temporarily unavailable)",
                  "faulty thread:11:3 train --config config.json --data data --threads 4 --out starved");
  program_refuses(1, "cannot start thread",
                  "faulty thread:11:2 data build --tokenizer tokenizer.model --out d2 corpus.txt");
}

static void small_stacks(void **state) {
  program_refuses(1, "a stack of 16 KiB and need 256: raise OMP_STACKSIZE",
                  "OMP_STACKSIZE=16k choir train --config config.json --data data --threads 2 --out stack");
  program_refuses(1, "the stack may have 300 KiB and needs 512: raise ulimit -s", "ulimit -s 300; choir --version");
  program_must(
      "for size in 256k 1m; do OMP_STACKSIZE=$size choir train --config config.json --data data --set steps=2 "
      "--threads 2 --out stack-$size; done");
  program_must("OMP_STACKSIZE=16k " TRAIN "--out stack1"); /* one thread has the process's own stack */
}

static void small_files(void **state) {
  program_refuses(1, "File too large", "ulimit -f 40; " TRAIN "--out limited");
  program_must(TRAIN "--resume --out limited && cmp open/metrics.jsonl limited/metrics.jsonl");
}

/* A file of a mapped shard is cut while the run reads it. */
static void a_shard_that_shrinks(void **state) {
#ifdef CHOIR_SANITIZED
  skip();
#endif
  program_must("cp -r data cut && choir train --config config.json --data cut --set steps=9 --threads 1 --out shrunk");
  pid_t child = program_start(
      "exec \"$CHOIR\" train --resume --set steps=1000000 --set eval_every=0 --set checkpoint_every=0 --threads 1 "
      "--out shrunk",
      "shrunk.txt");
  struct stat status = {0};
  while (!program_run("! grep -q '\"step\":20,' shrunk/metrics.jsonl")) usleep(20000);
  assert_int_equal(stat("cut/text.train.shard", &status), 0);
  assert_int_equal(truncate("cut/text.train.shard", 1000), 0);
  assert_int_equal(program_wait(child), 1);
  program_must("grep -q 'cut/text.train.shard: ' shrunk.txt");
}

/* Fork after several threads were used: OpenMP's do not come along, and whoever waits for them waits for ever. */
static void forked(void **state) {
  choir_config config;
  choir_model *two, *one;
  choir_forward_result result;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  int32_t tokens[64] = {1, 2, 3};
  test_ok(ch_config_load("config.json", &config));
  config.model.vocab_size = 300;
  config.model.router = test_router("hash"); /* which serves as it is */
  run.threads = 2;
  run.compute = "bf16", run.emulate_bf16 = 1;
  test_ok(choir_model_create(&config, 1, &run, &two));
  run.threads = 1;
  test_ok(choir_model_create(&config, 1, &run, &one));
  test_ok(choir_model_forward(two, 2, 32, tokens, NULL, 0, &result));
  choir_session *session;
  choir_trainer *trainer;
  choir_parameter p;
  test_ok(choir_session_create(two, NULL, &session));
  test_ok(choir_trainer_create(two, NULL, &trainer));
  test_ok(choir_model_parameter_at(two, 0, &p));
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    alarm(20);
    int refused = choir_model_forward(two, 2, 32, tokens, NULL, 0, &result) == CHOIR_ERROR_UNSUPPORTED &&
                  strstr(choir_error_message(), "forked") != NULL;
    refused &= choir_session_advance(session, (int[]){32}, tokens, NULL, NULL) == CHOIR_ERROR_UNSUPPORTED;
    refused &= choir_model_set_parameter(two, 0, p.data) == CHOIR_ERROR_UNSUPPORTED; /* would be rounded */
    refused &= choir_trainer_resume(trainer, "nowhere") == CHOIR_ERROR_UNSUPPORTED;
    double parents = 0;
    int works = !choir_model_forward(one, 2, 32, tokens, NULL, 0, &result) && (parents = result.loss) > 0;
    _exit(refused && works ? 0 : 1);
  }
  assert_int_equal(program_wait(child), 0);
  test_ok(choir_session_advance(session, (int[]){32}, tokens, NULL, NULL)); /* the parent goes on */
  choir_session_free(session);
  test_ok(choir_model_forward(two, 2, 32, tokens, NULL, 0, &result));
  choir_trainer_free(trainer);
  choir_model_free(two);
  choir_model_free(one);
}

TEST_MAIN(program_setup, program_directory_remove, closed_descriptors, few_open_files, too_many_threads,
          threads_that_do_not_start, small_stacks, small_files, a_shard_that_shrinks, forked, limited_address_space)
