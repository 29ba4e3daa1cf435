/* Being asked to stop. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cli.h"

static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = 1; }

/* What the parent ignores, as nohup does and a script for its background jobs, stays ignored. UCX, which Open MPI 5
 * brings, catches SIGHUP as it is loaded: so signals that are ignored, a bit each, are noted before libraries begin,
 * and are ignored again after that. By the call itself, since sanitizers, which replace sigaction, have not begun
 * either. */
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
  static const int asked[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}; /* USR1, USR2: a job's time is nearly over */
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
    catch_one(asked[i], (int)SA_RESETHAND); /* the second one has its usual effect: a way out of a step that hangs */
  catch_one(SIGXCPU, 0);                    /* comes every second, until the limit that kills */
}

void cli_catch_closed_output(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART; /* for every line that is still printed */
  sigaction(SIGPIPE, &action, NULL);
}

int cli_stop_requested(void) { return stop; }
