/* A terminal that commands write to, and what it must not be sent. */
#ifndef CH_TESTS_TERMINAL_H
#define CH_TESTS_TERMINAL_H

#include <pty.h>

#include "program.h"

static char screen[1 << 18], screen_command[1024];

/* Collects what a command sends to a terminal, both streams. */
static inline int on_a_terminal(const char *command) {
  char line[2048];
  int terminal;
  size_t used = 0;
  ssize_t n;
  snprintf(line, sizeof line, "choir() { '%s' \"$@\"; }; %s", CHOIR_PROGRAM, command);
  snprintf(screen_command, sizeof screen_command, "%s", command);
  fflush(NULL);
  pid_t child = forkpty(&terminal, NULL, NULL, NULL);
  if (!child) {
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
  }
  while ((n = read(terminal, screen + used, sizeof screen - 1 - used)) > 0) used += (size_t)n;
  close(terminal);
  screen[used] = 0;
  return program_wait(child);
}

/* No escape sequence but the one that progress clears its line with, and those that make a prompt bold. */
static inline void nothing_is_obeyed(void) {
  for (const char *at = screen; (at = strchr(at, '\033')); at++)
    if (strncmp(at, "\033[K", 3) && strncmp(at, "\033[1m", 4) && strncmp(at, "\033[0m", 4))
      fail_msg("%s: escape sequence sent: \\e%.10s", screen_command, at + 1);
  assert_null(strchr(screen, '\a'));
  assert_null(strstr(screen, "\xC2\x9B"));
}

#endif
