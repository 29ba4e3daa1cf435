/* Runs of ranks that are processes made by fork (forked_comm.h), for tests of what they leave behind. */
#ifndef CH_TESTS_FORKED_RUNS_H
#define CH_TESTS_FORKED_RUNS_H

#include "choir/choir.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "program.h"

typedef struct {
  atomic_int stopped, told;
  char text[1024]; /* of one of them */
} silence;

typedef struct {
  choir_config config;
  const char *out, *data, *backend;
  int replicas, hidden, dense_sharded;
  int resume;
  int stop_rank; /* asks to stop at the second step; -1: none */
  int stop_at;   /* the event at which it does */
  int odd_rank;  /* has something else than the others; -1: none */
  void (*odd)(choir_train_options *o, choir_config *config);
  int code;
  const char *message; /* what every rank's error must hold */
  int kill_rank;       /* is killed; -1: none */
  double kill_after;   /* seconds, from when it begins */
  double wake_after;   /* it is not killed but stopped, and goes on then; 0: killed */
  double patience;     /* seconds after which the others call it silent; 0: never */
  silence *silence;    /* shared: what they said */
} job;

static inline int stop_after_two(void *context, const choir_event *e) {
  return (int)e->kind == *(const int *)context && e->step == 2;
}

/* Has the kernel send signal `number` to this process after so many seconds, even within a system call. */
static inline void die_in(double seconds, int number) {
  timer_t timer;
  struct sigevent killed = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
  long nanoseconds = (long)(1e9 * seconds) + 1; /* 0 would be never */
  const struct itimerspec at = {.it_value = {nanoseconds / 1000000000, nanoseconds % 1000000000}};
  if (timer_create(CLOCK_MONOTONIC, &killed, &timer) || timer_settime(timer, 0, &at, NULL)) abort();
}

/* Waits until it is stopped, and lets it go on later; ends with it. */
static inline void wake_later(double after, silence *s) {
  pid_t sleeper = getpid(), waker = fork();
  if (waker) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", sleeper);
  while (state != 'T') {
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) _exit(0);
    fclose(file);
    usleep(1000);
  }
  atomic_store(&s->stopped, 1);
  program_nap(after);
  test_signal(sleeper, SIGCONT);
  _exit(0);
}

/* As the program does. */
static inline int say_and_end(void *context, const choir_event *event) {
  silence *s = context;
  if (!atomic_fetch_add(&s->told, 1)) snprintf(s->text, sizeof s->text, "%s", event->notice);
  _exit(4);
}

static inline int train(const ch_comm *comm, void *context) {
  job j = *(const job *)context;
  const choir_ranks ranks = {
      .comm = comm, .replicas = j.replicas, .hidden = j.hidden, .dense_sharded = j.dense_sharded};
  /* A rank that waits for ever is an error; one that is stopped cannot know. */
  alarm(j.patience > 0 && comm->rank != j.kill_rank ? 30 : 120);
  if (comm->rank == j.kill_rank) {
    if (j.wake_after > 0) wake_later(j.wake_after, j.silence);
    die_in(j.kill_after, j.wake_after > 0 ? SIGSTOP : SIGKILL);
  }
  if (j.patience > 0) test_ok(ch_watch_start(comm, j.patience, say_and_end, j.silence));
  int stops = comm->rank == j.stop_rank ? j.stop_at : -1;
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = 1, .backend = j.backend, .ranks = &ranks};
  o.config = j.resume ? NULL : &j.config, o.data = j.resume ? NULL : j.data, o.out = j.out, o.resume = j.resume;
  o.model = &model;
  o.event = stop_after_two, o.context = &stops;
  if (comm->rank == j.odd_rank) j.odd(&o, &j.config);
  int code = choir_train(&o);
  if (code == j.code && (!j.message || strstr(choir_error_message(), j.message))) return 0;
  fprintf(stderr, "rank %d of %d: code %d: %s\n", comm->rank, comm->size, code, choir_error_message());
  return 1;
}

static inline job job_of(const char *router, const char *out, int steps) {
  job j = {.out = out, .data = "data", .stop_rank = -1, .stop_at = CHOIR_EVENT_STEP, .odd_rank = -1, .kill_rank = -1};
  j.replicas = 1; /* also where ranks outnumber experts */
  test_ok(ch_config_load("config.json", &j.config));
  j.config.model.router = test_router(router);
  if (!strcmp(router, "dense")) j.config.model.experts = 1;
  j.config.train.steps = steps;
  j.config.train.batch_sequences = 8;
  j.config.train.grad_chunks = 8;
  j.config.train.eval_every = 2;
  j.config.train.eval_sequences = 11; /* the last batch is not full */
  j.config.train.checkpoint_every = 2;
  return j;
}

static inline void go(job j, int ranks) {
  if (forked_run(ranks, 0, train, &j)) fail_msg("%s: %d ranks", j.out, ranks);
}

#endif
