/* Prints text from files or models to a terminal with control characters escaped (unchanged if not a terminal), and
 * messages to standard error, each after the verb's name. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { NAMES_MAX = 32 };
static struct { const char *path, *name; } names[NAMES_MAX];
static int named;

void cli_show_as(const char *path, const char *name) {
  if (named == NAMES_MAX) return; /* more than the maximum number of pipes */
  names[named].path = path;
  names[named++].name = name;
}

static void replace(char *text, size_t room, const char *path, const char *name) {
  char *at = strstr(text, path), *rest = at ? strdup(at + strlen(path)) : NULL;
  if (rest) snprintf(at, room - (size_t)(at - text), "%s%s", name, rest);
  free(rest);
}

/* Replaces such paths by the names that the user gave. */
static void show_names(char *text, size_t room) {
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
  show_names(text, sizeof ring[0]);
  return text;
}

size_t cli_json_flags(void) { return isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0; }

static const cli_verb *current;
static int silent;
static char said[4096]; /* the last message, printed or not */

void cli_say_for(const cli_verb *verb) { current = verb; }

void cli_be_silent(void) {
  silent = 1;
  if (!freopen("/dev/null", "w", stdout)) fclose(stdout);
}

/* Prints a message after the verb's name; wrapped on a terminal, one line elsewhere. */
static void put_message(const char *kind, const char *text) {
  FILE *out = silent ? stdout : stderr;
  int at = fprintf(out, "choir%s%s: %s", current ? " " : "", current ? current->name : "", kind);
  if (cli_wraps(out))
    cli_wrap(out, text, at, 2);
  else
    fprintf(out, "%s\n", text);
}

static void say(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
static void say(const char *format, va_list args) {
  char text[sizeof said];
  vsnprintf(text, sizeof text, format, args);
  show_names(text, sizeof text);
  ch_printable(text, strlen(text), 0, said, sizeof said);
  if (!silent) put_message("", said);
}

const char *cli_said(void) { return said; }

int cli_usage(const char *format, ...) {
  va_list args;
  va_start(args, format);
  say(format, args);
  va_end(args);
  if (!silent) fprintf(stderr, "Try: choir help%s%s\n", current ? " " : "", current ? current->name : "");
  return CLI_USAGE;
}

int cli_fail_with(const char *format, ...) {
  va_list args;
  va_start(args, format);
  say(format, args);
  va_end(args);
  return CLI_FAILED;
}

void cli_print_notices(const char *lines) {
  for (const char *end; *lines && (end = strchr(lines, '\n')); lines = end + 1) {
    char *line = strndup(lines, (size_t)(end - lines));
    if (line) put_message("note: ", line);
    free(line);
  }
}

int cli_fail(void) { return cli_fail_with("%s", choir_error_message()); }
