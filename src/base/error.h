/* How internal code reports errors: one formatted message a thread, and an int code up the call chain. */
#ifndef CH_BASE_ERROR_H
#define CH_BASE_ERROR_H

#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

/* Sets the thread's message and returns `code`, so that `return ch_error(...)` is the idiom. */
int ch_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the message that is already set; returns `code`. */
int ch_error_in(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like ch_error(CHOIR_ERROR_IO, ...) with ": " and strerror(errno) at the end. */
int ch_error_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The errno of the thread's message, where ch_error_errno has set it; 0 otherwise. */
int ch_error_number(void);

/* Adds a notice of a call that succeeds, for choir_notices: one line, without a full stop. */
void ch_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CH_TRY(call)                       \
  do {                                     \
    int ch_try_code_ = (call);             \
    if (ch_try_code_) return ch_try_code_; \
  } while (0)

/* Checks the fields that option structs keep for later versions (choir.h). CHOIR_ERROR_UNSUPPORTED, naming the struct,
 * where one is not 0: a field of a later version, which this one would overlook, or a struct that nobody initialised.
 */
int ch_reserved_check(const int64_t *words, int count, const char *name);

CHOIR_C_END

#define CH_CHECK_RESERVED(options, name) \
  CH_TRY(ch_reserved_check((options)->reserved, (int)(sizeof(options)->reserved / sizeof *(options)->reserved), name))

#endif
