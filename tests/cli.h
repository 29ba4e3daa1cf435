/* Runs the choir program from tests. */
#ifndef CH_TESTS_CLI_H
#define CH_TESTS_CLI_H

#include <jansson.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"

/* A directory of this test program's own, below the current one; made empty. */
static char program_directory[64];
static inline int program_setup(void **state) {
  (void)state;
  snprintf(program_directory, sizeof program_directory, "program-test-%ld", (long)getpid());
  char command[512];
  snprintf(command, sizeof command, "rm -rf %s && mkdir %s", program_directory, program_directory);
  return system(command);
}
static inline int program_teardown(void **state) {
  (void)state;
  char command[512];
  snprintf(command, sizeof command, "rm -rf %s", program_directory);
  return system(command);
}

/* `choir ARGUMENTS` within the directory; gives its exit status, and what it printed on both streams in
 * `program_output`. */
static char program_output[1 << 20];
static inline int program(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int program(const char *format, ...) {
  char arguments[2048], command[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(arguments, sizeof arguments, format, args);
  va_end(args);
  snprintf(command, sizeof command, "cd %s && %s %s 2>&1", program_directory, CHOIR_PROGRAM, arguments);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t length = fread(program_output, 1, sizeof program_output - 1, pipe);
  program_output[length] = 0;
  int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Success is expected; shows what went wrong. */
#define program_ok(...)                                                                       \
  do {                                                                                        \
    int status_ = program(__VA_ARGS__);                                                       \
    if (status_) {                                                                            \
      fprintf(stderr, "%s:%d: status %d: %s\n", __FILE__, __LINE__, status_, program_output); \
      _fail(__FILE__, __LINE__);                                                              \
    }                                                                                         \
  } while (0)

/* This status, and a message with this text, are expected. */
#define program_refuses(status, text, ...)                                                                             \
  do {                                                                                                                 \
    int status_ = program(__VA_ARGS__);                                                                                \
    if (status_ != (status) || !strstr(program_output, (text))) {                                                      \
      fprintf(stderr, "%s:%d: status %d, not with \"%s\": %s\n", __FILE__, __LINE__, status_, (text), program_output); \
      _fail(__FILE__, __LINE__);                                                                                       \
    }                                                                                                                  \
  } while (0)

/* Parses what the program printed. */
static inline json_t *program_json(void) {
  json_error_t error;
  const char *text = strchr(program_output, '{'); /* behind progress */
  json_t *root = text ? json_loads(text, 0, &error) : NULL;
  if (!root) fprintf(stderr, "not JSON: %s\n", program_output);
  assert_non_null(root);
  return root;
}
static inline double json_at(const json_t *root, const char *key) {
  const json_t *value = json_object_get(root, key);
  if (!json_is_number(value)) fprintf(stderr, "no number \"%s\"\n", key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

/* A path below the directory; the result lasts for eight more calls. */
static inline const char *program_path(const char *name) {
  static char paths[8][512];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, 512, "%s/%s", program_directory, name);
  return path;
}

#endif
