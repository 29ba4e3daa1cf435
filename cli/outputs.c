/* Checks outputs before work that may take hours: an output is opened and abandoned, and one that the command also
 * reads is refused. Only the first of several ranks writes. */
#include <fts.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "file/dir.h"
#include "file/file.h"
#include "file/path_status.h"
#include "file/run_files.h"

int cli_check_file(const char *path) {
  ch_file file;
  if (!cli_ranks_first()) return 0;
  if (ch_file_begin(&file, path)) return cli_fail();
  ch_file_abandon(&file);
  return 0;
}

int cli_check_new(const char *path) {
  ch_dir dir;
  if (!cli_ranks_first()) return 0;
  if (ch_dir_begin(&dir, path)) return cli_fail();
  ch_dir_end(&dir, CHOIR_ERROR_INTERRUPTED);
  return 0;
}

static int has_suffix(const char *name, const char *suffix) {
  size_t length = strlen(name), of = strlen(suffix);
  return length >= of && !strcmp(name + length - of, suffix);
}

/* Whether a file in a directory is one that choir wrote and reads when the directory is named. A user's page or
 * array next to them is not. */
static int is_read(const char *name) {
  static const char *const files[] = CH_RUN_FILES;
  static const char *const suffixes[] = {".safetensors",    ".safetensors.index.json", ".shard",
                                         "tokenizer.model", "tokenizer.json",          "data.json"};
  int found = !strcmp(name, CH_LOCK);
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) found |= !strcmp(name, files[i]);
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) found |= has_suffix(name, suffixes[i]);
  return found;
}

/* Whether a directory is choir's or a model's: in any other directory, every file below it is an input text. */
static int is_known(const char *directory) {
  static const char *const marks[] = {"config.json", "data.json", CH_RUN_METRICS};
  struct stat status;
  int known = 0;
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) known |= !stat(CH_IN(directory, marks[i]), &status);
  return known;
}

static int same_file(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* operand: the directory is an operand of the command, and all texts in it are inputs; in the directory of an option
 * (--data) only files with choir's names are. */
static int holds_file(const char *directory, const struct stat *output, int operand) {
  char *const roots[] = {(char *)(uintptr_t)directory, NULL};
  int found = 0, known = !operand || is_known(directory);
  FTS *walk = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
  for (FTSENT *at; walk && !found && (at = fts_read(walk));)
    found = at->fts_info == FTS_F && same_file(at->fts_statp, output) && (!known || is_read(at->fts_name));
  if (walk) fts_close(walk);
  return found;
}

/* Compares files by device and inode, like cp: all paths to a file are found. */
static int check_against(const char *path, const struct stat *output, const char *input, int operand) {
  struct stat status;
  if (!input || stat(input, &status)) return 0; /* reported when the input is opened */
  int same = S_ISDIR(status.st_mode) ? holds_file(input, output, operand) : same_file(&status, output);
  if (!same) return 0;
  char shown[4096];
  snprintf(shown, sizeof shown, "%s", cli_shown(path));
  return cli_usage("%s: is read by this command (%s), and would be overwritten; name another output", shown,
                   cli_shown(input));
}

int cli_is_output(const cli_option *o) {
  return o->kind == CLI_OUTPUT || (o->kind == CLI_PATH && !strcmp(o->name, "out"));
}

int cli_check_apart(const cli_verb *verb, const cli_option *output) {
  const char *const *a = output->target;
  for (const cli_option *o = verb->options; o != output; o++) {
    const char *const *b = o->target;
    if (o->kind == CLI_OUTPUT && *b && strcmp(*a, "-") && (!strcmp(*a, *b) || ch_same_file(*a, *b)))
      return cli_usage("--%s and --%s both name %s: one would overwrite the other", o->name, output->name,
                       cli_shown(*a));
  }
  return 0;
}

int cli_check_not_input(const cli_verb *verb, const char *path, int count, const char *const *operands) {
  struct stat output;
  int status = 0;
  if (!strcmp(path, "-") || stat(path, &output) || !S_ISREG(output.st_mode))
    return 0; /* no existing file that could be overwritten */
  for (int i = 0; i < count && !status; i++) status = check_against(path, &output, operands[i], 1);
  for (const cli_option *o = verb->options; o->name && !status; o++) {
    const char *const *input = o->target;
    if ((o->kind == CLI_PATH && !cli_is_output(o)) || o->kind == CLI_INPUT || o->kind == CLI_SMALL)
      if (*input) status = check_against(path, &output, *input, 0);
  }
  return status;
}
