#include "data/pipeline.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/threads.h"

enum { MESSAGE_BYTES = 2048 };

/* The result of a job. Error messages are per thread, so the message of a failed job is copied. */
typedef struct outcome {
  int done, code;
  char message[MESSAGE_BYTES];
} outcome;

typedef struct pipeline_state {
  const ch_pipeline *p;
  pthread_mutex_t lock;
  pthread_cond_t free_place, ready, done; /* waited for by the producer, the workers, the consumer */
  uint64_t produced, started, consumed;   /* number of jobs so far; job n uses slot n % p->jobs */
  int ended;                              /* no more jobs will be produced */
  int stop;                               /* the consumer has failed or finished */
  outcome *outcome;                       /* [jobs] */
} pipeline_state;

typedef struct helper {
  pipeline_state *s;
  int number;
  pthread_t thread;
} helper;

static void *job_at(const ch_pipeline *p, size_t place) { return (char *)p->job + place * p->job_bytes; }

static void settle(outcome *o, int code) {
  o->code = code;
  if (code) snprintf(o->message, sizeof o->message, "%s", choir_error_message());
}

static void *producer(void *argument) {
  pipeline_state *s = argument;
  const ch_pipeline *p = s->p;
  int more = 1;
  while (more) {
    pthread_mutex_lock(&s->lock);
    while (!s->stop && s->produced - s->consumed == (uint64_t)p->jobs) pthread_cond_wait(&s->free_place, &s->lock);
    size_t place = (size_t)(s->produced % (uint64_t)p->jobs);
    int stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    if (stop) break;
    int code = p->produce(p->context, job_at(p, place), &more);
    if (code) more = 0;
    pthread_mutex_lock(&s->lock);
    if (more || code) {
      s->outcome[place].done = code != 0; /* an error is the job's result, in order */
      settle(&s->outcome[place], code);
      s->produced++;
    }
    s->ended = !more;
    if (s->ended)
      pthread_cond_broadcast(&s->ready);
    else
      pthread_cond_signal(&s->ready);
    if (s->ended) pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
  }
  return NULL;
}

static void *worker(void *argument) {
  helper *h = argument;
  pipeline_state *s = h->s;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    while (!s->stop && !s->ended && s->started == s->produced) pthread_cond_wait(&s->ready, &s->lock);
    if (s->stop || s->started == s->produced) break;
    size_t place = (size_t)(s->started++ % (uint64_t)s->p->jobs);
    if (s->outcome[place].done) continue; /* the producer's error */
    pthread_mutex_unlock(&s->lock);
    int code = s->p->work(s->p->context, h->number, job_at(s->p, place));
    pthread_mutex_lock(&s->lock);
    settle(&s->outcome[place], code);
    s->outcome[place].done = 1;
    pthread_cond_signal(&s->done);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* Consumes jobs in order until the end or the first error. */
static int consume(pipeline_state *s) {
  const ch_pipeline *p = s->p;
  int code = CHOIR_OK;
  pthread_mutex_lock(&s->lock);
  while (!code) {
    size_t place = (size_t)(s->consumed % (uint64_t)p->jobs);
    while (!(s->consumed < s->produced && s->outcome[place].done) && !(s->ended && s->consumed == s->produced))
      pthread_cond_wait(&s->done, &s->lock);
    if (s->consumed == s->produced) break;
    pthread_mutex_unlock(&s->lock);
    code = s->outcome[place].code;
    if (code)
      ch_error(code, "%s", s->outcome[place].message);
    else
      code = p->consume(p->context, job_at(p, place));
    pthread_mutex_lock(&s->lock);
    s->outcome[place].done = 0;
    s->consumed++;
    pthread_cond_signal(&s->free_place);
  }
  pthread_mutex_unlock(&s->lock);
  return code;
}

/* Stops and joins the started threads: helpers[0] is the producer. */
static void finish_threads(pipeline_state *s, helper *helpers, int started) {
  pthread_mutex_lock(&s->lock);
  s->stop = 1; /* also after the last job, when no thread waits */
  pthread_cond_broadcast(&s->free_place);
  pthread_cond_broadcast(&s->ready);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < started; i++) pthread_join(helpers[i].thread, NULL);
}

int ch_pipeline_run(const ch_pipeline *p) {
  pipeline_state s = {.p = p,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .free_place = PTHREAD_COND_INITIALIZER,
                      .ready = PTHREAD_COND_INITIALIZER,
                      .done = PTHREAD_COND_INITIALIZER};
  sigset_t before;
  int count = p->workers + 1, started = 0, failed = 0, code;
  helper *helpers = NULL;
  code = CH_ALLOC(&s.outcome, p->jobs, "jobs of threads");
  if (!code) code = CH_ALLOC(&helpers, count, "threads");
  if (!code) {
    ch_signals_hold(&before); /* inherited by the threads, so that signal handlers run on the host's own threads */
    while (started < count && !failed) {
      helpers[started] = (helper){.s = &s, .number = started - 1};
      void *argument = started ? (void *)&helpers[started] : (void *)&s;
      failed = pthread_create(&helpers[started].thread, NULL, started ? worker : producer, argument);
      started += !failed;
    }
    ch_signals_release(&before);
    code = failed ? ch_error(CHOIR_ERROR_MEMORY, "cannot start thread %d: %s", started, strerror(failed)) : consume(&s);
    finish_threads(&s, helpers, started);
  }
  free(s.outcome);
  free(helpers);
  return code;
}
