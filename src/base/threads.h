/* The number of threads, and a check that the system can start them: OpenMP's runtime ends the process, or hangs, if a
 * thread cannot be started. */
#ifndef CH_BASE_THREADS_H
#define CH_BASE_THREADS_H

#include <signal.h>

#include "base/error.h"

enum { CH_THREADS_MAX = 1024 };

/* 0 becomes all CPUs that this process may run on. CHOIR_ERROR_ARGUMENT: below 0 or above CH_THREADS_MAX. */
int ch_threads_resolve(int asked, int *threads);

/* Call this before a parallel region of `threads` threads. CHOIR_ERROR_UNSUPPORTED: the process was forked after its
 * parent had run parallel regions (a child lacks the parent's threads), or threads have too small a stack.
 * CHOIR_ERROR_MEMORY: the system cannot start that many threads (checked once per number). One thread always
 * succeeds. */
int ch_threads_check(int threads);

/* Block and restore signals on the calling thread, around code that handlers must not interrupt and in the library's
 * own threads. Synchronous faults (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT) are not blocked. */
void ch_signals_hold(sigset_t *before);
void ch_signals_release(const sigset_t *before);

#endif
