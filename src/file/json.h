/* Strict JSON on top of jansson: every error names the file and the position in it. */
#ifndef CH_FILE_JSON_H
#define CH_FILE_JSON_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Parses a whole text into an object. Every message starts with `name` (of the file) and gives line and column;
 * duplicate keys are refused. */
int ch_json_parse(const char *text, size_t length, const char *name, json_t **root);

/* Reads and parses a file. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
int ch_json_load(const char *path, json_t **root);

/* Sets a member, appends an element: takes over `value`, where NULL means that memory ran out. A failure is
 * remembered per thread, and the next ch_json_dump fails: jansson would omit the value silently. */
void ch_json_put(json_t *object, const char *key, json_t *value);
void ch_json_add(json_t *array, json_t *value);

/* Like json_dumps, which omits keys that it has no memory for. NULL: no memory, now or in an earlier ch_json_put of
 * this thread. */
char *ch_json_dump(const json_t *root, size_t flags);

/* Writes atomically, indented, with keys in insertion order and reals with the fewest digits that read back exactly.
 * Takes over (and releases) the reference to `root`; NULL means that memory ran out while it was built. */
int ch_json_save(json_t *root, const char *path);

/* The text that ch_json_save writes, malloc'd; `path` names the file in messages. */
int ch_json_file_text(json_t *root, const char *path, char **text);

/* Nonzero: the bytes are those that ch_json_save writes of `root`. */
int ch_json_is_saved(json_t *root, const char *text, size_t size);

/* A required member of `object`: CHOIR_ERROR_FORMAT with file and key if it is missing, has another type or is out
 * of [low, high]. */
int ch_json_get_integer(const json_t *object, const char *name, const char *key, int64_t low, int64_t high,
                        int64_t *value);
int ch_json_get_number(const json_t *object, const char *name, const char *key, double low, double high, double *value);
int ch_json_get_string(const json_t *object, const char *name, const char *key, const char **value);
int ch_json_get_object(const json_t *object, const char *name, const char *key, json_t **value);
int ch_json_get_array(const json_t *object, const char *name, const char *key, json_t **value);

/* CHOIR_ERROR_FORMAT for a key that is not among `known` (NULL-terminated), with the most similar known key. */
int ch_json_check_keys(const json_t *object, const char *name, const char *const *known);

/* A number: null if JSON cannot represent it (NaN, infinity). */
json_t *ch_json_number(double value);
/* Arrays of numbers and of counts; values NULL: empty. */
json_t *ch_json_numbers(const double *values, int count);
json_t *ch_json_integers(const int64_t *values, int count);

/* A file name as JSON, for people: JSON is UTF-8 but names are arbitrary bytes, so invalid ones are shown as in
 * messages (base/text.h). A name that must be read back has to pass the check; CHOIR_ERROR_ARGUMENT otherwise. */
json_t *ch_json_name(const char *name);
/* Text with arbitrary bytes in the same form, but keeping line ends and tabs. */
json_t *ch_json_text(const char *text, size_t size);
int ch_json_check_name(const char *name);

/* A value as text for messages, shortened to fit. Returns `text`. */
const char *ch_json_show(const json_t *value, char *text, size_t size);

#endif
