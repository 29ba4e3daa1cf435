/* For tests of the program: a scratch directory, shell commands in which `choir` is the one just built, and where asked
 * for a small corpus with its tokenizer and data. */
#ifndef CH_TESTS_PROGRAM_H
#define CH_TESTS_PROGRAM_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "file/file.h"
#include "testing.h"

static char program_directory[] = "/tmp/choir-test-XXXXXX"; /* the working directory of the whole test program */
static char program_output[1 << 18];                        /* what the last command said, on both streams */

#ifndef CHOIR_SHIM
#define CHOIR_SHIM "" /* a sanitizer wants to be the first library itself: tests that preload one are left out */
#endif

/* A child in which `sh` runs the command; a command that begins with "exec" is that child itself. What an earlier one
 * wrote into `output` is gone, however early the child is killed. `faulty FAULT ...` is
 * choir with calls that fail (faults/shim.h). */
static inline pid_t program_start(const char *command, const char *output) {
  char line[4096];
  int length = snprintf(line, sizeof line,
                        "choir() { '%s' \"$@\"; }; faulty() { fault=$1; shift; FAULT=$fault GOMP_SPINCOUNT=1000 "
                        "LD_PRELOAD='%s' '%s' \"$@\"; }; exec >'%s' 2>&1; %s",
                        CHOIR_PROGRAM, CHOIR_SHIM, CHOIR_PROGRAM, output, command);
  if (length >= (int)sizeof line || (truncate(output, 0) && errno != ENOENT)) abort();
  fflush(NULL);
  pid_t child = fork();
  if (child < 0) abort();
  if (child == 0) {
    for (int i = 1; i < 32; i++)
      signal(i, SIG_DFL); /* ignored in the background jobs of a script, this program perhaps */
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

static char program_command[4096]; /* the last one */

/* Runs a command, made as by printf, to its end; program_output says what it said. Gives the exit status. */
static inline int program_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int program_run(const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (vsnprintf(program_command, sizeof program_command, format, args) >= (int)sizeof program_command) abort();
  va_end(args);
  int status = program_wait(program_start(program_command, "output.txt"));
  size_t size = 0;
  char *text = program_read("output.txt", &size);
  snprintf(program_output, sizeof program_output, "%s", text ? text : "");
  free(text);
  return status;
}

/* Success is expected, of every command of a list. */
#define program_must(...)                                                                    \
  do {                                                                                       \
    int status_ = program_run("set -e; " __VA_ARGS__);                                       \
    if (status_) fail_msg("status %d of: %s\n%s", status_, program_command, program_output); \
  } while (0)

/* This exit status, and a message with this text, are expected. */
#define program_refuses(status, text, ...)                                                              \
  do {                                                                                                  \
    int status_ = program_run(__VA_ARGS__);                                                             \
    if (status_ != (status) || !strstr(program_output, (text)))                                         \
      fail_msg("status %d and no \"%s\" of: %s\n%s", status_, (text), program_command, program_output); \
  } while (0)

/* Parses what the program printed. */
static inline json_t *program_json(void) {
  json_error_t error;
  const char *text = strchr(program_output, '{'); /* behind progress */
  json_t *root = text ? json_loads(text, 0, &error) : NULL;
  if (!root) fail_msg("not JSON: %s", program_output);
  return root;
}

static inline double json_at(const json_t *root, const char *key) {
  const json_t *value = json_object_get(root, key);
  if (!json_is_number(value)) fail_msg("no number \"%s\"", key);
  return json_number_value(value);
}

/* Every loss that a run has written, `most` at most. */
static inline int program_losses(const char *run, double *loss, int max) {
  char path[64], line[4096];
  int count = 0;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file)) {
    json_t *event = json_loads(line, 0, NULL);
    if (json_object_get(event, "loss")) {
      assert_true(count < max);
      loss[count++] = json_at(event, "loss");
    }
    json_decref(event);
  }
  fclose(file);
  return count;
}

/* Two runs have the same losses within `tolerance`, `least` losses at least. */
static inline void program_close_losses(const char *what, const char *run, const char *other, int min,
                                        double tolerance) {
  enum { MAX = 16 };
  double got[MAX], want[MAX];
  int count = program_losses(other, want, MAX);
  assert_true(count >= min);
  assert_int_equal(program_losses(run, got, MAX), count);
  for (int at = 0; at < count; at++)
    if (!(fabs(got[at] - want[at]) <= tolerance))
      fail_msg("%s: loss %d of %s is %.8f, of %s %.8f", what, at, run, got[at], other, want[at]);
}

/* A file system in memory at `path`, with a size ("2m") or NULL, that only this process and its children see: call it
 * in a forked child. Needs the right to mount, as root or in a name space of users; 0: it is there. */
static inline int program_mount(const char *path, const char *size) {
  char map[64], options[64] = "";
  int length = snprintf(map, sizeof map, "0 %u 1", geteuid());
  int fd = geteuid() && !unshare(CLONE_NEWUSER) ? open("/proc/self/uid_map", O_WRONLY) : -1;
  if (fd >= 0 && (write(fd, map, (size_t)length) != length || close(fd))) return -1;
  if (size) snprintf(options, sizeof options, "size=%s", size);
  return unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
         mount("none", path, "tmpfs", 0, options);
}

/* Whether two files hold the same bytes; says where they differ. */
static inline int program_same(const char *a, const char *b) {
  size_t size_a = 0, size_b = 0, at = 0;
  char *data_a = program_read(a, &size_a), *data_b = program_read(b, &size_b);
  int same = data_a && data_b && size_a == size_b && !memcmp(data_a, data_b, size_a);
  while (!same && data_a && data_b && at < size_a && at < size_b && data_a[at] == data_b[at]) at++;
  if (!same) fprintf(stderr, "%s (%zu bytes) and %s (%zu bytes) differ from byte %zu on\n", a, size_a, b, size_b, at);
  free(data_a);
  free(data_b);
  return same;
}

/* Whether two runs ended with the same bytes at `step`: log, weights, state. */
static inline int program_same_runs(const char *a, const char *b, int step) {
  static const char *const files[] = {"model.safetensors", "state.safetensors", "config.json", "tokenizer.model"};
  char path_a[256], path_b[256];
  snprintf(path_a, sizeof path_a, "%s/metrics.jsonl", a);
  snprintf(path_b, sizeof path_b, "%s/metrics.jsonl", b);
  int same = program_same(path_a, path_b);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path_a, sizeof path_a, "%s/checkpoints/%08d/%s", a, step, files[i]);
    snprintf(path_b, sizeof path_b, "%s/checkpoints/%08d/%s", b, step, files[i]);
    same &= program_same(path_a, path_b);
  }
  return same;
}

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

/* The newest checkpoint's step, or 0. */
static inline int program_newest(const char *run) {
  char path[256];
  snprintf(path, sizeof path, "%s/checkpoints", run);
  DIR *directory = opendir(path);
  int best = 0;
  for (struct dirent *entry; directory && (entry = readdir(directory));) {
    char *end;
    long step = strtol(entry->d_name, &end, 10);
    if (!*end && step > best) best = (int)step;
  }
  if (directory) closedir(directory);
  return best;
}

static inline void program_nap(double time) {
  nanosleep(&(struct timespec){(time_t)time, (long)(1e9 * (time - floor(time)))}, NULL);
}

/* Waits until the run has a newer checkpoint than `step`, or has ended by itself; whether it still runs. */
static inline int program_wait_for_checkpoint(pid_t child, const char *run, int step) {
  siginfo_t ended = {.si_pid = 0};
  while (program_newest(run) <= step) {
    if (waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid) return 0;
    program_nap(0.0005);
  }
  return 1;
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
      "set -e; choir tokenizer train --type unigram --vocab-size 320 --out tokenizer.model corpus.txt;"
      "choir data build --tokenizer tokenizer.model --separator '\\f' --holdout 0.1 --out data corpus.txt");
  if (status) fprintf(stderr, "setting up, status %d:\n%s\n", status, program_output);
  return status;
}

/* The same, and a small model that has seen a few batches in `run`. */
static inline int program_setup_run(void **state) {
  if (program_setup(state)) return -1;
  int status = program_run("choir train --config config.json --data data --out run --set train.steps=30");
  if (status) fprintf(stderr, "training, status %d:\n%s\n", status, program_output);
  return status;
}

#endif
