#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048 };
static _Thread_local char message[MESSAGE_BYTES];

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
  };
  if (code < 0 || code >= (int)(sizeof names / sizeof *names)) return "unknown";
  return names[code];
}

int ch_error(int code, const char *format, ...) {
  char text[MESSAGE_BYTES]; /* an argument may point into the old message */
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  memcpy(message, text, sizeof text);
  return code;
}

int ch_error_in(int code, const char *format, ...) {
  char context[MESSAGE_BYTES / 4], rest[MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(context, sizeof context, format, args);
  va_end(args);
  memcpy(rest, message, sizeof rest);
  snprintf(message, sizeof message, "%s: %.*s", context, (int)(sizeof message - sizeof context - 3), rest);
  return code;
}

int ch_error_errno(const char *format, ...) {
  int number = errno;
  char text[MESSAGE_BYTES - 256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  snprintf(message, sizeof message, "%s: %s", text, strerror(number));
  return CHOIR_ERROR_IO;
}
