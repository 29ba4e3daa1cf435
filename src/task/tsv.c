/* Tab-separated values in GLUE's format: a tab ends a value, a line end ends a row, and quotation marks have no
 * special meaning. The first line is a header if it has the task's column names; otherwise columns with numbers in the
 * task are found by number. */
#include <string.h>

#include "base/text.h"
#include "task/rows.h"

enum { MAX = 256 }; /* maximum of columns in a file */

/* Indices of columns in a row; -1: absent. */
typedef struct {
  int fields, header;
  int at[CH_TASK_COLUMNS], label, index;
} layout;

/* Returns the number of fields; those beyond MAX are counted, not stored. */
static int split_fields(ch_value line, ch_value *field) {
  int count = 0;
  for (const char *at = line.text, *end = at + line.size;; count++) {
    const char *tab = at < end ? memchr(at, '\t', (size_t)(end - at)) : NULL;
    const char *stop = tab ? tab : end;
    if (count < MAX) field[count] = (ch_value){at, (size_t)(stop - at)};
    if (!tab) return count + 1;
    at = tab + 1;
  }
}

static int by_name(const ch_task_source *source, const ch_value *field, int fields) {
  size_t i;
  const json_t *name;
  json_array_foreach(source, i, name) {
    for (int i = 0; i < 2 * fields && json_is_string(name); i++)
      if (ch_source_is(field[i % fields], name, i < fields)) return i % fields;
  }
  return -1;
}

static int by_number(const ch_task_source *source, const ch_value *field, int fields) {
  size_t i;
  const json_t *number;
  (void)field;
  json_array_foreach(source, i, number) {
    if (json_is_integer(number) && json_integer_value(number) <= fields) return (int)json_integer_value(number) - 1;
  }
  return -1;
}

/* Finds the columns by one method; returns the first missing one, or -1. */
static int find_columns(const choir_task *t, int (*where)(const ch_task_source *, const ch_value *, int),
                        const ch_value *field, int fields, layout *l) {
  for (int c = 0; c < t->columns; c++)
    if ((l->at[c] = where(t->source[c], field, fields)) < 0) return c;
  l->label = where(t->label_source, field, fields);
  l->index = t->index_source ? where(t->index_source, field, fields) : -1;
  return -1;
}

static int find_layout(const ch_rows *rows, ch_value line, int labelled, layout *l) {
  const choir_task *t = rows->task;
  ch_value field[MAX];
  char names[200];
  int fields = split_fields(line, field);
  *l = (layout){.fields = fields, .header = 1};
  if (fields > MAX)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: line 1 has %d columns: at most %d", rows->name, fields, MAX);
  int missing = find_columns(t, by_name, field, fields, l);
  if (missing >= 0) {
    l->header = 0;
    if (find_columns(t, by_number, field, fields, l) >= 0)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: no column %s among the %d of line 1, \"%.*s\"", rows->name,
                      ch_source_text(t->source[missing], names, sizeof names), fields,
                      line.size < 120 ? (int)line.size : 120, line.text);
  }
  if (l->label < 0 && labelled)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: no column %s, which has the labels", rows->name,
                    ch_source_text(t->label_source, names, sizeof names));
  return CHOIR_OK;
}

static int add_line(ch_rows *rows, const layout *l, int64_t number, ch_value line, int labelled) {
  const choir_task *t = rows->task;
  ch_value field[MAX], value[CH_TASK_COLUMNS + 1];
  int label, fields = split_fields(line, field);
  size_t valid = ch_utf8_valid(line.text, line.size);
  ch_value nothing = {0};
  if (valid < line.size) return ch_rows_leave_out(rows, number, "byte %zu is not UTF-8", valid + 1);
  if (memchr(line.text, 0, line.size)) return ch_rows_leave_out(rows, number, "holds a NUL byte");
  if (fields != l->fields) return ch_rows_leave_out(rows, number, "%d columns where line 1 has %d", fields, l->fields);
  if (ch_rows_label_of(rows, number, l->label >= 0 ? &field[l->label] : &nothing, labelled, &label)) return CHOIR_OK;
  for (int c = 0; c < t->columns; c++) value[c] = field[l->at[c]];
  value[t->columns] = l->index >= 0 ? field[l->index] : (ch_value){"", 0};
  return ch_rows_add(rows, value, label);
}

int ch_tsv_rows(ch_rows *rows, const char *text, size_t size, int labelled) {
  ch_lines lines = {text, text + size, 0};
  ch_value line;
  layout l;
  if (!ch_lines_next(&lines, &line)) return CHOIR_OK;
  CH_TRY(find_layout(rows, line, labelled, &l));
  if (!l.header) CH_TRY(add_line(rows, &l, lines.number, line, labelled));
  while (ch_lines_next(&lines, &line))
    if (line.size) CH_TRY(add_line(rows, &l, lines.number, line, labelled));
  return CHOIR_OK;
}
