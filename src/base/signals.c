#include "base/signals.h"

#include <pthread.h>

void ch_signals_hold(sigset_t *before) {
  static const int cannot_wait[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  sigset_t held;
  sigfillset(&held);
  for (size_t i = 0; i < sizeof cannot_wait / sizeof *cannot_wait; i++) sigdelset(&held, cannot_wait[i]);
  pthread_sigmask(SIG_BLOCK, &held, before);
}

void ch_signals_release(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }
