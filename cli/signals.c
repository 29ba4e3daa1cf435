/* Being asked to stop. */
#include <signal.h>
#include <string.h>

#include "cli.h"

static volatile sig_atomic_t stop;

static void on_signal(int number) { stop = 1; }

/* One that the parent has ignored, as nohup does and a script for its background jobs, stays so. */
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
