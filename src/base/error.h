/* Error reporting: one formatted message per thread, and an int code that functions return. */
#ifndef CH_BASE_ERROR_H
#define CH_BASE_ERROR_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Sets the thread's message and returns `code`, for `return ch_error(...)`. */
int ch_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the message that is already set; returns `code`. */
int ch_error_in(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like ch_error(CHOIR_ERROR_IO, ...) with ": " and strerror(errno) at the end. */
int ch_error_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The errno of the thread's message if ch_error_errno set it; 0 otherwise. */
int ch_error_number(void);

/* Adds a notice of a successful call, for choir_notices: one line, without a final period. */
void ch_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CH_TRY(call)                       \
  do {                                     \
    int ch_try_code_ = (call);             \
    if (ch_try_code_) return ch_try_code_; \
  } while (0)

/* Checks the fields that option structs keep for later versions (choir.h). CHOIR_ERROR_UNSUPPORTED, with the struct's
 * name, if one is not 0: a field of a later version, which this version would ignore, or an uninitialized struct. */
int ch_reserved_check(const int64_t *words, int count, const char *name);

CHOIR_C_END

#define CH_CHECK_RESERVED(options, name) \
  CH_TRY(ch_reserved_check((options)->reserved, (int)(sizeof(options)->reserved / sizeof *(options)->reserved), name))

#endif
