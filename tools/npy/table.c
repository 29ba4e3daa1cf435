/* Tables of numbers as text: one row per line, with commas, tabs or spaces between numbers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "file/file.h"
#include "npy/npy.h"

enum { LIMIT = 1 << 30 }; /* bytes of a file */

typedef struct reader {
  const char *at, *end, *name;
  int line;
  float *number;
  size_t count, capacity;
} reader;

static int is_between(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void skip_between(reader *r) {
  while (is_between(*r->at)) r->at++;
}

static int is_line_end(const reader *r) { return r->at == r->end || *r->at == '\n'; }

static int refuse_word(const reader *r) {
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: line %d: '%.*s' is no number; a table has a row a line, with commas, tabs or spaces between its "
                  "numbers, or is a .npy file",
                  r->name, r->line, (int)strcspn(r->at, ", \t\r\n") > 20 ? 20 : (int)strcspn(r->at, ", \t\r\n"), r->at);
}

static int add(reader *r, double number) {
  if (r->count == r->capacity) {
    size_t capacity = 2 * r->capacity + 256;
    float *grown = reallocarray(r->number, capacity, sizeof *grown);
    if (!grown) return ch_error(CHOIR_ERROR_MEMORY, "%s: not enough memory for %zu numbers", r->name, capacity);
    r->number = grown, r->capacity = capacity;
  }
  r->number[r->count++] = (float)number;
  return CHOIR_OK;
}

/* Reads the numbers up to the end of the line; *columns: their count. */
static int read_row(reader *r, int64_t *columns) {
  *columns = 0;
  for (skip_between(r); !is_line_end(r); skip_between(r)) {
    char *after;
    double number = ch_number(r->at, &after);
    if (after == r->at || (after < r->end && !is_between(*after) && *after != ',' && *after != '\n'))
      return refuse_word(r);
    CH_TRY(add(r, number));
    ++*columns;
    r->at = after;
    skip_between(r);
    if (*r->at != ',') continue;
    r->at++;
    skip_between(r);
    if (is_line_end(r)) return refuse_word(r); /* another number must follow a comma */
  }
  return CHOIR_OK;
}

static int read_rows(reader *r, ch_npy *array) {
  int64_t columns;
  while (r->at < r->end) {
    r->line++;
    CH_TRY(read_row(r, &columns));
    if (r->at < r->end) r->at++;
    if (!columns) continue; /* an empty line */
    if (array->shape[0]++ && columns != array->shape[1])
      return ch_error(CHOIR_ERROR_FORMAT, "%s: line %d has %" PRId64 " numbers, the lines before it %" PRId64, r->name,
                      r->line, columns, array->shape[1]);
    array->shape[1] = columns;
  }
  return array->shape[0] ? CHOIR_OK : ch_error(CHOIR_ERROR_FORMAT, "%s: has no numbers", r->name);
}

/* Makes a table with one row or one column a one-dimensional array. */
static int flatten(const char *name, ch_npy *array) {
  if (array->shape[0] != 1 && array->shape[1] != 1)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: has %" PRId64 " rows of %" PRId64 " numbers; one row or column is wanted",
                    name, array->shape[0], array->shape[1]);
  array->dims = 1;
  array->shape[0] *= array->shape[1];
  return CHOIR_OK;
}

int ch_npy_parse_table(const char *text, size_t size, const char *name, int dims, ch_npy *array) {
  reader r = {.at = text, .end = text + size, .name = name};
  *array = (ch_npy){.type = CH_NPY_FLOAT32, .dims = 2};
  if (!strncmp(text, "\xEF\xBB\xBF", 3)) r.at += 3; /* UTF-8 byte order mark */
  int code = read_rows(&r, array);
  array->data = r.number;
  if (!code && dims == 1) code = flatten(name, array);
  if (code) ch_npy_free(array);
  return code;
}

int ch_npy_read_table(const char *path, int dims, ch_npy *array) {
  char *text;
  size_t size;
  *array = (ch_npy){0};
  CH_TRY(ch_file_read(path, LIMIT, &text, &size));
  int code = size && *text == '\x93' ? ch_npy_parse(text, size, path, CH_NPY_FLOAT32, dims, array)
                                     : ch_npy_parse_table(text, size, path, dims, array);
  free(text);
  return code;
}
