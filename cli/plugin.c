/* --plugin FILE, before any verb reads a config: routers of somebody's own. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

/* The file of words[i], and how many words say it; 0: it is another word. */
static int read_words(int count, char **words, int i, const char **file) {
  static const char option[] = "--plugin";
  size_t length = sizeof option - 1;
  *file = NULL;
  if (strncmp(words[i], option, length)) return 0;
  if (words[i][length] == '=') return *file = words[i] + length + 1, 1;
  if (words[i][length]) return 0;
  if (i + 1 < count) *file = words[i + 1];
  return 2;
}

/* A pipe would keep the one who opens it waiting, and Python runs a folder that has a __main__.py. */
static int load(const char *file) {
  struct stat found;
  const char *dot = strrchr(file, '.');
  if (!stat(file, &found) && !S_ISREG(found.st_mode)) return cli_fail_with("plug-in %s: is not a file", file);
  if (dot && !strcmp(dot, ".py")) return cli_load_python(file);
  return choir_plugin_load(file) ? cli_fail() : 0;
}

/* CHOIR_PLUGIN: files, with colons between them, for the commands that another one starts. */
static int load_named(void) {
  const char *named = getenv("CHOIR_PLUGIN");
  char *files = named ? strdup(named) : NULL, *rest = NULL;
  int status = 0;
  for (char *file = files ? strtok_r(files, ":", &rest) : NULL; file && !status; file = strtok_r(NULL, ":", &rest))
    status = load(file);
  free(files);
  return status;
}

const char cli_plugin_help[] = "a router of your own, in Python or C (docs/adding-a-router.md); may be repeated";

static char shown[1024];

const char *cli_plugins_shown(void) { return shown; }

int cli_take_plugins(int *count, char **words) {
  int left = 0, status;
  if (*count && !strcmp(words[0], cli_study.name)) return 0; /* whose arms take them */
  status = load_named();
  for (int i = 0, used; i < *count && !status; i += used ? used : 1) {
    const char *file;
    used = read_words(*count, words, i, &file);
    if (!used)
      words[left++] = words[i];
    else if (!file || !*file)
      return cli_usage("--plugin needs a file: a router of your own (docs/adding-a-router.md)");
    else if (!(status = load(file)))
      snprintf(shown + strlen(shown), sizeof shown - strlen(shown), " --plugin %s", cli_shown(file));
  }
  *count = left;
  return status;
}
