/* Prepares the process before anything else: replaces missing standard streams, and reports fatal signals. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"

/* If a standard stream was closed, the next opened file would get its descriptor, and with it the printed text.
 * Output to a closed standard output is lost, and main reports that it cannot be written. */
static int fill_standard_streams(void) {
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) != fd)
      return -1;
  return 0;
}

static int check_stack(void) {
  struct rlimit limit;
  const rlim_t min = (rlim_t)512 << 10;
  if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= min) return 0;
  return cli_fail_with("the stack may have %llu KiB and needs %llu: raise ulimit -s",
                       (unsigned long long)limit.rlim_cur >> 10, (unsigned long long)min >> 10);
}

/* ---- in a signal handler: system calls only */

static void say(const char *text) {
  size_t left = strlen(text);
  while (left) {
    ssize_t n = write(STDERR_FILENO, text, left);
    if (n <= 0) return;
    text += n, left -= (size_t)n;
  }
}

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* Parses one line of /proc/self/maps, "begin-end rwxp offset device inode  path". Returns the path if the mapping
 * contains the address. */
static const char *path_in_line(const char *line, uintptr_t address) {
  uintptr_t bound[2] = {0};
  for (int i = 0; i < 2; i++, line++)
    for (; hex_digit(*line) >= 0; line++) bound[i] = bound[i] << 4 | (uintptr_t)hex_digit(*line);
  const char *slash = strchr(line, '/');
  return address >= bound[0] && address < bound[1] ? slash : NULL;
}

/* The mapped file at an address, or NULL. */
static const char *mapped_file(uintptr_t address) {
  static char line[8192];
  char piece[512];
  size_t used = 0;
  ssize_t n;
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0)
    for (ssize_t i = 0; i < n; i++) {
      if (piece[i] != '\n') {
        if (used < sizeof line - 1) line[used++] = piece[i];
        continue;
      }
      line[used] = 0;
      used = 0;
      const char *path = path_in_line(line, address);
      if (path) return path;
    }
  return NULL;
}

static void on_fault(int number, siginfo_t *info, void *context) {
  const char *file = number == SIGBUS ? mapped_file((uintptr_t)info->si_addr) : NULL;
  say("\nchoir: ");
  if (file) {
    say(file);
    say(": became shorter while it was in use, or cannot be read from its disk.");
  } else {
    say(number == SIGBUS    ? "no memory or no disk behind an address (SIGBUS)."
        : number == SIGABRT ? "a library that it uses gave up (SIGABRT), most often for want of memory."
        : number == SIGSEGV
            ? "a fault in choir or a library that it uses, or in a plug-in, or no room for its stack (SIGSEGV)."
            : "a fault in choir or a library that it uses, or in a plug-in (SIGILL or SIGFPE).");
  }
  say(" Checkpoints that were saved are whole; 'choir train --resume' goes on from the newest.\n");
  if (file) _exit(CLI_FAILED);
  raise(number); /* default action, now that the handler is removed */
}

#ifdef CHOIR_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Catches fatal signals, on a separate stack, because a stack overflow must be reported, too. */
static void catch_faults(void) {
  static char stack[1 << 16];
  static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT};
  struct sigaction action;
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = (int)SA_RESETHAND | SA_ONSTACK | SA_SIGINFO | SA_NODEFER;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigaction(faults[i], &action, NULL);
}

int cli_start(void) {
  if (fill_standard_streams()) return CLI_FAILED; /* without a stream to report this */
  signal(SIGXFSZ, SIG_IGN);                       /* exceeding a file size limit becomes an error of the write */
  cli_json_watch();
  if (!SANITIZED) catch_faults(); /* sanitizers report more */
  return check_stack();
}
