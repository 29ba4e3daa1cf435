/* Signals kept away from code that cannot bear a handler, and from threads that are the library's own. */
#ifndef CH_BASE_SIGNALS_H
#define CH_BASE_SIGNALS_H

#include <signal.h>

/* Blocks every signal that can wait on the calling thread, and lets them in again. Faults of the thread itself
 * (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT) stay as they are: they cannot wait. */
void ch_signals_hold(sigset_t *before);
void ch_signals_release(const sigset_t *before);

#endif
