/* Pipes in place of files. The library reads files more than once, and writes them under temporary names; so input
 * from a pipe is first copied to an unnamed file, and a result for standard output is written to a temporary directory
 * (in TMPDIR) and copied at the end. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli.h"
#include "file/dir.h"

enum { INPUTS_MAX = 16, PIECE = 1 << 16 };

static struct {
  char path[INPUTS_MAX][32]; /* /proc/self/fd/N of each copy */
  int inputs, standard_input_read;
  ch_temporary place;  /* staging directory of the result; later processes remove that of a killed one */
  char result[4200];   /* the file in it; "": nothing goes to standard output */
  int standard_output; /* the real standard output */
} pipes;

static const char *temporary_place(void) {
  const char *place = getenv("TMPDIR");
  return place && *place ? place : "/tmp";
}

static int write_bytes(int to, const char *data, size_t bytes) {
  while (bytes) {
    ssize_t n = write(to, data, bytes);
    if (n < 0 && errno != EINTR) return -1;
    if (n > 0) data += n, bytes -= (size_t)n;
  }
  return 0;
}

/* Copies at most `max` bytes from one descriptor to another; -1 with errno, 1: there are more. */
static int copy_bytes(int from, int to, uint64_t max) {
  char piece[PIECE];
  for (ssize_t n; (n = read(from, piece, sizeof piece)) != 0;) {
    if (n < 0 && errno != EINTR) return -1;
    if (n > 0 && (uint64_t)n > max) return 1;
    if (n > 0 && write_bytes(to, piece, (size_t)n)) return -1;
    if (n > 0) max -= (uint64_t)n;
  }
  return 0;
}

/* The maximum number of bytes to copy from a pipe, which may be endless: half of the free space. A device, such as
 * /dev/zero, is limited to little. */
static uint64_t max_bytes(int from, int to, int small) {
  struct stat status;
  struct statvfs space;
  if (small || (!fstat(from, &status) && S_ISCHR(status.st_mode) && !isatty(from))) return CLI_SMALL_BYTES;
  return fstatvfs(to, &space) ? UINT64_MAX : (uint64_t)space.f_bavail * space.f_frsize / 2;
}

/* Copies a stream to an unnamed open file and returns its path; NULL after a message. */
static const char *spool(int from, const char *name, int small) {
  char pattern[4096];
  int failed = -1;
  snprintf(pattern, sizeof pattern, "%s/choir-XXXXXX", temporary_place());
  int to = mkostemp(pattern, O_CLOEXEC);
  if (to >= 0) unlink(pattern);
  uint64_t max = to >= 0 ? max_bytes(from, to, small) : 0;
  if (to < 0 || (failed = copy_bytes(from, to, max))) {
    if (failed > 0 && max == CLI_SMALL_BYTES)
      cli_fail_with("%s: larger than %s, the limit for this input", name, cli_bytes((double)max));
    else if (failed > 0)
      cli_fail_with("%s: more than %s, half of the space in %s; set TMPDIR to another directory, or give a file", name,
                    cli_bytes((double)max), temporary_place());
    else
      cli_fail_with("%s: cannot be copied to %s: %s", name, temporary_place(), strerror(errno));
    if (to >= 0) close(to);
    return NULL;
  }
  char *path = pipes.path[pipes.inputs++];
  snprintf(path, sizeof pipes.path[0], "/proc/self/fd/%d", to);
  cli_show_as(path, name);
  return path;
}

const char *cli_input(const char *path, int small) {
  struct stat status;
  int standard = !strcmp(path, "-");
  if (!standard && (stat(path, &status) || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return path;
  const char *name = standard ? "standard input" : path;
  if (pipes.inputs == INPUTS_MAX) return cli_fail_with("more than %d pipes", INPUTS_MAX), NULL;
  if (standard && pipes.standard_input_read++)
    return cli_fail_with("standard input is given twice, but can be read only once"), NULL;
  int from = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  if (from < 0) return cli_fail_with("%s: %s", name, strerror(errno)), NULL;
  const char *made = spool(from, name, small);
  if (!standard) close(from);
  return made;
}

const char *cli_output(const char *path) {
  if (strcmp(path, "-")) return cli_check_file(path) ? NULL : path;
  if (*pipes.result) return cli_fail_with("standard output is given twice"), NULL;
  if (ch_temporary_make(&pipes.place, temporary_place()))
    return cli_fail_with("%s: cannot create a file there: %s; set TMPDIR to another directory", temporary_place(),
                         strerror(errno)),
           NULL;
  snprintf(pipes.result, sizeof pipes.result, "%s/standard-output", pipes.place.path);
  cli_show_as(pipes.result, "standard output");
  fflush(stdout);
  pipes.standard_output = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO); /* messages of verbs must not be mixed with the bytes */
  return pipes.result;
}

int cli_pipes_end(int status) {
  if (!*pipes.result) return status;
  fflush(stdout);
  int from = status ? -1 : open(pipes.result, O_RDONLY | O_CLOEXEC);
  if (!status && (from < 0 || copy_bytes(from, pipes.standard_output, UINT64_MAX)))
    status = cli_fail_with("standard output: %s", strerror(errno));
  if (from >= 0) close(from);
  ch_temporary_remove(&pipes.place);
  return status;
}
