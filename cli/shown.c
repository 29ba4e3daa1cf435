/* Text that comes from files or models, on its way to a terminal: shown, not obeyed. Elsewhere it is left as it is. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli.h"

enum { NAMES_MOST = 32 };
static struct { const char *path, *name; } names[NAMES_MOST];
static int named;

void cli_show_as(const char *path, const char *name) {
  if (named == NAMES_MOST) return; /* more than there are pipes */
  names[named].path = path;
  names[named++].name = name;
}

static void replace(char *text, size_t room, const char *path, const char *name) {
  char *at = strstr(text, path), *rest = at ? strdup(at + strlen(path)) : NULL;
  if (rest) snprintf(at, room - (size_t)(at - text), "%s%s", name, rest);
  free(rest);
}

void cli_show_names(char *text, size_t room) {
  for (int i = 0; i < named; i++) replace(text, room, names[i].path, names[i].name);
}

void cli_put_text(FILE *out, const char *text, size_t size) {
  size_t room = isatty(fileno(out)) ? ch_printable(text, size, 1, NULL, 0) + 1 : 0;
  char *shown = room ? malloc(room) : NULL;
  if (shown)
    fwrite(shown, 1, ch_printable(text, size, 1, shown, room), out);
  else if (!room)
    fwrite(text, 1, size, out);
  free(shown);
}

const char *cli_shown(const char *name) {
  static char ring[4][4096];
  static unsigned next;
  char *text = ring[next++ % 4];
  if (isatty(STDOUT_FILENO))
    ch_printable(name, strlen(name), 0, text, sizeof ring[0]);
  else
    snprintf(text, sizeof ring[0], "%s", name);
  cli_show_names(text, sizeof ring[0]);
  return text;
}

size_t cli_json_flags(void) { return isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0; }
