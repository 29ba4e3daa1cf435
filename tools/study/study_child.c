/* One child of a study: how it is started. OpenMP does not survive a fork, so children are programs of their own. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/error.h"
#include "study/study_jobs.h"

/* The CPUs of one slot: as many as a child has threads, other ones than those of the other slots. Where there are not
 * enough, all. */
static void slot_cpus(const ch_jobs *jobs, int slot, cpu_set_t *set) {
  cpu_set_t all;
  int number = 0, first = slot * jobs->threads, found = 0;
  CPU_ZERO(set);
  CPU_ZERO(&all);
  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    if (number >= first && number < first + jobs->threads) CPU_SET(cpu, set), found++;
    number++;
  }
  if (found < jobs->threads) *set = all;
}

/* Nothing here but calls that are safe between fork and exec. */
static void become(const char *program, char *const *words, const cpu_set_t *cpus, int log, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  setpgid(0, 0); /* Ctrl-C is for the study, which tells its children */
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(126);
  sched_setaffinity(0, sizeof *cpus, cpus);
  int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(log, 1);
  dup2(log, 2);
  execv(program, words);
  _exit(127);
}

int ch_child_start(const ch_jobs *jobs, ch_job *job) {
  char *words[CH_JOB_WORDS + 2] = {(char *)"choir"};
  int count = 1;
  cpu_set_t cpus;
  for (int i = 0; job->argument[i]; i++) words[count++] = (char *)job->argument[i];
  slot_cpus(jobs, job->slot, &cpus);
  int log = open(job->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log < 0) return ch_error_errno("%s: cannot be written", job->log);
  pid_t parent = getpid(), child = fork();
  if (child == 0) become(jobs->options->program, words, &cpus, log, parent);
  close(log);
  if (child < 0) return ch_error_errno("a child for '%s' cannot be started", job->name);
  job->child = child;
  return CHOIR_OK;
}

void ch_last_line(const char *path, char *line, size_t size) {
  char text[4096];
  line[0] = 0;
  FILE *file = fopen(path, "r");
  if (!file) return;
  if (fseek(file, -(long)(sizeof text - 1), SEEK_END)) rewind(file);
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  while (length && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
  text[length] = 0;
  const char *end = strrchr(text, '\n');
  snprintf(line, size, "%s", end ? end + 1 : text);
}
