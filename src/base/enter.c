#include "base/enter.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/machine.h"

static _Thread_local int calls;    /* nesting depth of this thread's calls */
static _Thread_local double began; /* start time of the outermost call */

static int check_given(const char *function, const char *names, const void *const *pointer, int count) {
  for (int i = 0; i < count; i++) {
    if (!pointer[i])
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s: %.*s is NULL", function, (int)strcspn(names, ","), names);
    names += strcspn(names, ",") + 2;
  }
  return CHOIR_OK;
}

/* Bytes from a frame to the end of this thread's stack; SIZE_MAX: unknown (the stack of a fiber). Queried once per
 * thread, because for the main thread the system reads /proc. */
static size_t stack_left(uintptr_t frame) {
  static _Thread_local uintptr_t begin, end;
  pthread_attr_t attributes;
  void *lowest;
  size_t size;
  if (!end && !pthread_getattr_np(pthread_self(), &attributes)) {
    if (!pthread_attr_getstack(&attributes, &lowest, &size)) begin = (uintptr_t)lowest, end = begin + size;
    pthread_attr_destroy(&attributes);
  }
  return frame > begin && frame < end ? frame - begin : SIZE_MAX;
}

int ch_stack_check(const void *frame, const char *function, int kib) {
  size_t left = stack_left((uintptr_t)frame) >> 10;
  if (left >= (size_t)kib) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "%s: the calling thread's stack has %zu KiB left, and %d are needed: call it from a thread with a "
                  "larger one (pthread_attr_setstacksize)",
                  function, left, kib);
}

int ch_enter(ch_entered *entered, const void *frame, const char *function, const char *names,
             const void *const *pointer, int count) {
  entered->outer = !calls++;
  if (entered->outer) {
    began = ch_machine_seconds();
    fegetenv(&entered->host);
    fesetenv(FE_DFL_ENV);
    CH_TRY(ch_stack_check(frame, function, CH_STACK_KIB));
  }
  return check_given(function, names, pointer, count);
}

void ch_leave(const ch_entered *entered) {
  calls--;
  if (entered->outer) fesetenv(&entered->host);
}

int ch_progress(choir_progress_callback progress, void *context, choir_progress now) {
  now.seconds = ch_machine_seconds() - began;
  return progress && progress(context, &now);
}
