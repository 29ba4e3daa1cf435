#include "comm/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/build.h"
#include "base/error.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/threads.h"

enum { HOST_BYTES = 56 };

/* The first message between ranks; its size never changes between versions. */
typedef struct {
  char host[HOST_BYTES];
  uint64_t build;
} greeting;

/* A position in a run; all ranks pass the positions in the same order. */
typedef struct {
  const char *section;
  int64_t number;
  const char *what;
  int64_t exchange;
} last_place;

typedef struct {
  int spans; /* spans of the awaited exchange still to receive from or send to the peer */
  last_place heard;
  char host[HOST_BYTES];
} peer;

/* The lock is held briefly, a few times per exchange. */
struct ch_watch {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* `ending` has */
  pthread_t thread;
  int started, ending;
  const ch_comm *comm;
  double seconds;
  choir_event_callback event;
  void *context;
  int64_t waiting; /* number of the awaited exchange; 0: none; -1: waits for the others to leave */
  ch_transfer_state until;
  uint64_t moves; /* messages moved, of any exchange */
  last_place now;
  peer peer[CH_RANKS];
};

ch_watch *ch_watch_new(void) {
  ch_watch *w = calloc(1, sizeof *w);
  pthread_condattr_t attributes;
  if (!w) return NULL;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  w->now = (last_place){.section = "set-up", .number = -1};
  return w;
}

/* ---- updates by the rank's main thread ---- */

/* The locked watch; NULL without a watchdog. */
static ch_watch *hold(const ch_comm *comm) {
  if (comm->watch) pthread_mutex_lock(&comm->watch->lock);
  return comm->watch;
}

void ch_watch_section(const ch_comm *comm, const char *name, int64_t number) {
  ch_watch *w = hold(comm);
  if (!w) return;
  w->now.section = name;
  w->now.number = number;
  pthread_mutex_unlock(&w->lock);
}

static int spans_left(const ch_transfer *t, int rank, ch_transfer_state until) {
  return (t->receive[rank].bytes > 0) + (until == CH_ENDED && t->send[rank].bytes > 0);
}

void ch_watch_enter(const ch_comm *comm, const ch_transfer *t, ch_transfer_state until) {
  ch_watch *w = hold(comm);
  if (!w) return;
  w->now.what = t->what;
  w->now.exchange = w->waiting = t->number;
  w->until = until;
  for (int r = 0; r < comm->size; r++) w->peer[ch_comm_number(comm, r)].spans = spans_left(t, r, until);
  w->moves++;
  pthread_mutex_unlock(&w->lock);
}

void ch_watch_leave(const ch_comm *comm) {
  ch_watch *w = hold(comm);
  if (!w) return;
  w->waiting = 0;
  pthread_mutex_unlock(&w->lock);
}

void ch_watch_leaving(const ch_comm *comm) {
  ch_watch *w = hold(comm);
  if (!w) return;
  w->now.what = "the end";
  w->waiting = -1; /* not the number of an exchange */
  w->moves++;
  pthread_mutex_unlock(&w->lock);
}

void ch_watch_moved(const ch_comm *comm, const ch_transfer *t, int rank, int came) {
  ch_watch *w = hold(comm);
  if (!w) return;
  peer *p = &w->peer[ch_comm_number(comm, rank)];
  if (w->waiting == t->number) p->spans = spans_left(t, rank, w->until);
  if (came) p->heard = (last_place){w->now.section, w->now.number, t->what, t->number};
  w->moves++;
  pthread_mutex_unlock(&w->lock);
}

/* ---- the thread ---- */

static void place_text(const last_place *p, char *text, size_t size) {
  char number[32] = "";
  if (p->number >= 0) snprintf(number, sizeof number, " %lld", (long long)p->number);
  snprintf(text, size, "%s%s, exchange %lld (%s)", p->section, number, (long long)p->exchange, p->what);
}

/* " (node3)", or "" while unknown. */
static const char *host_text(const peer *p, char *text, size_t size) {
  *text = 0;
  if (*p->host) snprintf(text, size, " (%s)", p->host);
  return text;
}

/* "rank 0 of 4 (here) has waited 60 s for rank 2 (there), last heard in step 17, exchange 1234 (rows to experts)". */
static void describe_wait(const ch_watch *w, char *text, size_t size) {
  enum { NAMED = 4 };
  char where[160], host[HOST_BYTES + 4];
  const ch_comm *comm = w->comm;
  place_text(&w->now, where, sizeof where);
  size_t used = (size_t)ch_format(text, size, "rank %d of %d%s has waited for %g s in %s", comm->rank, comm->size,
                                  host_text(&w->peer[comm->rank], host, sizeof host), w->seconds, where);
  int others = 0;
  for (int r = 0; r < comm->size && used < size; r++) {
    const peer *p = &w->peer[r];
    if (!p->spans || others++ >= NAMED) continue;
    if (p->heard.exchange) place_text(&p->heard, where, sizeof where);
    used += (size_t)snprintf(text + used, size - used, "%s rank %d%s, %s%s", others == 1 ? " for" : ";", r,
                             host_text(p, host, sizeof host), p->heard.exchange ? "last heard in " : "not heard yet",
                             p->heard.exchange ? where : "");
  }
  if (!others && used < size) snprintf(text + used, size - used, " for a rank that has not left");
  if (others > NAMED && used < size) snprintf(text + used, size - used, "; and %d more", others - NAMED);
}

static void sleep_locked(ch_watch *w, double seconds) {
  double until = ch_machine_seconds() + seconds, whole = (double)(time_t)until;
  const struct timespec end = {(time_t)until, (long)(1e9 * (until - whole))};
  pthread_cond_timedwait(&w->changed, &w->lock, &end);
}

static void *look_on(void *context) {
  ch_watch *w = context;
  char text[1024] = "";
  double tick = w->seconds / 8 < 1 ? w->seconds / 8 : 1, waited = 0, before = ch_machine_seconds();
  uint64_t moves = 0;
  pthread_mutex_lock(&w->lock);
  while (!w->ending && waited < w->seconds) {
    sleep_locked(w, tick);
    double now = ch_machine_seconds(), passed = now - before;
    before = now;
    waited += passed < 2 * tick ? passed : 2 * tick; /* a longer time: this process was stopped too */
    if (!w->waiting || w->moves != moves) waited = 0;
    moves = w->moves;
  }
  if (!w->ending) describe_wait(w, text, sizeof text);
  pthread_mutex_unlock(&w->lock);
  if (*text && w->event) w->event(w->context, &(choir_event){.kind = CHOIR_EVENT_SILENT, .notice = text});
  return NULL;
}

/* Exchanges greetings by the table's own functions, because collective.h depends on this file. */
static int greet(const ch_comm *comm, ch_watch *w) {
  greeting all[CH_RANKS] = {{{0}, 0}};
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  gethostname(all[comm->rank].host, HOST_BYTES - 1);
  all[comm->rank].build = ch_build_number();
  for (int r = 0; r < comm->size; r++) {
    const int64_t bytes = r == comm->rank ? 0 : sizeof *all;
    send[r] = (ch_bytes){&all[comm->rank], bytes};
    receive[r] = (ch_bytes){&all[r], bytes};
  }
  ch_transfer t = {.what = "names of hosts", .send = send, .receive = receive, .place = -1};
  t.number = ++comm->traffic->exchanges;
  comm->begin(comm, &t);
  ch_watch_enter(comm, &t, CH_ENDED);
  comm->wait(comm, &t, CH_ENDED);
  ch_watch_leave(comm);
  pthread_mutex_lock(&w->lock);
  for (int r = 0; r < comm->size; r++) memcpy(w->peer[r].host, all[r].host, HOST_BYTES - 1);
  pthread_mutex_unlock(&w->lock);
  for (int r = 1; r < comm->size; r++)
    if (all[r].build != all[0].build)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "rank %d of %d (%s) has another build of choir than rank 0 (%s): start the same program on all",
                      r, comm->size, w->peer[r].host, w->peer[0].host);
  return CHOIR_OK;
}

int ch_watch_start(const ch_comm *comm, double seconds, choir_event_callback event, void *context) {
  ch_watch *w = comm->watch;
  sigset_t before;
  if (!w || w->started) return CHOIR_OK;
  w->comm = comm;
  w->seconds = seconds;
  w->event = event;
  w->context = context;
  ch_signals_hold(&before); /* the watch's thread must not receive signals */
  w->started = seconds > 0 && !pthread_create(&w->thread, NULL, look_on, w);
  ch_signals_release(&before);
  CH_TRY(greet(comm, w)); /* already watched: a rank may never have started */
  if (seconds > 0 && !w->started) return ch_error(CHOIR_ERROR_MEMORY, "no thread to watch over other ranks");
  return CHOIR_OK;
}

void ch_watch_free(ch_watch *w) {
  if (!w) return;
  pthread_mutex_lock(&w->lock);
  w->ending = 1;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
  if (w->started) pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
}
