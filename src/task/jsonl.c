/* JSON lines in SuperGLUE's format: one object per line. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "task/rows.h"

typedef char digits[24];

/* json_object_foreach does not accept a const object. */
static const json_t *find_similar(json_t *row, const json_t *name) {
  const char *key;
  json_t *value;
  json_object_foreach(row, key, value) {
    if (ch_source_is((ch_value){key, strlen(key)}, name, 0) && !json_is_null(value)) return value;
  }
  return NULL;
}

static const json_t *find_value(json_t *row, const ch_task_source *source) {
  size_t i;
  const json_t *name, *value;
  json_array_foreach(source, i, name) {
    if (!json_is_string(name)) continue;
    if ((value = json_object_get(row, json_string_value(name))) && !json_is_null(value)) return value;
    if ((value = find_similar(row, name))) return value;
  }
  return NULL;
}

/* Converts a string, a boolean or an integer to text. 0: any other value. */
static int as_text(const json_t *value, char *buffer, ch_value *out) {
  if (json_is_string(value))
    *out = (ch_value){json_string_value(value), json_string_length(value)};
  else if (json_is_boolean(value))
    *out = json_is_true(value) ? (ch_value){"true", 4} : (ch_value){"false", 5};
  else if (json_is_integer(value))
    *out = (ch_value){buffer,
                      (size_t)snprintf(buffer, sizeof(digits), "%" JSON_INTEGER_FORMAT, json_integer_value(value))};
  else if (json_is_real(value) && fabs(json_real_value(value)) < 1e15 && !fmod(json_real_value(value), 1))
    *out = (ch_value){buffer, (size_t)snprintf(buffer, sizeof(digits), "%" PRId64 ".0",
                                               (int64_t)json_real_value(value))}; /* 1.0 for 1 */
  else
    return 0;
  return 1;
}

/* Adds the values of a row to the table, or counts the row as malformed. */
static int add_object(ch_rows *rows, int64_t line, json_t *row, int labelled) {
  const choir_task *t = rows->task;
  ch_value value[CH_TASK_COLUMNS + 1] = {{0}}, spelling = {0};
  digits buffer[CH_TASK_COLUMNS + 2];
  char names[200];
  int label;
  for (int c = 0; c <= t->columns; c++) {
    const ch_task_source *source = c < t->columns ? t->source[c] : t->index_source;
    const json_t *found = source ? find_value(row, source) : NULL;
    value[c].text = "";
    if (c == t->columns && !found) break;
    if (!found || !as_text(found, buffer[c], &value[c]))
      return ch_rows_leave_out(rows, line, found ? "%s is no text" : "no %s",
                               ch_source_text(source, names, sizeof names));
  }
  const json_t *found = find_value(row, t->label_source);
  if (found && !as_text(found, buffer[CH_TASK_COLUMNS + 1], &spelling))
    return ch_rows_leave_out(rows, line, "%s is no text", ch_source_text(t->label_source, names, sizeof names));
  if (ch_rows_label_of(rows, line, &spelling, labelled, &label)) return CHOIR_OK;
  return ch_rows_add(rows, value, label);
}

int ch_jsonl_rows(ch_rows *rows, const char *text, size_t size, int labelled) {
  ch_lines lines = {text, text + size, 0};
  ch_value line;
  while (ch_lines_next(&lines, &line)) {
    json_error_t error;
    if (!line.size) continue;
    json_t *row = json_loadb(line.text, line.size, JSON_REJECT_DUPLICATES, &error);
    int code;
    if (!row)
      code = ch_rows_leave_out(rows, lines.number, "column %d: %s", error.column, error.text);
    else if (!json_is_object(row))
      code = ch_rows_leave_out(rows, lines.number, "is no JSON object {...}");
    else
      code = add_object(rows, lines.number, row, labelled);
    json_decref(row);
    CH_TRY(code);
  }
  return CHOIR_OK;
}
