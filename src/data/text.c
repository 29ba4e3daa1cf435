#include "data/text.h"

#include <jansson.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/text.h"
#include "data/repair.h"

static const size_t JSON_LINE_LIMIT = (size_t)1 << 30;

struct ch_text {
  ch_text_options o;
  size_t file; /* index of the current input */
  int open;
  ch_input input;
  uint64_t done, total, replaced;
  uint64_t replaced_before; /* bytes replaced in the inputs before this one */

  /* Unused bytes of the file: raw.data[begin .. size); the first `scanned` of them contain no newline. */
  ch_buffer raw;
  size_t begin, scanned;
  uint64_t offset, line; /* offset of raw.data[begin] in the file; line number from 1 */
  int inside_line;       /* the beginning of a long line was already handed out */

  ch_buffer block;
  int newline;    /* plain text: a line end is pending before the next line; it may turn out to belong to a separator */
  int started;    /* a block of this document has been handed out */
  json_t *object; /* JSON lines: the rest of the current document is body[at .. size) */
  const char *body;
  size_t body_size, at;
};

typedef struct line {
  const char *text;
  size_t size; /* without the line end */
  int whole;   /* the line was not cut */
  int ended;   /* a newline ends the line; it is not in text */
} line;

/* Checks the separator and field name, which are written to data.json as UTF-8. */
static int check_words(const ch_text_options *o) {
  const char *separator = o->separator ? o->separator : "", *field = o->field ? o->field : "";
  if (o->field && o->separator)
    return ch_error(CHOIR_ERROR_ARGUMENT, "separator is for plain text, and field says that inputs are JSON lines");
  if (strchr(separator, '\n')) return ch_error(CHOIR_ERROR_ARGUMENT, "separator is more than one line");
  if (ch_utf8_valid(separator, strlen(separator)) < strlen(separator))
    return ch_error(CHOIR_ERROR_ARGUMENT, "separator is not UTF-8");
  if (ch_utf8_valid(field, strlen(field)) < strlen(field)) return ch_error(CHOIR_ERROR_ARGUMENT, "field is not UTF-8");
  return CHOIR_OK;
}

int ch_text_open(const ch_text_options *options, ch_text **text) {
  *text = NULL;
  CH_TRY(check_words(options));
  uint64_t total = 0, bytes;
  for (const char *const *path = options->inputs; *path; path++) {
    CH_TRY(ch_input_check(*path, &bytes));
    total += bytes;
  }
  ch_text *t;
  CH_TRY(CH_ALLOC(&t, 1, "a reader of text"));
  t->o = *options;
  t->total = total;
  *text = t;
  return CHOIR_OK;
}

void ch_text_close(ch_text *t) {
  if (!t) return;
  if (t->open) ch_input_close(&t->input);
  json_decref(t->object);
  free(t->raw.data);
  free(t->block.data);
  free(t);
}

uint64_t ch_text_bytes_total(const ch_text *t) { return t->total; }
uint64_t ch_text_replaced(const ch_text *t) { return t->replaced; }
uint64_t ch_text_bytes_done(const ch_text *t) { return t->done + (t->open ? ch_input_consumed(&t->input) : 0); }

/* Appends the next bytes of the file to the buffer. */
static int fill_block(ch_text *t) {
  const void *data;
  size_t size;
  CH_TRY(ch_input_read(&t->input, &data, &size));
  size_t rest = t->raw.size - t->begin;
  if (t->begin > rest) { /* move rarely: each byte moves at most once per doubling of the buffer */
    memmove(t->raw.data, t->raw.data + t->begin, rest);
    t->raw.size = rest, t->begin = 0;
  }
  return ch_buffer_append(&t->raw, data, size);
}

enum { LOOK_BYTES = 1 << 24 };

/* Lists an object's string fields, for a message. */
static void name_fields(json_t *object, char *list, size_t size) {
  const char *name;
  json_t *value;
  size_t used = 0;
  list[0] = 0;
  json_object_foreach(object, name, value) {
    if (!json_is_string(value) || used + strlen(name) + 6 > size) continue;
    used += (size_t)snprintf(list + used, size - used, "%s\"%s\"", used ? ", " : "", name);
  }
}

/* Detects a file that is a single JSON array or object, by its first LOOK_BYTES. */
static int check_whole(ch_text *t, size_t at) {
  while (!t->input.ended && t->raw.size < LOOK_BYTES) CH_TRY(fill_block(t));
  char first = t->raw.data[at];
  json_t *value = NULL;
  if (t->input.ended)
    value = json_loadb(t->raw.data + at, t->raw.size - at, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
  json_decref(value);
  if (!value) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_FORMAT,
      "%s: is one JSON %s, not text: write one object per line (JSON lines) and name the field that holds the "
      "text (--field, or field), or give a separator (--separator, or separator) if the JSON itself is the text",
      t->input.path, first == '[' ? "array" : "object");
}

/* Refuses JSON lines read as plain text, because a model would learn their syntax. Two lines that are objects count
 * as JSON lines. */
static int check_plain(ch_text *t) {
  char fields[256];
  size_t at = t->begin;
  int objects = 0;
  if (t->o.field || t->o.separator) return CHOIR_OK;
  while (at < t->raw.size && strchr(" \t\r\n", t->raw.data[at]) && t->raw.data[at]) at++;
  if (at == t->raw.size || (t->raw.data[at] != '{' && t->raw.data[at] != '[')) return CHOIR_OK;
  const size_t start = at;
  while (objects < 2) {
    while (!memchr(t->raw.data + at, '\n', t->raw.size - at) && !t->input.ended && t->raw.size < LOOK_BYTES)
      CH_TRY(fill_block(t)); /* does not move the buffer: almost nothing has been consumed */
    const char *line = t->raw.data + at, *newline = memchr(line, '\n', t->raw.size - at);
    size_t length = newline ? (size_t)(newline - line) : t->raw.size - at;
    json_t *object = json_loadb(line, length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    int is = json_is_object(object);
    if (is && !objects) name_fields(object, fields, sizeof fields);
    json_decref(object);
    if (!is) return check_whole(t, start);
    objects++;
    at += length + (newline != NULL);
    if (at == t->raw.size && t->input.ended && objects < 2) return check_whole(t, start);
  }
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: is JSON lines: name the field that holds the text (--field, or field; its strings are %s), or "
                  "give a separator (--separator, or separator) if the lines themselves are the text",
                  t->input.path, *fields ? fields : "none");
}

static int open_file(ch_text *t) {
  t->replaced_before = t->replaced;
  CH_TRY(ch_input_open(&t->input, t->o.inputs[t->file]));
  t->open = 1;
  t->raw.size = t->begin = t->scanned = 0;
  t->offset = 0, t->line = 1, t->inside_line = 0;
  t->newline = t->started = 0;
  CH_TRY(ch_buffer_reserve(&t->raw, 1));
  CH_TRY(ch_buffer_reserve(&t->block, 1));
  while (t->raw.size < CH_DETECT_BYTES && !t->input.ended) CH_TRY(fill_block(t));
  CH_TRY(ch_detect_non_text(t->input.path, t->raw.data, t->raw.size));
  t->begin = t->offset = ch_utf8_mark(t->raw.data, t->raw.size);
  return check_plain(t);
}

static void close_file(ch_text *t) {
  t->done += ch_input_consumed(&t->input);
  ch_input_close(&t->input);
  t->open = 0;
  t->file++;
}

/* The position at which a block of at most `limit` bytes ends; see ch_block. */
static size_t cut_block(const char *text, size_t size, size_t limit) {
  if (size <= limit) return size;
  const char *newline = memrchr(text + 1, '\n', limit - 1);
  if (newline) return (size_t)(newline - text);
  for (size_t i = limit; i > 1; i--)
    if (text[i] == ' ' && text[i - 1] != ' ') return i;
  return ch_utf8_cut(text, limit);
}

/* Finds the next line without consuming it; of a line longer than `limit` only a part, if parts are allowed. more =
 * 0: end of the file. */
static int peek(ch_text *t, size_t limit, int parts, line *l, int *more) {
  for (;;) {
    const char *text = t->raw.data + t->begin;
    size_t size = t->raw.size - t->begin;
    const char *newline = size > t->scanned ? memchr(text + t->scanned, '\n', size - t->scanned) : NULL;
    size_t length = newline ? (size_t)(newline - text) : size;
    t->scanned = length;
    if (length > limit && !parts)
      return ch_error(CHOIR_ERROR_FORMAT, "%s:%llu: line longer than %zu bytes; is this JSON lines?", t->input.path,
                      (unsigned long long)t->line, limit);
    *more = 1;
    if (length > limit) return *l = (line){.text = text, .size = cut_block(text, length, limit)}, CHOIR_OK;
    if (newline) return *l = (line){.text = text, .size = length, .whole = !t->inside_line, .ended = 1}, CHOIR_OK;
    if (t->input.ended) {
      *l = (line){.text = text, .size = length, .whole = !t->inside_line};
      *more = size > 0;
      return CHOIR_OK;
    }
    CH_TRY(fill_block(t));
  }
}

static void use_up(ch_text *t, const line *l) {
  size_t consumed = l->size + (size_t)l->ended;
  t->begin += consumed;
  t->offset += consumed;
  t->scanned -= l->ended ? l->size : consumed; /* a complete line was scanned only up to its end */
  t->line += (uint64_t)l->ended;
  t->inside_line = !l->ended;
}

/* Text may have a few invalid bytes. If an eighth of a file is invalid, it has another encoding or is not text. */
static int check_replaced(const ch_text *t) {
  const uint64_t wrong = t->replaced - t->replaced_before;
  if (wrong < 64 || wrong * 8 < t->offset) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT,
                  "%s: %llu of its first %llu bytes are not UTF-8: it has another encoding, or is no text; convert it "
                  "(iconv -f WINDOWS-1251 -t UTF-8 FILE >TEXT, for one)",
                  t->input.path, (unsigned long long)wrong, (unsigned long long)t->offset);
}

/* Appends text to the block after validating it as UTF-8. */
static int append_text(ch_text *t, const char *text, size_t size) {
  for (size_t i = 0; i < size;) {
    size_t valid = ch_utf8_valid(text + i, size - i);
    CH_TRY(ch_buffer_append(&t->block, text + i, valid));
    i += valid;
    if (i == size) break;
    if (!t->o.replace_invalid)
      return ch_error(CHOIR_ERROR_FORMAT,
                      "%s: byte %llu (line %llu): not UTF-8 (0x%02X); convert the file to UTF-8, or have such bytes "
                      "replaced (--replace-invalid, or replace_invalid)",
                      t->input.path, (unsigned long long)t->offset + i, (unsigned long long)t->line,
                      (unsigned char)text[i]);
    CH_TRY(ch_buffer_append(&t->block, "\xEF\xBF\xBD", 3));
    t->replaced++;
    i++;
  }
  return CHOIR_OK;
}

/* Hands out the collected block; 0 if it is an empty document, which is skipped. */
static int emit(ch_text *t, int last, ch_block *block) {
  *block = (ch_block){.text = t->block.data, .size = t->block.size, .last = last};
  int worth = t->block.size || t->started;
  t->started = !last;
  return worth;
}

/* Whether the line is a separator. The line end before a separator belongs to it, and so does a CR on both. */
static int separates(ch_text *t, const line *l) {
  if (!t->o.separator || !l->whole) return 0;
  size_t size = strlen(t->o.separator);
  int cr = l->size == size + 1 && l->text[size] == '\r';
  if ((l->size != size && !cr) || memcmp(l->text, t->o.separator, size)) return 0;
  if (cr && t->newline && t->block.size && t->block.data[t->block.size - 1] == '\r') t->block.size--;
  t->newline = 0;
  return 1;
}

static int append_newline(ch_text *t) {
  if (!t->newline) return CHOIR_OK;
  t->newline = 0;
  return ch_buffer_append(&t->block, "\n", 1);
}

/* The next block of an open plain-text file; *got = 0: end of the file. */
static int next_plain(ch_text *t, ch_block *block, int *got) {
  size_t limit = t->o.block_bytes, separator = t->o.separator ? strlen(t->o.separator) + 1 : 0;
  t->block.size = 0;
  for (;;) {
    line l = {0};
    int more;
    CH_TRY(peek(t, limit > separator ? limit : separator, 1, &l, &more));
    if (!more) {
      CH_TRY(append_newline(t));
      *got = emit(t, 1, block);
      return CHOIR_OK;
    }
    if (separates(t, &l)) {
      use_up(t, &l);
      if ((*got = emit(t, 1, block))) return CHOIR_OK;
      continue;
    }
    if (t->block.size && t->block.size + (size_t)t->newline + l.size > limit) {
      *got = emit(t, 0, block);
      return CHOIR_OK;
    }
    CH_TRY(append_newline(t));
    CH_TRY(append_text(t, l.text, l.size));
    t->newline = l.ended;
    use_up(t, &l);
  }
}

static const char *type_name(const json_t *value) {
  static const char *const names[] = {"an object", "an array", "a string", "a number",
                                      "a number",  "true",     "false",    "null"};
  return names[json_typeof(value)];
}

static int repair(ch_text *t) {
  return ch_json_repair(t->block.data, t->block.size, t->o.replace_invalid ? &t->replaced : NULL);
}

static json_t *load_line(const ch_text *t, json_error_t *e) {
  return json_loadb(t->block.data, t->block.size,
                    JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, e);
}

/* Parses one line, sanitized in t->block, and finds the text field in it. */
static int parse(ch_text *t) {
  unsigned long long number = t->line;
  json_error_t e;
  json_decref(t->object);
  t->object = load_line(t, &e);
  if (!t->object && repair(t))
    t->object = load_line(t, &(json_error_t){.line = 0}); /* `e` describes the original line */
  if (!t->object)
    return ch_error(CHOIR_ERROR_FORMAT, "%s:%llu: not JSON: %s (column %d)", t->input.path, number, e.text, e.column);
  if (!json_is_object(t->object))
    return ch_error(CHOIR_ERROR_FORMAT, "%s:%llu: expected an object, found %s", t->input.path, number,
                    type_name(t->object));
  json_t *value = json_object_get(t->object, t->o.field);
  if (!value) return ch_error(CHOIR_ERROR_FORMAT, "%s:%llu: no field \"%s\"", t->input.path, number, t->o.field);
  if (!json_is_string(value))
    return ch_error(CHOIR_ERROR_FORMAT, "%s:%llu: field \"%s\" is %s, not a string", t->input.path, number, t->o.field,
                    type_name(value));
  t->body = json_string_value(value);
  t->body_size = json_string_length(value);
  t->at = 0;
  return CHOIR_OK;
}

static int blank(const line *l) {
  for (size_t i = 0; i < l->size; i++)
    if (!memchr(" \t\r", l->text[i], 3)) return 0;
  return 1;
}

static int next_json(ch_text *t, ch_block *block, int *got) {
  while (t->at >= t->body_size) {
    line l = {0};
    CH_TRY(peek(t, JSON_LINE_LIMIT, 0, &l, got));
    if (!*got) return CHOIR_OK;
    t->block.size = 0;
    if (!blank(&l)) {
      CH_TRY(append_text(t, l.text, l.size));
      CH_TRY(parse(t));
    }
    use_up(t, &l);
  }
  size_t size = cut_block(t->body + t->at, t->body_size - t->at, t->o.block_bytes);
  *block = (ch_block){.text = t->body + t->at, .size = size, .last = t->at + size == t->body_size};
  t->at += size;
  *got = 1;
  return CHOIR_OK;
}

int ch_text_next(ch_text *t, ch_block *block, int *more) {
  *more = 0;
  while (t->open || t->o.inputs[t->file]) {
    if (!t->open) CH_TRY(open_file(t));
    CH_TRY((t->o.field ? next_json : next_plain)(t, block, more));
    if (!*more || t->offset > LOOK_BYTES) CH_TRY(check_replaced(t));
    if (*more) return CHOIR_OK;
    close_file(t);
  }
  return CHOIR_OK;
}
