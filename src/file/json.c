#include "file/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/format.h"
#include "base/text.h"
#include "file/file.h"

enum { FILE_LIMIT = 16 << 20 };

int ch_json_parse(const char *text, size_t length, const char *name, json_t **root) {
  json_error_t error;
  errno = 0;
  *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
  if (!*root && errno == ENOMEM) /* jansson reports a syntax error, and an intact checkpoint would be skipped */
    return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory to read its JSON", name);
  if (!*root)
    return ch_error(CHOIR_ERROR_FORMAT, "%s: line %d, column %d: %s", name, error.line, error.column, error.text);
  if (json_is_object(*root)) return CHOIR_OK;
  json_decref(*root);
  *root = NULL;
  return ch_error(CHOIR_ERROR_FORMAT, "%s: a JSON object {...} is wanted", name);
}

int ch_json_load(const char *path, json_t **root) {
  char *text;
  size_t length;
  *root = NULL;
  CH_TRY(ch_file_read(path, FILE_LIMIT, &text, &length));
  int code = ch_json_parse(text, length, path, root);
  free(text);
  return code;
}

static _Thread_local int incomplete; /* a member or element could not be added */

void ch_json_put(json_t *object, const char *key, json_t *value) {
  incomplete |= json_object_set_new(object, key, value) != 0;
}

void ch_json_add(json_t *array, json_t *value) { incomplete |= json_array_append_new(array, value) != 0; }

/* A growing text that remembers a failed allocation, because jansson continues after a key that could not be
 * written. */
typedef struct {
  ch_buffer text;
  int failed;
} dumped;

static int append_json(const char *data, size_t size, void *context) {
  dumped *d = context;
  d->failed = d->failed || ch_buffer_append(&d->text, data, size);
  return -d->failed;
}

/* Like json_dumps, but fails if memory runs out, instead of omitting parts; NULL: no memory. */
static char *dump_all(const json_t *root, size_t flags) {
  dumped d = {.failed = 0};
  if (json_dump_callback(root, append_json, &d, flags) || append_json("", 1, &d)) {
    free(d.text.data);
    return NULL;
  }
  return d.text.data;
}

char *ch_json_dump(const json_t *root, size_t flags) {
  int refused = incomplete || !root;
  incomplete = 0;
  return refused ? NULL : dump_all(root, flags);
}

/* The number of digits with which a real is read back exactly. */
static int digits(double value) {
  char text[64];
  int precision = 1;
  while (precision < 17) {
    ch_format(text, sizeof text, "%.*g", precision, value);
    if (ch_number(text, NULL) == value) break;
    precision++;
  }
  return precision;
}

/* The largest number of digits that a real inside `value` needs: 0.1 must not become 0.10000000000000001. */
static int max_digits(json_t *value) {
  int max = 1;
  if (json_is_real(value)) return digits(json_real_value(value));
  const char *key;
  json_t *child;
  size_t index;
  json_object_foreach(value, key, child) max = (int)fmax(max, max_digits(child));
  json_array_foreach(value, index, child) max = (int)fmax(max, max_digits(child));
  return max;
}

/* The text of a saved file, malloc'd, with space for a line end in place of the NUL; NULL: no memory. */
static char *dump(json_t *root) { return ch_json_dump(root, JSON_INDENT(2) | JSON_REAL_PRECISION(max_digits(root))); }

int ch_json_file_text(json_t *root, const char *path, char **text) {
  char *line = dump(root);
  json_decref(root);
  *text = line ? realloc(line, strlen(line) + 2) : NULL;
  if (!*text) return free(line), ch_error(CHOIR_ERROR_MEMORY, "%s: not enough memory to write it", path);
  strcat(*text, "\n");
  return CHOIR_OK;
}

int ch_json_save(json_t *root, const char *path) {
  char *text;
  CH_TRY(ch_json_file_text(root, path, &text));
  int code = ch_file_save(path, text, strlen(text));
  free(text);
  return code;
}

int ch_json_is_saved(json_t *root, const char *text, size_t size) {
  char *whole = dump(root);
  size_t length = whole ? strlen(whole) : 0;
  int same = whole && size == length + 1 && text[length] == '\n' && !memcmp(text, whole, length);
  free(whole);
  return same;
}

const char *ch_json_show(const json_t *value, char *text, size_t size) {
  char *whole = dump_all(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
  snprintf(text, size, "%s", whole ? whole : "?");
  if (whole && strlen(whole) >= size && size > 4) strcpy(text + size - 4, "...");
  free(whole);
  return text;
}

/* A required member, or NULL with a message that names the expected type. */
static json_t *member(const json_t *object, const char *name, const char *key, const char *wanted) {
  json_t *value = json_object_get(object, key);
  if (!value) ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" is missing (%s)", name, key, wanted);
  return value;
}

static int wrong(const json_t *value, const char *name, const char *key, const char *wanted) {
  char text[80];
  return ch_error(CHOIR_ERROR_FORMAT, "%s: \"%s\" is %s: must be %s", name, key, ch_json_show(value, text, sizeof text),
                  wanted);
}

int ch_json_get_integer(const json_t *object, const char *name, const char *key, int64_t low, int64_t high,
                        int64_t *value) {
  char wanted[96];
  snprintf(wanted, sizeof wanted, "an integer from %" PRId64 " to %" PRId64, low, high);
  json_t *found = member(object, name, key, wanted);
  if (!found) return CHOIR_ERROR_FORMAT;
  *value = json_integer_value(found);
  return json_is_integer(found) && *value >= low && *value <= high ? CHOIR_OK : wrong(found, name, key, wanted);
}

int ch_json_get_number(const json_t *object, const char *name, const char *key, double low, double high,
                       double *value) {
  char wanted[96];
  ch_format(wanted, sizeof wanted, "a number from %g to %g", low, high);
  json_t *found = member(object, name, key, wanted);
  if (!found) return CHOIR_ERROR_FORMAT;
  *value = json_number_value(found);
  return json_is_number(found) && *value >= low && *value <= high ? CHOIR_OK : wrong(found, name, key, wanted);
}

/* A member of the given type; NULL with a message. */
static json_t *typed(const json_t *object, const char *name, const char *key, json_type type, const char *wanted) {
  json_t *found = member(object, name, key, wanted);
  if (!found || json_typeof(found) == type) return found;
  wrong(found, name, key, wanted);
  return NULL;
}

int ch_json_get_string(const json_t *object, const char *name, const char *key, const char **value) {
  *value = json_string_value(typed(object, name, key, JSON_STRING, "a string"));
  return *value ? CHOIR_OK : CHOIR_ERROR_FORMAT;
}

int ch_json_get_object(const json_t *object, const char *name, const char *key, json_t **value) {
  *value = typed(object, name, key, JSON_OBJECT, "an object");
  return *value ? CHOIR_OK : CHOIR_ERROR_FORMAT;
}

int ch_json_get_array(const json_t *object, const char *name, const char *key, json_t **value) {
  *value = typed(object, name, key, JSON_ARRAY, "an array");
  return *value ? CHOIR_OK : CHOIR_ERROR_FORMAT;
}

int ch_json_check_keys(const json_t *object, const char *name, const char *const *known) {
  const char *key;
  json_t *value;
  char suggestion[100];
  json_object_foreach((json_t *)object, key, value) {
    int found = 0;
    for (int i = 0; known[i]; i++) found |= !strcmp(known[i], key);
    if (!found)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: unknown key '%.80s'%s", name, key,
                      ch_did_you_mean(suggestion, sizeof suggestion, key, known));
  }
  return CHOIR_OK;
}

json_t *ch_json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *printable(const char *bytes, size_t size, int lines) {
  size_t size_needed = ch_printable(bytes, size, lines, NULL, 0) + 1;
  char *text = malloc(size_needed);
  if (text) ch_printable(bytes, size, lines, text, size_needed);
  json_t *value = text ? json_string(text) : NULL;
  free(text);
  return value;
}

json_t *ch_json_name(const char *name) { return printable(name, strlen(name), 0); }

json_t *ch_json_text(const char *text, size_t size) { return printable(text, size, 1); }

int ch_json_check_name(const char *name) {
  json_t *value = json_string(name);
  json_decref(value);
  return value ? CHOIR_OK : ch_error(CHOIR_ERROR_ARGUMENT, "%s: the name must be UTF-8, for it is kept as JSON", name);
}

json_t *ch_json_numbers(const double *values, int count) {
  json_t *array = json_array();
  for (int i = 0; values && i < count; i++) ch_json_add(array, ch_json_number(values[i]));
  return array;
}

json_t *ch_json_integers(const int64_t *values, int count) {
  json_t *array = json_array();
  for (int i = 0; values && i < count; i++) ch_json_add(array, json_integer(values[i]));
  return array;
}
