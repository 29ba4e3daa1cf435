#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/text.h"
#include "choir/version.h"

enum { MESSAGE_BYTES = 2048 };
static _Thread_local char message[MESSAGE_BYTES], notices[2 * MESSAGE_BYTES];
static _Thread_local size_t notices_used;
static _Thread_local int message_errno;

const char *choir_error_message(void) { return message; }

const char *choir_error_name(int code) {
  static const char *const names[] = {
      [CHOIR_OK] = "ok",
      [CHOIR_ERROR_ARGUMENT] = "argument",
      [CHOIR_ERROR_IO] = "input or output",
      [CHOIR_ERROR_FORMAT] = "format",
      [CHOIR_ERROR_MEMORY] = "memory",
      [CHOIR_ERROR_NUMERIC] = "numeric",
      [CHOIR_ERROR_UNSUPPORTED] = "unsupported",
      [CHOIR_ERROR_BUSY] = "busy",
      [CHOIR_ERROR_INTERRUPTED] = "interrupted",
      [CHOIR_ERROR_FULL] = "no room on the disk",
  };
  if (code < 0 || code >= (int)(sizeof names / sizeof *names)) return "unknown";
  return names[code];
}

/* Escapes control characters of names and values, so that a message is one printable line. */
static void set_message(const char *text) { ch_printable(text, strlen(text), 0, message, sizeof message); }

/* Formats the arguments of the enclosing function, by its `format`, into an array. */
#define FORMAT(text)                             \
  do {                                           \
    va_list args;                                \
    va_start(args, format);                      \
    ch_vformat(text, sizeof text, format, args); \
    va_end(args);                                \
  } while (0)

int ch_error(int code, const char *format, ...) {
  char text[MESSAGE_BYTES]; /* a copy: an argument may point into the old message */
  FORMAT(text);
  set_message(text);
  message_errno = 0;
  return code;
}

int ch_error_number(void) { return message_errno; }

int ch_error_in(int code, const char *format, ...) {
  char context[MESSAGE_BYTES / 4], whole[MESSAGE_BYTES];
  FORMAT(context);
  snprintf(whole, sizeof whole, "%s: %.*s", context, (int)(sizeof whole - sizeof context - 3), message);
  set_message(whole);
  return code;
}

int ch_error_errno(const char *format, ...) {
  int number = errno;
  char text[MESSAGE_BYTES - 256], whole[MESSAGE_BYTES];
  FORMAT(text);
  snprintf(whole, sizeof whole, "%s: %s", text, strerror(number));
  set_message(whole);
  message_errno = number;
  return CHOIR_ERROR_IO;
}

void ch_notice(const char *format, ...) {
  char text[MESSAGE_BYTES], line[MESSAGE_BYTES];
  FORMAT(text);
  ch_printable(text, strlen(text), 0, line, sizeof line - 1);
  strcat(line, "\n");
  size_t length = strlen(line);
  if (strstr(notices, line) || length >= sizeof notices - notices_used) return; /* a repetition, or no space */
  memcpy(notices + notices_used, line, length + 1);
  notices_used += length;
}

const char *choir_notices(void) {
  static _Thread_local char given[sizeof notices];
  memcpy(given, notices, notices_used + 1);
  notices[notices_used = 0] = 0;
  return given;
}

int ch_reserved_check(const int64_t *words, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (words[i])
      return ch_error(
          CHOIR_ERROR_UNSUPPORTED,
          "%s: what is reserved is not 0: the struct was not initialised, or sets a field that this libchoir "
          "(%s) does not know yet; initialise it, or install a later libchoir",
          name, CHOIR_VERSION);
  return CHOIR_OK;
}
