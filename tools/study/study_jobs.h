/* Children that work: at most so many at once, each on CPUs of its own. */
#ifndef CH_STUDY_JOBS_H
#define CH_STUDY_JOBS_H

#include <limits.h>
#include <sys/types.h>

#include "study/study.h"

typedef enum { CH_JOB_WAITING, CH_JOB_RUNNING, CH_JOB_DONE, CH_JOB_FAILED } ch_job_state;

enum { CH_JOB_WORDS = 64 };

typedef struct ch_job {
  char name[160];                     /* for people: "EC c=2, seed 1" */
  char word[8][PATH_MAX];             /* arguments that are no literals */
  const char *argument[CH_JOB_WORDS]; /* of the program, NULL-terminated */
  int kept;                           /* so many of them, and --resume, go on with a run that is there */
  char run[PATH_MAX];                 /* the run directory: how far it is, whether another process has it; "": none */
  char log[PATH_MAX];                 /* takes what the child says */
  int64_t steps;                      /* of a job that trains, else 0: done when the child ends well */
  double work;                        /* of all its steps, in any unit that all jobs share */
  ch_job_state state;
  pid_t child;
  int slot, tries;
  double done;                   /* share of the work */
  double held_since, not_before; /* seconds on the clock: another process has the run; when to ask again */
  char error[256];
} ch_job;

typedef struct ch_jobs {
  const choir_study_options *options;
  const char *phase;      /* "rates", "runs", "measuring" */
  int slots, threads;     /* children at once, threads of each */
  double deadline;        /* seconds on the clock; 0: none */
  double later;           /* work of phases to come */
  double *begun, *worked; /* of the whole study: seconds on the clock, work done since: what the rest will take */
  ch_job *job;
  int count;
} ch_jobs;

/* Runs all that wait. A job that fails is told, and the others go on. CHOIR_ERROR_INTERRUPTED: stopped, and all
 * children have saved and ended. */
int ch_jobs_run(ch_jobs *jobs);

/* Steps of a run's newest checkpoint, 0 where there is none. */
int64_t ch_job_saved_steps(const char *run);

/* ---- study_lists.c: jobs that wait, but for what is there already ---- */

/* A new list, with room for so many. */
int ch_jobs_room(ch_jobs *jobs, int count);
/* The run of an arm, a rate and a seed to so many steps. */
int ch_jobs_add_run(ch_jobs *jobs, const ch_study *study, int arm, double rate, int seed, int64_t steps);
/* What a recipe measures on a run that has ended. */
int ch_jobs_add_measurement(ch_jobs *jobs, const ch_study *study, int arm, int seed);
/* A task on the run of an arm and a seed; none where that run has not ended, or has gone on since. */
int ch_jobs_add_tuning(ch_jobs *jobs, const ch_study *study, int task, int arm, int seed);
/* The work of all that is fine-tuned, by guess. */
double ch_study_tune_work(const ch_study *study);

/* ---- study_child.c ---- */

/* Starts the program on the CPUs of its slot; it gets SIGTERM when this process ends. CHOIR_ERROR_IO. */
int ch_child_start(const ch_jobs *jobs, ch_job *job);

/* The last line of a file, or "". */
void ch_last_line(const char *path, char *line, size_t size);

#endif
