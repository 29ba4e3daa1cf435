/* Wraps text and tables to the width of the terminal. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include "cli.h"

enum { COLUMNS_DEFAULT = 80, COLUMNS_MIN = 20 };

/* The number in COLUMNS; 0: not set. */
static int columns_set(void) {
  const char *set = getenv("COLUMNS");
  char *end;
  long number = set ? strtol(set, &end, 10) : 0;
  return set && end != set && !*end && number >= COLUMNS_MIN && number < 10000 ? (int)number : 0;
}

int cli_columns(FILE *out) {
  struct winsize size;
  if (columns_set()) return columns_set();
  return !ioctl(fileno(out), TIOCGWINSZ, &size) && size.ws_col >= COLUMNS_MIN ? size.ws_col : COLUMNS_DEFAULT;
}

int cli_wraps(FILE *out) { return columns_set() || isatty(fileno(out)); }

/* Width of text on a terminal in columns. Bytes that are not UTF-8 count as one column each. */
int cli_width(const char *text, size_t size) {
  int width = 0;
  for (size_t at = 0; at < size;) {
    utf8proc_int32_t c;
    utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &c);
    width += used > 0 && c != *CLI_TIE ? utf8proc_charwidth(c) : 1;
    at += used > 0 ? (size_t)used : 1;
  }
  return width;
}

/* Writes a word, with CLI_TIE as a space. */
static void put_word(FILE *out, const char *word, size_t size) {
  for (size_t i = 0; i < size; i++) fputc(word[i] == *CLI_TIE ? ' ' : word[i], out);
}

/* Wraps text[0,size), which has no line end, at `columns`; the first line starts at column `at`, the others at
 * `indent`. Runs of spaces within a line are kept. */
static void wrap_line(FILE *out, const char *text, size_t size, int at, int indent, int columns) {
  int column = at, words = 0;
  for (const char *end = text + size; text < end;) {
    const char *word = text;
    while (word < end && *word == ' ') word++;
    const char *after = word;
    while (after < end && *after != ' ') after++;
    int blanks = (int)(word - text), width = cli_width(word, (size_t)(after - word));
    if (words++ && column + blanks + width > columns) {
      fputc('\n', out);
      column = blanks = indent;
    } else {
      column += blanks;
    }
    fprintf(out, "%*s", blanks, "");
    put_word(out, word, (size_t)(after - word));
    column += width;
    text = after;
  }
}

void cli_wrap_at(FILE *out, const char *text, int at, int indent, int columns) {
  for (;; at = indent) {
    size_t size = strcspn(text, "\n");
    wrap_line(out, text, size, at, indent, columns);
    if (!text[size]) break;
    text += size + 1;
    fprintf(out, "\n%*s", *text && *text != '\n' ? indent : 0, "");
  }
}

void cli_wrap(FILE *out, const char *text, int at, int indent) {
  cli_wrap_at(out, text, at, indent, cli_columns(out));
  fputc('\n', out);
}

const char *cli_whole(const char *format, ...) {
  static char ring[4][4096];
  static unsigned next;
  char *text = ring[next++ % 4];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof ring[0], format, args);
  va_end(args);
  for (char *blank = text; (blank = strchr(blank, ' '));) *blank = *CLI_TIE;
  return text;
}

void cli_print(int indent, const char *format, ...) {
  char *text;
  va_list args;
  va_start(args, format);
  int length = vasprintf(&text, format, args);
  va_end(args);
  if (length < 0) return;
  int begin = (int)strspn(text, " ");
  printf("%*s", begin, "");
  cli_wrap(stdout, text + begin, begin, indent);
  free(text);
}
