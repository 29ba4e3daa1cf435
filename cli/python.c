/* Replaces this process by a module of the Python package, like git running git-NAME. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* Arguments: the purpose, the module, its required modules, and then the module's own arguments. If this interpreter
 * lacks a module, the system's may have it. */
static const char script[] =
    "import sys\n" /* imports no other module yet: before Python 3.11 it would be found in the current directory */
    "sys.path[:] = [path for path in sys.path if path]\n"
    "import importlib.util, os\n"
    "what, module, needed = sys.argv[1:4]\n"
    "lacking = [name for name in needed.split(',') if not importlib.util.find_spec(name)]\n"
    "system = '/usr/bin/python3'\n"
    "if lacking and sys.executable != system and 'CHOIR_PYTHON' not in os.environ and os.access(system, os.X_OK):\n"
    "    os.execv(system, [system, '-c', os.environ['CHOIR_SCRIPT'], *sys.argv[1:]])\n"
    "if lacking == ['choir']:\n"
    "    sys.exit(f'choir {what}: the Python package of choir is not installed with this program; install choir again, "
    "by cmake "
    "'\n"
    "             '--install, Debian\\'s package python3-choir, or pip install . in its source')\n"
    "lacking = [name for name in lacking if name != 'choir']\n"
    "if lacking:\n"
    "    own = sys.executable != system\n"
    "    how = f'{sys.executable} -m pip install ' if own else 'apt-get install '\n"
    "    sys.exit(f'choir {what}: {sys.executable} lacks {\", \".join(lacking)}: {how}'\n"
    "             + ' '.join(name if own else f'python3-{name}' for name in lacking)\n"
    "             + ' (or set CHOIR_PYTHON to another interpreter)')\n"
    "import runpy\n"
    "if os.environ.get('PYTHONSAFEPATH') == 'choir':\n"
    "    del os.environ['PYTHONSAFEPATH']\n" /* must not apply to programs that a plug-in starts */
    "del sys.argv[1:4]\n"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)\n";

/* Whether an entry of PYTHONPATH is the current directory, as an empty one is. */
static int is_current_directory(const char *entry, size_t length) {
  size_t i = 0;
  while (i < length && entry[i] == '.' && (i + 1 == length || entry[i + 1] == '/'))
    for (i++; i < length && entry[i] == '/';) i++;
  return i == length;
}

/* Adds the entries of a colon-separated list, except the current directory: Python would run files that other users
 * placed there. */
static int add_entries(ch_buffer *list, const char *entries) {
  for (const char *end; entries; entries = *end ? end + 1 : NULL) {
    end = strchrnul(entries, ':');
    size_t length = (size_t)(end - entries);
    if (is_current_directory(entries, length)) continue;
    CH_TRY(ch_buffer_append(list, ":", list->size > 0));
    CH_TRY(ch_buffer_append(list, entries, length));
  }
  return CHOIR_OK;
}

/* Whether a file exists at a path relative to the program's directory. probe [PATH_MAX]: the path */
static int is_there(char *probe, const char *directory, const char *path, const char *file) {
  if (snprintf(probe, PATH_MAX, "%s/%s%s", directory, path, file) >= PATH_MAX || access(probe, R_OK)) return 0;
  probe[strlen(probe) - strlen(file)] = 0;
  return 1;
}

/* Makes Python import from choir's package first, then from PYTHONPATH. */
static int set_python_path(const char *directory) {
  static const char package[] = "/choir/study/__main__.py", *const places[] = {"../python", "../..",
                                                                               "../lib/python3/dist-packages"};
  char probe[PATH_MAX];
  ch_buffer list = {0};
  int code = CHOIR_OK;
  for (int i = 0; i < 3 && !code; i++)
    if (is_there(probe, directory, places[i], package)) code = add_entries(&list, probe);
  if (!code) code = add_entries(&list, getenv("PYTHONPATH"));
  if (!code) code = ch_buffer_append(&list, "", 1);
  if (!code) code = list.size > 1 ? setenv("PYTHONPATH", list.data, 1) : unsetenv("PYTHONPATH");
  free(list.data);
  return code;
}

static int offer_library(const char *directory, const char *path) {
  char probe[PATH_MAX];
  if (getenv("CHOIR_LIBRARY") || !is_there(probe, directory, path, "")) return 0;
  return setenv("CHOIR_LIBRARY", probe, 1);
}

/* Finds the Python package in a build folder of the source tree, an installation, or a wheel. */
static int find_parts(void) {
  char program[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) return cli_fail_with("/proc/self/exe: cannot be read");
  program[length] = 0;
  int code = setenv("CHOIR_PROGRAM", program, 1) || setenv("CHOIR_SCRIPT", script, 1);
  *strrchr(program, '/') = 0;
  code |= offer_library(program, "libchoir.so") || offer_library(program, "../lib/libchoir.so.1");
  code |= set_python_path(program);
  code |= setenv("PYTHONSAFEPATH", "choir", 0); /* Python 3.13 imports linecache before the first line of -c */
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
  return cli_fail_with(
      "%s: cannot be started: %s; 'choir %s' requires Python: install python3, or set CHOIR_PYTHON to an interpreter",
      python, strerror(errno), what);
}
