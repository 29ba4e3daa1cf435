/* choir study: hands over to the Python package choir.study, as git does to git-NAME. */
#include "cli.h"

static int run_study(int count, const char *const *words) {
  return cli_python("study", "choir.study", "cffi,numpy,scipy,statsmodels,matplotlib,jsonschema,choir", count, words);
}

static const cli_option options[] = {{0}};

CLI_VERB(study, "study", "list|run|status|report|claims|measure ...", 0, -1, "experiments, from recipe to report",
         "choir study run RECIPE --data DIR --out DIR searches the rate of every arm, trains it with every seed, "
         "compares, and writes a report; the same command goes on with what a stop has left. 'choir study VERB --help' "
         "has the options of each. Studies are a Python package on NumPy, SciPy, statsmodels, matplotlib and "
         "jsonschema; CHOIR_PYTHON names another interpreter than python3.");
