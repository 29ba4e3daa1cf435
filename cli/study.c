/* choir study: runs the Python package choir.study, like git running git-NAME. */
#include "cli.h"

static int run_study(int count, const char *const *words) {
  return cli_python("study", "choir.study", "cffi,numpy,scipy,statsmodels,matplotlib,jsonschema,choir", count, words);
}

static const cli_option options[] = {{0}};

CLI_VERB(study, "study", "list|noise|run|status|report|measure ...", 0, -1,
         "compare models with several seeds and confidence intervals",
         "choir study run RECIPE --data DIR --out DIR finds the learning rate of each arm, trains each arm with every "
         "seed, compares them, and writes a report. After an interruption, the same command continues. 'choir study "
         "VERB --help' explains the options of each verb.\n\n"
         "Studies require Python with NumPy, SciPy, statsmodels, matplotlib and jsonschema. CHOIR_PYTHON names the "
         "interpreter; default: python3.");
