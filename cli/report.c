/* choir report: one HTML file about a run, or about several beside each other. */
#include "pages/report.h"

#include "cli.h"

static const char *out;

static int run_report(int count, const char *const *operands) {
  char beside[4096];
  if (!out && count > 1) return cli_usage("--out FILE.html is missing: of several runs none is where the page belongs");
  if (!out) {
    snprintf(beside, sizeof beside, "%s/report.html", operands[0]);
    out = beside;
  }
  if (ch_report_write(operands, count, out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

static const cli_option options[] = {
    {"out", "FILE.html", CLI_OUTPUT, &out, NULL, "the file to write; of one run RUN/report.html otherwise", 0}, {0}};

CLI_VERB(report, "report", "RUN...", 1, -1, "write one self-contained HTML file about a run, or several",
         "Curves of loss, rate, speed and routing, load of every expert, and the config. Of several runs: their "
         "results in one table, what differs in their configs, and their curves laid over each other. Needs no "
         "network, neither to write nor to read.");
