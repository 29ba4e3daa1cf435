/* Messages on standard error, each behind the name of the verb. */
#include <stdarg.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"

static const cli_verb *current;
static int silent;
static char said[4096]; /* the last message, printed or not */

void cli_say_for(const cli_verb *verb) { current = verb; }

void cli_be_silent(void) {
  silent = 1;
  if (!freopen("/dev/null", "w", stdout)) fclose(stdout);
}

static void say(const char *format, va_list args) {
  char text[sizeof said];
  vsnprintf(text, sizeof text, format, args);
  cli_show_names(text, sizeof text);
  ch_printable(text, strlen(text), 0, said, sizeof said);
  if (!silent) fprintf(stderr, "choir%s%s: %s\n", current ? " " : "", current ? current->name : "", said);
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
  for (const char *end; *lines && (end = strchr(lines, '\n')); lines = end + 1)
    fprintf(silent ? stdout : stderr, "choir%s%s: note: %.*s\n", current ? " " : "", current ? current->name : "",
            (int)(end - lines), lines);
}

int cli_fail(void) { return cli_fail_with("%s", choir_error_message()); }
