/* How internal code reports errors: one formatted message a thread, and an int code up the call chain. */
#ifndef CH_BASE_ERROR_H
#define CH_BASE_ERROR_H

#include "choir/error.h"

/* Sets the thread's message and returns `code`, so that `return ch_error(...)` is the idiom. */
int ch_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the message that is already set; returns `code`. */
int ch_error_in(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like ch_error(CHOIR_ERROR_IO, ...) with ": " and strerror(errno) at the end. */
int ch_error_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Adds a notice of a call that succeeds, for choir_notices: one line, without a full stop. */
void ch_notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CH_TRY(call)                       \
  do {                                     \
    int ch_try_code_ = (call);             \
    if (ch_try_code_) return ch_try_code_; \
  } while (0)

#endif
