/* Progress of long operations. */
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

double cli_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress_begin(cli_progress *progress, FILE *out) {
  int terminal = isatty(fileno(out)) && choir_ranks_size(cli_ranks()) ==
                                            1; /* mpirun gives every process a terminal, wherever its output goes */
  *progress = (cli_progress){.out = out, .terminal = terminal, .started = cli_seconds()};
  progress->shown = progress->started;
}

int cli_progress_due(cli_progress *progress) {
  double now = cli_seconds();
  if (now - progress->shown < (progress->terminal ? 0.2 : 10) || !cli_ranks_speak()) return 0;
  progress->shown = now;
  return 1;
}

/* The number of bytes of text to show in a line of `columns` columns. A wrapped line could not be redrawn, so a
 * longer text is cut after the last field (fields end at two spaces or a comma) or word that fits. */
static int fields_that_fit(const char *text, int columns) {
  int end = 0, word = columns;
  if (strlen(text) <= (size_t)columns) return (int)strlen(text);
  for (int i = 1; i <= columns; i++) {
    if ((text[i] == ' ' || text[i] == ',') && text[i + 1] == ' ') end = i;
    if (text[i] == ' ') word = i;
  }
  return end ? end : word;
}

void cli_progress_line(cli_progress *progress, const char *format, ...) {
  char text[512];
  struct winsize size;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (!progress->terminal && (progress->out == stdout || cli_wraps(progress->out))) {
    cli_wrap(progress->out, text, 0, 2);
  } else if (!progress->terminal) {
    fprintf(progress->out, "%s\n", text);
  } else {
    int known = !ioctl(fileno(progress->out), TIOCGWINSZ, &size) && size.ws_col > 1;
    fprintf(progress->out, "\r%.*s\033[K", fields_that_fit(text, known ? size.ws_col - 1 : 79), text);
    progress->stands = 1;
  }
  fflush(progress->out);
}

int cli_progress_count(void *context, const choir_progress *p) {
  int64_t done = p->done, total = p->total;
  cli_progress *progress = context;
  if (!total) progress->started = cli_seconds(); /* the estimate of the remaining time excludes reading */
  double seconds = cli_seconds() - progress->started;
  if (total && done >= total) {
    cli_progress_clear(progress);
  } else if ((done || !total) && cli_progress_due(progress)) {
    if (total)
      cli_progress_line(progress, "%lld of %lld %s%s%s%s, %s left", (long long)done, (long long)total, p->unit,
                        progress->routing ? " by " : "", progress->routing ? progress->routing : "",
                        progress->routing ? " routing" : "",
                        cli_duration(seconds * (double)(total - done) / (double)done));
    else
      cli_progress_line(progress, "reading the text");
  }
  return cli_stop_requested();
}

int cli_progress_share(void *progress, const char *what, double share) {
  if (cli_stop_requested()) return 1;
  if (cli_progress_due(progress)) cli_progress_line(progress, "%s: %.0f %%", what, 100 * share);
  return 0;
}

int cli_evaluate(choir_model *model, const choir_tokenizer *tokenizer, choir_eval_options options, int calibrate,
                 choir_eval_result *result) {
  cli_progress progress;
  cli_progress_begin(&progress, stderr);
  progress.routing = choir_model_routing(model); /* there may be several evaluations with different routings */
  options.progress = cli_progress_count;
  options.context = &progress;
  int code = (calibrate ? choir_calibrate : choir_eval)(model, tokenizer, &options, result);
  cli_progress_clear(&progress);
  return code ? cli_fail() : 0;
}

void cli_progress_clear(cli_progress *progress) {
  if (progress->stands) fputs("\r\033[K", progress->out); /* otherwise it would erase another program's line */
  progress->stands = 0;
  fflush(progress->out);
}

int cli_show_event(cli_progress *progress, const choir_event *e) {
  if (e->kind == CHOIR_EVENT_WAITING) {
    if (cli_progress_due(progress) || !progress->waiting)
      cli_progress_line(progress, "all steps are done; waiting for room on the disk, %s left (Ctrl-C gives up)",
                        cli_duration(e->seconds_left));
    progress->waiting = 1;
    return 1;
  }
  if (e->kind != CHOIR_EVENT_MEMORY && e->kind != CHOIR_EVENT_NOTICE) return 0;
  cli_progress_clear(progress);
  if (e->kind == CHOIR_EVENT_NOTICE) {
    cli_print_notices(e->notice);
  } else {
    cli_print(2, "memory %s: %s", cli_bytes((double)e->memory->total), cli_memory(e->memory));
    if (e->layout) cli_print(2, "layout of %d ranks: %s", choir_ranks_size(cli_ranks()), e->layout);
  }
  fflush(stdout);
  return 1;
}

void cli_note_busy(cli_progress *progress, const choir_step_speed *step) {
  char note[160];
  progress->seconds += step->seconds;
  progress->cpu += step->seconds * step->cpu_share;
  if (progress->seconds < 3) return;
  double lost = 1 - progress->cpu / progress->seconds;
  progress->seconds = progress->cpu = 0;
  if (!(lost > progress->lost + 0.25)) return; /* or not measured */
  progress->lost = lost;
  snprintf(
      note, sizeof note,
      "other programs use this machine: training gets %.0f %% of the CPU time of its threads; wait, or set a lower "
      "--threads\n",
      100 * (1 - lost));
  cli_progress_clear(progress);
  cli_print_notices(note);
}
