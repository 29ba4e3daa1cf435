/* Error codes and the message that goes with the last one. */
#ifndef CHOIR_ERROR_H
#define CHOIR_ERROR_H

#define CHOIR_API __attribute__((visibility("default")))

/* Around declarations: C++ calls them as C does. */
#ifdef __cplusplus
#define CHOIR_C_BEGIN extern "C" {
#define CHOIR_C_END }
#else
#define CHOIR_C_BEGIN
#define CHOIR_C_END
#endif

CHOIR_C_BEGIN

/* Error codes. A function that can fail returns a code; CHOIR_OK, 0, means success. */
enum {
  CHOIR_OK = 0,
  CHOIR_ERROR_ARGUMENT,    /* a value the caller passed is out of range or of the wrong kind */
  CHOIR_ERROR_IO,          /* the operating system refused: missing file, permissions, a failing disk */
  CHOIR_ERROR_FORMAT,      /* a file's content is malformed, truncated, corrupt or does not match */
  CHOIR_ERROR_MEMORY,      /* not enough memory */
  CHOIR_ERROR_NUMERIC,     /* NaN or infinity where a finite number must be */
  CHOIR_ERROR_UNSUPPORTED, /* this machine or build cannot do it */
  CHOIR_ERROR_BUSY,        /* another process holds the run directory, or a pass of its own the handle */
  CHOIR_ERROR_INTERRUPTED, /* stopped by the caller; what was promised has been saved */
  CHOIR_ERROR_FULL         /* no room on the disk, or a quota used up: make room and try again */
};

/* The message of the last error on the calling thread: names the file, field and value and what to do. One line without
 * control characters, whatever the names in it hold. Valid until the next failing call on the same thread; "" when
 * nothing has failed. Not collective. */
CHOIR_API const char *choir_error_message(void);

/* Notices of calls that succeeded on the calling thread since the last call of this, a line each: a damaged checkpoint
 * that was passed over, lines of a log that could not be read. "" for none; asking clears them. Valid until the next
 * call. choir_train gives its own by CHOIR_EVENT_NOTICE, as they come. */
CHOIR_API const char *choir_notices(void);

/* A short English name of an error code, for logs. Never NULL. */
CHOIR_API const char *choir_error_name(int code);

CHOIR_C_END
#endif
