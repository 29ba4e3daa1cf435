/* Reads whole files for verbs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static char *read_stream(FILE *in, size_t *size) {
  size_t allocated = 1 << 16;
  char *text = malloc(allocated);
  *size = 0;
  while (text) {
    *size += fread(text + *size, 1, allocated - *size - 1, in);
    if (*size < allocated - 1) break;
    char *more = realloc(text, allocated *= 2);
    if (!more) free(text);
    text = more;
  }
  if (text) text[*size] = 0;
  return text;
}

char *cli_read_file(const char *path, size_t *size) {
  FILE *in = strcmp(path, "-") ? fopen(path, "rb") : stdin;
  char *text = in ? read_stream(in, size) : NULL;
  int failed = !in || ferror(in);
  if (failed)
    cli_fail_with("%s: %s", in == stdin ? "standard input" : path, strerror(errno));
  else if (!text)
    cli_fail_with("%s: out of memory", in == stdin ? "standard input" : path);
  if (in && in != stdin) fclose(in);
  if (failed) free(text);
  return failed ? NULL : text;
}

int cli_json_read(const char *path, int64_t number, const ch_value *line, json_t **object) {
  json_error_t error;
  size_t blank = 0;
  *object = NULL;
  while (blank < line->size && strchr(" \t\r", line->text[blank]) && line->text[blank]) blank++;
  if (blank == line->size) return 0;
  *object = json_loadb(line->text, line->size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (json_is_object(*object)) return 0;
  const char *what = *object ? "no JSON object {...}" : error.text;
  json_decref(*object);
  *object = NULL;
  return cli_fail_with("%s: line %lld: %s", path, (long long)number, what);
}
