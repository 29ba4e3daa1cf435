/* For tests that go through several commands of the program and break things between them: a scratch directory, a small
 * corpus, and shell commands in which `choir` is the one just built. */
#ifndef CH_TESTS_PROGRAM_H
#define CH_TESTS_PROGRAM_H

#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "testing.h"

static char program_directory[] = "/tmp/choir-test-XXXXXX"; /* the working directory of the whole test program */
static char program_output[1 << 16];                        /* what the last command said, on both streams */

/* A child in which `sh` runs the command; a command that begins with "exec" is that child itself. */
static inline pid_t program_start(const char *command, const char *output) {
  char line[4096];
  int length =
      snprintf(line, sizeof line, "choir() { '%s' \"$@\"; }; exec >'%s' 2>&1; %s", CHOIR_PROGRAM, output, command);
  if (length >= (int)sizeof line) abort();
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("CHOIR", CHOIR_PROGRAM, 1);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
  }
  return child;
}

/* The exit status; 128 + signal for who was killed. */
static inline int program_wait(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A whole file, malloc'd; NULL when it cannot be read. */
static inline char *program_read(const char *path, size_t *size) {
  char *data;
  return ch_file_read(path, (size_t)1 << 28, &data, size) ? NULL : data;
}

/* Runs a command to its end; program_output says what it said. */
static inline int program_run(const char *command) {
  int status = program_wait(program_start(command, "output.txt"));
  size_t size = 0;
  char *text = program_read("output.txt", &size);
  snprintf(program_output, sizeof program_output, "%s", text ? text : "");
  free(text);
  return status;
}

#define program_must(command)                                                          \
  do {                                                                                 \
    int status_ = program_run(command);                                                \
    if (status_) fail_msg("status %d of: %s\n%s", status_, (command), program_output); \
  } while (0)

/* Sentences of made-up words with a skewed distribution: enough to learn something from; documents end with a form feed
 * line. */
static inline void program_corpus(const char *path, int documents, uint32_t sub) {
  static const char *const part[] = {"ka", "lo", "mi", "ten", "sur", "a", "re", "vo", "ni", "pel", "dor", "e"};
  FILE *file = fopen(path, "w");
  ch_rng rng = ch_rng_make(20220218, CH_STREAM_TEST, sub);
  uint64_t at = 0;
  for (int i = 0; i < documents; i++, fputs("\n\f\n", file))
    for (int sentence = 0; sentence < 12; sentence++, fputs(". ", file))
      for (int word = 0; word < 9; word++) {
        double u = ch_rng_uniform(rng, at++);
        int id = (int)(u * u * 300);
        fprintf(file, "%s%s%s%s", word ? " " : "", part[id % 12], part[id / 12 % 12], id > 143 ? part[id / 144] : "");
      }
  if (fclose(file)) abort();
}

static inline int program_directory_make(void **state) {
  (void)state;
  return !mkdtemp(program_directory) || chdir(program_directory);
}

static inline int program_directory_remove(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", program_directory);
  return chdir("/") || system(command);
}

/* corpus.txt, tokenizer.model, data/ and config.json in a fresh working directory. */
static inline int program_setup(void **state) {
  static const char config[] =
      "{\"model\": {\"name\": \"tiny\", \"layers\": 2, \"d_model\": 32, \"d_hidden\": 64, \"heads\": 2, \"experts\": "
      "4},\n"
      " \"train\": {\"sequence_length\": 32, \"batch_sequences\": 4, \"steps\": 60, \"rate\": 0.05, "
      "\"checkpoint_every\": 7,\n"
      "           \"keep_checkpoints\": 3, \"eval_every\": 20, \"eval_sequences\": 8}}\n";
  if (program_directory_make(state)) return -1;
  program_corpus("corpus.txt", 150, 1);
  test_ok(ch_file_save("config.json", config, sizeof config - 1));
  int status = program_run(
      "set -e; choir tokenizer train --vocab-size 320 --out tokenizer.model corpus.txt;"
      "choir data build --tokenizer tokenizer.model --separator '\\f' --holdout 0.1 --out data corpus.txt");
  if (status) fprintf(stderr, "setting up, status %d:\n%s\n", status, program_output);
  return status;
}

#endif
