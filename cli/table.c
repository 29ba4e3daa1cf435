/* Tables with columns that fit the terminal. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { TEXT_MIN = 16 }; /* minimum width for wrapped text */

void cli_table_begin(cli_table *table, int indent, const char *heads) {
  *table = (cli_table){.indent = indent, .last_text = 1};
  for (const char *head = heads; table->columns < CLI_TABLE_COLUMNS; head += strcspn(head, "|") + 1) {
    size_t size = strcspn(head, "|");
    int right = size && head[size - 1] == '>';
    table->right[table->columns++] = (char)right;
    table->last_text = !right;
    cli_cell(table, "%.*s", (int)size - right, head);
    if (!head[size]) break;
  }
}

void cli_cell(cli_table *table, const char *format, ...) {
  char *text;
  va_list args;
  va_start(args, format);
  int length = vasprintf(&text, format, args);
  va_end(args);
  if (length < 0 || ch_buffer_append(&table->text, text, (size_t)length + 1)) table->lost = 1;
  if (length >= 0) free(text);
  table->cells++;
}

/* Computes the column widths, 0 for columns that contain only dashes or nothing; nonzero: the table has a header. */
static int measure(const cli_table *table, int *width) {
  int heads = 0, used[CLI_TABLE_COLUMNS] = {0};
  const char *cell = (const char *)table->text.data;
  for (int i = 0; i < table->cells; i++, cell += strlen(cell) + 1) {
    int column = i % table->columns, size = cli_width(cell, strlen(cell));
    if (i < table->columns)
      heads |= size > 0;
    else
      used[column] |= size && strcmp(cell, "-") != 0;
    if (size > width[column]) width[column] = size;
  }
  for (int i = 0; i < table->columns; i++)
    if (!used[i]) width[i] = 0;
  return heads;
}

/* Prints a row from cell `cell` on. The last column wraps; if too little space is left for it, it is printed on
 * separate lines. */
static const char *print_row(const cli_table *table, const char *cell, const int *width, int gap, int columns) {
  int at = table->indent, pending = table->indent; /* pending: spaces to print before the next cell */
  for (int i = 0; i < table->columns; i++, cell += strlen(cell) + 1) {
    int size = cli_width(cell, strlen(cell)), last = i + 1 == table->columns;
    if (!width[i]) continue;
    if (last && table->last_text) {
      if (!size) continue;
      int below = at > table->indent && columns - at < TEXT_MIN && at + size > columns;
      if (below) putchar('\n'), at = pending = table->indent + 4;
      printf("%*s", pending, "");
      cli_wrap_at(stdout, cell, at, at, columns);
      continue;
    }
    int before = table->right[i] ? width[i] - size : 0, after = width[i] - size - before;
    printf("%*s%s", pending + before, "", cell);
    pending = after + gap;
    at += width[i] + gap;
  }
  putchar('\n');
  return cell;
}

int cli_table_end(cli_table *table) {
  int width[CLI_TABLE_COLUMNS] = {0}, heads = measure(table, width), columns = cli_columns(stdout), gap = 2;
  int total = table->indent;
  for (int i = 0; i < table->columns; i++) total += width[i] ? width[i] + 2 : 0;
  if (!table->last_text && total - 2 > columns) gap = 1;
  const char *cell = (const char *)table->text.data;
  for (int i = 0; i < table->cells / table->columns && !table->lost; i++) {
    if (i || heads)
      cell = print_row(table, cell, width, gap, columns);
    else
      for (int skip = 0; skip < table->columns; skip++) cell += strlen(cell) + 1;
  }
  free(table->text.data);
  return table->lost ? cli_fail_with("no memory for a table") : 0;
}
