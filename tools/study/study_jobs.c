#include "study/study_jobs.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/machine.h"
#include "file/checkpoints.h"
#include "file/claim.h"
#include "model/weights.h"

enum { TRIES = 3, PATIENCE = 120 }; /* starts of a child that was killed; seconds for another process to let go */

int64_t ch_job_saved_steps(const char *run) {
  int64_t step = ch_checkpoint_newest_step(run);
  return step < 0 ? 0 : step;
}

/* Steps that a run has written down; no less than what it has saved. */
static int64_t written_steps(const char *run) {
  char path[PATH_MAX + 16], line[4096];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  ch_last_line(path, line, sizeof line);
  const char *at = strstr(line, "\"step\":");
  long long step = at ? atoll(at + 7) : 0;
  return step;
}

static void tell(const ch_jobs *j, int *stop, const choir_study_event *event) {
  if (j->options->event && j->options->event(j->options->context, event)) *stop = 1;
}

static void tell_failure(const ch_jobs *j, int *stop, const ch_job *job) {
  char text[sizeof job->name + sizeof job->error + sizeof job->log + 32];
  snprintf(text, sizeof text, "failed: %s: %s (%s)", job->name, job->error, job->log);
  tell(j, stop, &(choir_study_event){.kind = CHOIR_STUDY_MESSAGE, .text = text});
}

/* What runs, as "EC c=2, seed 1 63 %". */
static void progress(const ch_jobs *j, int *stop, double seconds) {
  choir_study_event e = {.kind = CHOIR_STUDY_PROGRESS, .total = j->count};
  char text[400];
  double left = j->later;
  int length = snprintf(text, sizeof text, "%s", j->phase);
  for (int i = 0; i < j->count; i++) {
    const ch_job *job = &j->job[i];
    e.done += job->state == CH_JOB_DONE;
    e.failed += job->state == CH_JOB_FAILED;
    if (job->state == CH_JOB_WAITING || job->state == CH_JOB_RUNNING) left += job->work * (1 - job->done);
    if (job->state != CH_JOB_RUNNING) continue;
    if (length < (int)sizeof text)
      length += snprintf(text + length, sizeof text - (size_t)length, "%s %s %.0f %%", e.running ? "," : ":", job->name,
                         100 * job->done);
    e.running++;
  }
  e.seconds_left = *j->worked > 0 && seconds > 0 ? left * seconds / *j->worked : (double)NAN;
  e.text = text;
  tell(j, stop, &e);
}

/* How far the children are; what they did since counts as work done. */
static void poll_jobs(ch_jobs *j) {
  for (int i = 0; i < j->count; i++) {
    ch_job *job = &j->job[i];
    if (job->state != CH_JOB_RUNNING || !job->steps) continue;
    double now = fmin(1, (double)written_steps(job->run) / (double)job->steps);
    if (now > job->done) {
      *j->worked += (now - job->done) * job->work;
      job->done = now;
    }
  }
}

static int free_slot(const ch_jobs *j) {
  for (int slot = 0; slot < j->slots; slot++) {
    int taken = 0;
    for (int i = 0; i < j->count; i++) taken |= j->job[i].state == CH_JOB_RUNNING && j->job[i].slot == slot;
    if (!taken) return slot;
  }
  return -1;
}

/* Another process may still hold the run: one that an earlier study left, and that is about to save. */
static int is_held(ch_job *job) {
  int lock;
  if (!*job->run || access(job->run, F_OK)) return 0;
  int code = ch_lock_take(job->run, &lock);
  if (!code) ch_lock_release(lock);
  return code == CHOIR_ERROR_BUSY;
}

static void fail(ch_jobs *j, ch_job *job, int *stop, const char *error) {
  job->state = CH_JOB_FAILED;
  snprintf(job->error, sizeof job->error, "%.250s", error);
  tell_failure(j, stop, job);
}

/* A run goes on from what an earlier process saved, or begins. */
static void start(ch_jobs *j, ch_job *job, int slot, int *stop) {
  char config[PATH_MAX + 16];
  double now = ch_machine_seconds();
  if (job->not_before > now) return;
  if (is_held(job)) {
    if (!(job->held_since > 0)) job->held_since = now;
    job->not_before = now + 1;
    if (now - job->held_since > PATIENCE) fail(j, job, stop, "another process trains there");
    return;
  }
  snprintf(config, sizeof config, "%s/config.json", job->run);
  if (job->steps && !access(config, R_OK)) job->argument[job->kept] = "--resume", job->argument[job->kept + 1] = NULL;
  job->slot = slot;
  job->tries++;
  if (job->steps) job->done = fmin(1, (double)ch_job_saved_steps(job->run) / (double)job->steps);
  if (ch_child_start(j, job))
    fail(j, job, stop, choir_error_message());
  else
    job->state = CH_JOB_RUNNING;
}

/* A child has ended. One that was killed, or stopped by somebody else, goes on from its last checkpoint. */
static void end(ch_jobs *j, ch_job *job, int status, int *stop) {
  enum { INTERRUPTED = 3 }; /* exit status of choir train: stopped by a signal, and saved */
  int well = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == INTERRUPTED);
  char line[300];
  if (well && (!job->steps || ch_job_saved_steps(job->run) >= job->steps)) {
    if (!job->steps)
      *j->worked += job->work;
    else
      *j->worked += (1 - job->done) * job->work;
    job->state = CH_JOB_DONE;
    job->done = 1;
    return;
  }
  job->state = CH_JOB_WAITING;
  if (*stop) return;
  if ((well || WIFSIGNALED(status)) && job->tries < TRIES) return;
  ch_last_line(job->log, line, sizeof line);
  if (WIFSIGNALED(status)) snprintf(line, sizeof line, "killed by signal %d, %d times", WTERMSIG(status), job->tries);
  fail(j, job, stop, *line ? line : "ended without a word");
}

static int reap(ch_jobs *j, int *stop) {
  int running = 0;
  for (int i = 0; i < j->count; i++) {
    ch_job *job = &j->job[i];
    int status;
    if (job->state != CH_JOB_RUNNING) continue;
    pid_t ended = waitpid(job->child, &status, WNOHANG);
    if (ended == job->child)
      end(j, job, status, stop);
    else if (ended < 0 && errno != EINTR)
      fail(j, job, stop, "its process was lost");
    else
      running++;
  }
  return running;
}

static int waiting(const ch_jobs *j) {
  int count = 0;
  for (int i = 0; i < j->count; i++) count += j->job[i].state == CH_JOB_WAITING;
  return count;
}

static void start_what_fits(ch_jobs *j, int *stop) {
  for (int i = 0; i < j->count && !*stop; i++) {
    int slot = free_slot(j);
    if (slot < 0) return;
    if (j->job[i].state == CH_JOB_WAITING) start(j, &j->job[i], slot, stop);
  }
}

static void signal_all(const ch_jobs *j, int number) {
  for (int i = 0; i < j->count; i++)
    if (j->job[i].state == CH_JOB_RUNNING) kill(j->job[i].child, number);
}

static void pause_for(double seconds) {
  struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
  nanosleep(&t, NULL);
}

int ch_jobs_run(ch_jobs *j) {
  int stop = 0, told = 0, running = 0;
  double looked = 0;
  for (;;) {
    running = reap(j, &stop);
    double now = ch_machine_seconds();
    if (j->deadline > 0 && now >= j->deadline) stop = 1;
    if (stop && !told) signal_all(j, SIGTERM), told = 1;
    if (!running && (stop || !waiting(j))) break;
    if (!stop) start_what_fits(j, &stop);
    if (now - looked >= 1) {
      poll_jobs(j);
      progress(j, &stop, now - *j->begun);
      looked = now;
    }
    pause_for(0.05);
  }
  return waiting(j) ? ch_error(CHOIR_ERROR_INTERRUPTED, "stopped; what was done is saved") : CHOIR_OK;
}
