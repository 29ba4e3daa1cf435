/* Being asked to stop. */
#include <signal.h>
#include <string.h>

#include "cli.h"

static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = 1; }

void cli_catch_signals(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags =
      (int)SA_RESETHAND | SA_RESTART; /* the second one has its usual effect: a way out of a step that hangs */
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGUSR1, &action, NULL); /* that the time of a job is nearly over */
  struct sigaction before;           /* nohup has it ignored, and that must stay */
  if (!sigaction(SIGHUP, NULL, &before) && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

void cli_catch_closed_output(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART; /* for every line that is still printed */
  sigaction(SIGPIPE, &action, NULL);
}

int cli_stop_requested(void) { return stop; }
