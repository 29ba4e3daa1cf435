/* Error codes, and the message of the last error. */
#ifndef CHOIR_ERROR_H
#define CHOIR_ERROR_H

#define CHOIR_API __attribute__((visibility("default")))

/* C linkage for declarations in C++. */
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
  CHOIR_ERROR_ARGUMENT,    /* an argument of the call is out of range or of the wrong kind */
  CHOIR_ERROR_IO,          /* error of the operating system: missing file, permissions, a failing disk */
  CHOIR_ERROR_FORMAT,      /* a file's content is malformed, truncated, corrupt or does not match */
  CHOIR_ERROR_MEMORY,      /* not enough memory */
  CHOIR_ERROR_NUMERIC,     /* NaN or infinity instead of a finite number */
  CHOIR_ERROR_UNSUPPORTED, /* not supported by this machine or build */
  CHOIR_ERROR_BUSY,        /* the run directory is in use by another process, or the handle by another call */
  CHOIR_ERROR_INTERRUPTED, /* stopped by the caller, after saving what the function promises */
  CHOIR_ERROR_FULL         /* the disk or a quota is full: free space and try again */
};

/* The message of the last error on the calling thread: names the file, field and value and what to do. One line;
 * control characters in names are escaped. Valid until the next failing call on the same thread; "" when nothing has
 * failed. Not collective. */
CHOIR_API const char *choir_error_message(void);

/* Returns and clears the notices of the calling thread: warnings of calls that succeeded, one per line, for example a
 * damaged checkpoint that was skipped, or unreadable lines of a log. "": no notices. Valid until the next call.
 * choir_train sends its notices as CHOIR_EVENT_NOTICE when they occur. */
CHOIR_API const char *choir_notices(void);

/* A short English name of an error code, for logs. Never NULL. */
CHOIR_API const char *choir_error_name(int code);

CHOIR_C_END
#endif
