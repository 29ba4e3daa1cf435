/* Several processes running one verb, started by mpirun or srun: this one is one of them. Only the first prints. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

double cli_rank_timeout;
int cli_verbose_ranks;
int cli_replicas, cli_hidden, cli_shard_dense;
static choir_ranks *ranks;

const choir_ranks *cli_ranks(void) { return ranks; }

/* Whether several processes can share the verb's work: such verbs have an option for it. Any other verb would repeat
 * the same work in every process. */
static int is_shared(const cli_verb *verb) {
  for (const cli_option *o = verb->options; o->name; o++)
    if (o->target == &cli_rank_timeout) return 1;
  return 0;
}

/* Reports a rank that does not respond. Every rank does, because the first one may be the silent one. */
static int on_silence(void *context, const choir_event *event) {
  fflush(stdout);
  fprintf(stderr, "choir: %s: the rank or its machine has stopped, or needs longer than --rank-timeout\n",
          event->notice);
  _exit(CLI_SILENT);
}

/* Writes lines of a rank other than the first, each with its rank. */
static ssize_t put_lines(void *context, const char *text, size_t size) {
  for (const char *line = text, *end = text + size, *next; line < end; line = next) {
    const char *newline = memchr(line, '\n', (size_t)(end - line));
    next = newline ? newline + 1 : end;
    fprintf(stderr, "rank %d: %.*s%s", choir_ranks_rank(ranks), (int)(next - line), line, newline ? "" : "\n");
  }
  return (ssize_t)size;
}

/* Prints the output of a further rank, each line with its rank; errors stay with the first rank. With musl, stdout
 * cannot be redirected: its lines have no rank. */
static void speak(void) {
  FILE **out = _Generic(&stdout, FILE * * : &stdout, default : NULL);
  FILE *lines = out ? fopencookie(NULL, "w", (cookie_io_functions_t){.write = put_lines}) : stdout;
  fflush(stdout);
  if (!lines || (!out && dup2(STDERR_FILENO, STDOUT_FILENO) < 0)) return;
  setvbuf(lines, NULL, _IOLBF, 1 << 16);
  if (out) *out = lines;
}

/* Agrees on a status: the first rank prints the error of any other. */
int cli_ranks_agree(int status) {
  int worst = choir_ranks_agree_message(ranks, status, cli_said());
  if (worst && !status) cli_fail();
  return worst;
}

/* Called first by every process, even if its words are wrong: otherwise the others would wait for a process that
 * ended. */
static int agree_on_start(const char *verb, int status) {
  int code = choir_ranks_watch(ranks, cli_rank_timeout, on_silence, NULL);
  if (code == CHOIR_ERROR_ARGUMENT) return cli_fail(); /* on all ranks: their builds differ */
  if (choir_ranks_check_same(ranks, "verb", verb)) return cli_fail();
  return cli_ranks_agree(code && !status ? cli_fail() : status);
}

int cli_ranks_join(const cli_verb *verb) {
  if (ranks) return 0;
  if (verb && !strcmp(verb->name, "train")) cli_catch_signals(); /* before the processes connect, which may take long */
  if (choir_ranks_create(&ranks)) return cli_fail();
  if (choir_ranks_rank(ranks)) cli_be_silent();
  return 0;
}

int cli_ranks_help(const char *what) { return choir_ranks_size(ranks) > 1 ? agree_on_start(what, 0) : 0; }

static int check_alone(const cli_verb *verb) {
  int size = choir_ranks_size(ranks);
  if (size == 1 || is_shared(verb)) return 0;
  return cli_fail_with("runs in one process, but %d were started together; start it without mpirun or srun", size);
}

int cli_ranks_check(const cli_verb *verb) {
  int status = check_alone(verb);
  return status ? agree_on_start(verb->name, status) : 0;
}

static int take_options(void) {
  if (choir_ranks_set_layout(ranks, cli_replicas, cli_hidden, cli_shard_dense)) return cli_fail();
  if (cli_rank_timeout < 0 && choir_ranks_size(ranks) > 1)
    return cli_usage("--rank-timeout %g: must be seconds, or 0 for never", cli_rank_timeout);
  return 0;
}

int cli_ranks_take_options(const cli_verb *verb, int status) {
  if (!status) status = check_alone(verb);
  if (!status) status = take_options();
  if (!status && cli_verbose_ranks && !cli_ranks_first()) speak();
  return choir_ranks_size(ranks) > 1 ? agree_on_start(verb->name, status) : status;
}

void cli_ranks_leave(void) {
  choir_ranks_free(ranks);
  ranks = NULL;
}

int cli_ranks_speak(void) { return cli_verbose_ranks || cli_ranks_first(); }

int cli_ranks_first(void) { return choir_ranks_rank(ranks) == 0; }

int cli_ranks_no_pipe(const char *path) {
  if (choir_ranks_size(ranks) == 1 || path[0] != '-' || path[1]) return 0;
  return cli_fail_with("'-' is a pipe, which only one of %d processes can read: give a file", choir_ranks_size(ranks));
}
