/* choir study: hands over to the Python package choir.study, as git does to git-NAME. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Where the interpreter lacks what the package needs, that of the system may have it. */
static const char script[] =
    "import importlib.util, os, sys\n"
    "sys.path[:] = [path for path in sys.path if path]\n"
    "needed = 'cffi', 'numpy', 'scipy', 'statsmodels', 'matplotlib', 'jsonschema', 'choir'\n"
    "lacking = [name for name in needed if not importlib.util.find_spec(name)]\n"
    "system = '/usr/bin/python3'\n"
    "if lacking and sys.executable != system and 'CHOIR_PYTHON' not in os.environ and os.access(system, os.X_OK):\n"
    "    os.execv(system, [system, '-c', os.environ['CHOIR_STUDY_SCRIPT'], *sys.argv[1:]])\n"
    "if lacking == ['choir']:\n"
    "    sys.exit('choir study: the Python package of choir is not beside this program; install choir anew, by cmake "
    "'\n"
    "             '--install, Debian\\'s package python3-choir, or pip install . in its source')\n"
    "lacking = [name for name in lacking if name != 'choir']\n"
    "if lacking:\n"
    "    own = sys.executable != system\n"
    "    how = f'{sys.executable} -m pip install ' if own else 'apt-get install '\n"
    "    sys.exit(f'choir study: {sys.executable} lacks {\", \".join(lacking)}: {how}'\n"
    "             + ' '.join(name if own else f'python3-{name}' for name in lacking)\n"
    "             + ' (CHOIR_PYTHON names another Python)')\n"
    "import runpy\n"
    "runpy.run_module('choir.study', run_name='__main__', alter_sys=True)\n";

/* Puts a path, from the program's directory, in front of what a variable holds, if there is such a file in it. */
static int offer(const char *variable, const char *directory, const char *path, const char *file) {
  char probe[PATH_MAX], list[2 * PATH_MAX];
  const char *old = getenv(variable);
  if (snprintf(probe, sizeof probe, "%s/%s%s", directory, path, file) >= (int)sizeof probe || access(probe, R_OK))
    return 0;
  probe[strlen(probe) - strlen(file)] = 0;
  snprintf(list, sizeof list, "%s%s%.4000s", probe, old ? ":" : "", old ? old : "");
  return setenv(variable, list, 1);
}

/* In a build folder of the source tree, installed, or in a wheel. */
static int find_parts(void) {
  static const char package[] = "/choir/study/__main__.py";
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) return cli_fail_with("/proc/self/exe: cannot be read");
  program[length] = 0;
  int code = setenv("CHOIR_PROGRAM", program, 1) || setenv("CHOIR_STUDY_SCRIPT", script, 1);
  *strrchr(program, '/') = 0;
  if (!getenv("CHOIR_LIBRARY")) code |= offer("CHOIR_LIBRARY", program, "libchoir.so", "");
  if (!getenv("CHOIR_LIBRARY")) code |= offer("CHOIR_LIBRARY", program, "../lib/libchoir.so.1", "");
  code |= offer("PYTHONPATH", program, "../lib/python3/dist-packages", package);
  code |= offer("PYTHONPATH", program, "../..", package);
  code |= offer("PYTHONPATH", program, "../python", package);
  return code ? cli_fail_with("no memory for the environment of Python") : 0;
}

static int run_study(int count, const char *const *words) {
  const char *python = getenv("CHOIR_PYTHON");
  if (!python) python = "python3";
  int status = find_parts();
  if (status) return status;
  const char **argv = calloc((size_t)count + 4, sizeof *argv);
  if (!argv) return cli_fail_with("no memory for %d words", count);
  argv[0] = python, argv[1] = "-c", argv[2] = script;
  for (int i = 0; i < count; i++) argv[i + 3] = words[i];
  execvp(python, (char *const *)argv);
  free(argv);
  return cli_fail_with(
      "%s: cannot be started: %s; studies need Python (docs/studies.md), and CHOIR_PYTHON may name one", python,
      strerror(errno));
}

static const cli_option options[] = {{0}};

CLI_VERB(study, "study", "list|run|status|report|claims|measure ...", 0, -1, "experiments, from recipe to report",
         "choir study run RECIPE --data DIR --out DIR searches the rate of every arm, trains it with every seed, "
         "compares, and writes a report; the same command goes on with what a stop has left. 'choir study VERB --help' "
         "has the options of each. Studies are a Python package on NumPy, SciPy, statsmodels, matplotlib and "
         "jsonschema; CHOIR_PYTHON names another interpreter than python3.");
