/* Signals that request a stop. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli.h"

static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = 1; }

/* Signals that the parent process ignores, as nohup and scripts with background jobs do, stay ignored. UCX, which
 * comes with Open MPI 5, catches SIGHUP when it is loaded: so ignored signals (one bit each) are recorded before
 * libraries are initialized, and ignored again afterwards. This uses the system call, because sanitizers, which replace
 * sigaction, are not initialized yet either. */
static unsigned long ignored;

static void note_ignored(void) {
  struct {
    void (*handler)(int);
    unsigned long rest[8];
  } action;
  for (int number = 1; number < 32; number++)
    if (!syscall(SYS_rt_sigaction, number, NULL, &action, 8) && action.handler == SIG_IGN) ignored |= 1ul << number;
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = note_ignored;

__attribute__((constructor)) static void ignore_again(void) {
  for (int number = 1; number < 32; number++)
    if (ignored >> number & 1) signal(number, SIG_IGN);
}

static void catch_one(int number, int flags) {
  struct sigaction action, before;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = flags | SA_RESTART;
  if (!sigaction(number, NULL, &before) && before.sa_handler != SIG_IGN) sigaction(number, &action, NULL);
}

void cli_catch_signals(void) {
  static const int asked[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}; /* USR1, USR2: a job's time limit is near */
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
    catch_one(asked[i], (int)SA_RESETHAND); /* the second signal has its default effect: it ends a step that hangs */
  catch_one(SIGXCPU, 0);                    /* comes every second, until the limit that kills */
}

void cli_catch_closed_output(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART; /* printing continues after a signal */
  sigaction(SIGPIPE, &action, NULL);
}

int cli_stop_requested(void) { return stop; }
