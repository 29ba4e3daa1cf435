/* Hands over to a module of the Python package, as git does to git-NAME. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Its words: what for, the module, what that needs, and then the module's. Where the interpreter lacks something, that
 * of the system may have it. */
static const char script[] =
    "import importlib.util, os, sys\n"
    "sys.path[:] = [path for path in sys.path if path]\n"
    "what, module, needed = sys.argv[1:4]\n"
    "lacking = [name for name in needed.split(',') if not importlib.util.find_spec(name)]\n"
    "system = '/usr/bin/python3'\n"
    "if lacking and sys.executable != system and 'CHOIR_PYTHON' not in os.environ and os.access(system, os.X_OK):\n"
    "    os.execv(system, [system, '-c', os.environ['CHOIR_SCRIPT'], *sys.argv[1:]])\n"
    "if lacking == ['choir']:\n"
    "    sys.exit(f'choir {what}: the Python package of choir is not beside this program; install choir anew, by cmake "
    "'\n"
    "             '--install, Debian\\'s package python3-choir, or pip install . in its source')\n"
    "lacking = [name for name in lacking if name != 'choir']\n"
    "if lacking:\n"
    "    own = sys.executable != system\n"
    "    how = f'{sys.executable} -m pip install ' if own else 'apt-get install '\n"
    "    sys.exit(f'choir {what}: {sys.executable} lacks {\", \".join(lacking)}: {how}'\n"
    "             + ' '.join(name if own else f'python3-{name}' for name in lacking)\n"
    "             + ' (CHOIR_PYTHON names another Python)')\n"
    "import runpy\n"
    "del sys.argv[1:4]\n"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)\n";

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
  int code = setenv("CHOIR_PROGRAM", program, 1) || setenv("CHOIR_SCRIPT", script, 1);
  *strrchr(program, '/') = 0;
  if (!getenv("CHOIR_LIBRARY")) code |= offer("CHOIR_LIBRARY", program, "libchoir.so", "");
  if (!getenv("CHOIR_LIBRARY")) code |= offer("CHOIR_LIBRARY", program, "../lib/libchoir.so.1", "");
  code |= offer("PYTHONPATH", program, "../lib/python3/dist-packages", package);
  code |= offer("PYTHONPATH", program, "../..", package);
  code |= offer("PYTHONPATH", program, "../python", package);
  return code ? cli_fail_with("no memory for the environment of Python") : 0;
}

int cli_python(const char *what, const char *module, const char *needed, int count, const char *const *words) {
  const char *python = getenv("CHOIR_PYTHON");
  if (!python) python = "python3";
  int status = find_parts();
  if (status) return status;
  const char **argv = calloc((size_t)count + 7, sizeof *argv);
  if (!argv) return cli_fail_with("no memory for %d words", count);
  const char *const first[] = {python, "-c", script, what, module, needed};
  memcpy(argv, first, sizeof first);
  for (int i = 0; i < count; i++) argv[i + 6] = words[i];
  execvp(python, (char *const *)argv);
  free(argv);
  return cli_fail_with("%s: cannot be started: %s; 'choir %s' needs Python, and CHOIR_PYTHON may name one", python,
                       strerror(errno), what);
}
