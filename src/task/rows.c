#include "task/rows.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/format.h"

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static ch_value trimmed(ch_value v) {
  for (; v.size && is_space(v.text[0]); v.size--) v.text++;
  while (v.size && is_space(v.text[v.size - 1])) v.size--;
  return v;
}

int ch_rows_add(ch_rows *rows, const ch_value *values, int label) {
  int columns = rows->task->columns;
  char number[24];
  for (int c = 0; c <= columns; c++) {
    ch_value v = trimmed(values[c]);
    if (c == columns && !v.size)
      v = (ch_value){number, (size_t)snprintf(number, sizeof number, "%" PRId64, rows->lines)};
    ch_span span = {rows->text.size, v.size};
    CH_TRY(ch_buffer_append(&rows->text, v.text, v.size));
    CH_TRY(ch_buffer_append(&rows->spans, &span, sizeof span));
  }
  CH_TRY(ch_buffer_append(&rows->labels, &label, sizeof label));
  rows->count++;
  rows->lines++;
  return CHOIR_OK;
}

int ch_rows_leave_out(ch_rows *rows, int64_t line, const char *format, ...) {
  rows->lines++;
  if (rows->malformed++) return CHOIR_OK;
  va_list args;
  va_start(args, format);
  int length = snprintf(rows->first, sizeof rows->first, "line %" PRId64 ": ", line);
  ch_vformat(rows->first + length, sizeof rows->first - (size_t)length, format, args);
  va_end(args);
  return CHOIR_OK;
}

/* "a, b, c": the spellings of the task's labels in files. */
static const char *label_list(const choir_task *t, char *text, size_t size) {
  size_t used = 0;
  for (int i = 0; i < t->labels && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", t->label[i]);
  return text;
}

int ch_rows_label_of(ch_rows *rows, int64_t line, const ch_value *value, int labelled, int *label) {
  char text[200];
  ch_value v = trimmed(*value);
  *label = v.text ? ch_task_label_of(rows->task, v.text, v.size) : -1;
  if (!v.text && labelled)
    ch_rows_leave_out(rows, line, "no label");
  else if (*label == -2)
    ch_rows_leave_out(rows, line, "label '%.*s': must be one of %s", v.size < 40 ? (int)v.size : 40, v.text,
                      label_list(rows->task, text, sizeof text));
  else
    return 0;
  return 1;
}

int ch_source_is(ch_value field, const json_t *text, int exactly) {
  const char *wanted = json_string_value(text);
  if (!exactly) field = trimmed(field);
  return field.size == json_string_length(text) &&
         !(exactly ? memcmp(field.text, wanted, field.size) : strncasecmp(field.text, wanted, field.size));
}

const char *ch_source_text(const ch_task_source *source, char *text, size_t size) {
  size_t used = 0, i;
  const json_t *item;
  json_array_foreach(source, i, item) {
    if (used >= size) break;
    if (json_is_string(item))
      used += (size_t)snprintf(text + used, size - used, "%s'%s'", i ? " or " : "", json_string_value(item));
    else
      used += (size_t)snprintf(text + used, size - used, "%snumber %d", i ? " or " : "", (int)json_integer_value(item));
  }
  return text;
}

void ch_rows_free(ch_rows *rows) {
  free(rows->text.data);
  free(rows->spans.data);
  free(rows->labels.data);
  *rows = (ch_rows){0};
}

ch_value ch_rows_value(const ch_rows *rows, int64_t row, int column) {
  const ch_span *s = (const ch_span *)rows->spans.data + row * (rows->task->columns + 1) + column;
  return (ch_value){rows->text.data + s->at, s->size};
}

int ch_rows_label(const ch_rows *rows, int64_t row) { return ((const int *)rows->labels.data)[row]; }
