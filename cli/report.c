/* choir report: one HTML file about a run. */
#include "choir/report.h"

#include "cli.h"

static const char *out;

static int run(int count, const char *const *operands) {
  (void)count;
  char beside[4096];
  if (!out) {
    snprintf(beside, sizeof beside, "%s/report.html", operands[0]);
    out = beside;
  }
  if (choir_report_write(operands[0], out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

static const cli_option options[] = {
    {"out", "FILE.html", CLI_TEXT, &out, NULL, "the file to write; RUN/report.html otherwise", 0}, {0}};

const cli_verb cli_report = {
    "report",
    "RUN",
    1,
    1,
    "write one self-contained HTML file about a run",
    "Curves of loss, rate, speed and routing, load of every expert, and the config. Needs no network, "
    "neither to write nor to read.",
    options,
    run};
