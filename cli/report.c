/* choir report: writes one HTML file about one or several runs. */
#include "pages/report.h"

#include "cli.h"
#include "file/path_status.h"
#include "file/run_files.h"

static const char *out;

static int run_report(int count, const char *const *operands) {
  char page_path[4096];
  int there;
  if (!out && count > 1) return cli_usage("--out FILE.html is required for several runs");
  if (!out) {
    snprintf(page_path, sizeof page_path, "%s/" CH_RUN_PAGE, operands[0]);
    if (ch_regular_exists(page_path, &there))
      return cli_fail(); /* never through a link: the user has not named this file */
    out = page_path;
  }
  if (ch_report_write(operands, count, out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

static const cli_option options[] = {
    {"out", "FILE.html", CLI_OUTPUT, &out, NULL, "HTML file to write; default for one run: RUN/report.html", 0}, {0}};

CLI_VERB(report, "report", "RUN...", 1, -1, "make a web page about one run, or one that compares several",
         "The page has curves of loss, learning rate, speed and routing, the load of every expert, and the config. For "
         "several runs, it has a table of their results, the differences of their configs, and their curves in common "
         "charts. The page is one file and needs no network.");
