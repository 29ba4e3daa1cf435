/* choir report: one HTML file about a run, or about several beside each other. */
#include "pages/report.h"

#include "cli.h"
#include "file/run_files.h"
#include "file/there.h"

static const char *out;

static int run_report(int count, const char *const *operands) {
  char beside[4096];
  int there;
  if (!out && count > 1) return cli_usage("--out FILE.html is missing: of several runs none is where the page belongs");
  if (!out) {
    snprintf(beside, sizeof beside, "%s/" CH_RUN_PAGE, operands[0]);
    if (ch_own_there(beside, &there)) return cli_fail(); /* never through a link: nobody has named this file */
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
