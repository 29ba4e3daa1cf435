/* The number of threads, and a check that the system can start them: OpenMP's runtime ends the process, or hangs, if a
 * thread cannot be started. */
#ifndef CH_BASE_THREADS_H
#define CH_BASE_THREADS_H

#include <signal.h>

#include "base/error.h"

enum { CH_THREADS_MAX = 1024 };

/* 0 becomes all CPUs that this process may run on. CHOIR_ERROR_ARGUMENT: below 0 or above CH_THREADS_MOST. */
int ch_threads_resolve(int asked, int *threads);

/* To be called before a parallel region of `threads` threads. CHOIR_ERROR_UNSUPPORTED: the process was forked after its
 * parent had run parallel regions, and a child lacks the parent's threads; or threads get too small a stack.
 * CHOIR_ERROR_MEMORY: the system starts fewer threads (checked once per number). One thread always succeeds. */
int ch_threads_check(int threads);

/* Signals stay away from code that cannot bear a handler, and from threads that are the library's own: these block
 * every signal that can wait on the calling thread, and let them in again. Faults of the thread itself
 * (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT) stay as they are: they cannot wait. */
void ch_signals_hold(sigset_t *before);
void ch_signals_release(const sigset_t *before);

#endif
