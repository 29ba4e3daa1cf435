/* The watch: who is waited for is named by all who wait, with where it was last heard. */
#include "comm/grid.h"
#include "comm/watch.h"
#include "comm_testing.h"

typedef struct {
  atomic_int told;
  pid_t process[FORKED_MAX];
  char text[FORKED_MAX][1024];
} silence;

enum { STOPPED = 2, WATCHERS = 4 };

/* The last rank to report ends the job. */
static int count_report(void *context, const choir_event *event) {
  silence *s = context;
  int at = atomic_fetch_add(&s->told, 1);
  snprintf(s->text[at], sizeof s->text[at], "%s", event->notice);
  if (at == WATCHERS - 2) _exit(3);
  return 0;
}

/* Whoever comes too late to a later exchange was last heard in the one before. */
static int stops(const ch_comm *comm, void *context) {
  test_ok(ch_watch_start(comm, 0.5, count_report, context));
  ch_watch_section(comm, "step", 17);
  must(ch_comm_max(comm, comm->rank) == comm->size - 1);
  if (comm->rank == STOPPED) raise(SIGSTOP);
  ch_watch_section(comm, "step", 18);
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  return 0;
}

/* All other ranks say in which exchange they wait for the stopped rank, and in which one it was last heard. */
static void all_others_say(int (*stopping)(const ch_comm *, void *), const char *waits, const char *heard) {
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(WATCHERS, 0, stopping, s), 1);
  assert_int_equal(atomic_load(&s->told), WATCHERS - 1);
  for (int i = 0; i < WATCHERS - 1; i++)
    if (!strstr(s->text[i], waits) || !strstr(s->text[i], heard) || strchr(s->text[i], ';')) fail_msg("%s", s->text[i]);
  munmap(s, sizeof *s);
}

static void says_who_is_silent(void **state) {
  all_others_say(stops, "has waited for 0.5 s in step 18, exchange 3 (agreement) for rank 2 (",
                 "last heard in step 17, exchange 2 (maximum)");
}

/* One that goes on, and stops before it takes part in the second of two exchanges that the others have begun: the first
 * has come from it, the second has not. */
static int stops_between(const ch_comm *comm, void *context) {
  numbers x[2];
  test_ok(ch_watch_start(comm, 0.5, count_report, context));
  ch_watch_section(comm, "step", 19);
  for (int i = 0; i < 2; i++) {
    prepare(comm, 0, i, &x[i]);
    if (i && comm->rank == STOPPED) {
      ch_comm_finish(comm, &x[0].transfer);
      raise(SIGSTOP);
    }
    ch_comm_begin(comm, &x[i].transfer, i ? "second" : "first", x[i].send, x[i].receive);
  }
  for (int i = 0; i < 2; i++) ch_comm_finish(comm, &x[i].transfer);
  return 0;
}

static void says_who_is_silent_in_what_was_begun(void **state) {
  all_others_say(stops_between, "has waited for 0.5 s in step 19, exchange 3 (second) for rank 2 (",
                 "last heard in step 19, exchange 2 (first)");
}

/* In a group, who is waited for is told by its number among all. */
static int stops_in_a_group(const ch_comm *comm, void *context) {
  ch_grid grid;
  test_ok(ch_grid_make(comm, 2, 1, &grid));
  test_ok(ch_watch_start(comm, 0.5, count_report, context));
  must(ch_comm_max(comm, comm->rank) == comm->size - 1);
  if (comm->rank == STOPPED) raise(SIGSTOP);
  ch_comm_max(&grid.replica, 0);
  ch_comm_max(&grid.dp_group, 0);
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  return 0;
}

/* Ranks 2 and 3 are a replica, 0 and 2 hold the same experts, and so do 1 and 3. */
static void says_who_is_silent_in_a_group(void **state) {
  static const char *const waits[] = {"exchange 4 (maximum) for rank 2 (", "exchange 4 (maximum) for rank 3 (", NULL,
                                      "exchange 3 (maximum) for rank 2 ("};
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(WATCHERS, 0, stops_in_a_group, s), 1);
  for (int i = 0; i < WATCHERS - 1; i++) {
    int rank = atoi(s->text[i] + strlen("rank "));
    if (rank == STOPPED || !strstr(s->text[i], waits[rank])) fail_msg("%s", s->text[i]);
  }
  munmap(s, sizeof *s);
}

/* A rank that stops before its first exchange is named, too. */
static int rank_without_exchange(const ch_comm *comm, void *context) {
  if (comm->rank == STOPPED) raise(SIGSTOP);
  test_ok(ch_watch_start(comm, 0.5, count_report, context));
  return 0;
}

static void names_ranks_that_never_started(void **state) {
  all_others_say(rank_without_exchange,
                 "has waited for 0.5 s in set-up, exchange 1 (names of hosts) for rank 2, not heard yet", "of 4");
}

/* Of many that are silent four are named, and the rest are counted. */
static int names_four_silent_ranks(void *context, const choir_event *event) {
  silence *s = context;
  snprintf(s->text[0], sizeof s->text[0], "%s", event->notice);
  _exit(3);
}

static int all_others_stop(const ch_comm *comm, void *context) {
  test_ok(ch_watch_start(comm, 0.5, names_four_silent_ranks, context));
  must(ch_comm_max(comm, comm->rank) == comm->size - 1);
  if (comm->rank) raise(SIGSTOP);
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  return 0;
}

static void says_how_many_are_silent(void **state) {
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int silent = 4; silent <= 6; silent++) {
    char more[32] = "";
    if (silent > 4) snprintf(more, sizeof more, "; and %d more", silent - 4);
    assert_int_equal(forked_run(silent + 1, 0, all_others_stop, s), 1);
    const char *last = strstr(s->text[0], "; rank 4 ("), *end = last ? strstr(last, "(maximum)") : NULL;
    if (!strstr(s->text[0], " for rank 1 (") || !end || strcmp(end + strlen("(maximum)"), more))
      fail_msg("%s", s->text[0]);
  }
  munmap(s, sizeof *s);
}

/* Both are stopped for longer than the limit and go on: nobody was silent. */
static int pauses(const ch_comm *comm, void *context) {
  silence *s = context;
  s->process[comm->rank] = getpid();
  test_ok(ch_watch_start(comm, 1, count_report, context));
  if (comm->rank == 0 && fork() == 0) {
    while (!s->process[0] || !s->process[1]) usleep(1000);
    usleep(200000);
    for (int r = 0; r < 2; r++) test_signal(s->process[r], SIGSTOP);
    usleep(2000000);
    for (int r = 0; r < 2; r++) test_signal(s->process[r], SIGCONT);
    _exit(0);
  }
  for (int i = 0; i < 10 && comm->rank == 1; i++) usleep(50000); /* most of them after the pause */
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  must(atomic_load(&s->told) == 0);
  if (comm->rank == 0) must(wait(NULL) > 0);
  return 0;
}

static void a_pause_of_all_is_no_silence(void **state) {
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(2, 0, pauses, s), 0);
  munmap(s, sizeof *s);
}

TEST_MAIN(NULL, NULL, says_who_is_silent, says_who_is_silent_in_what_was_begun, says_who_is_silent_in_a_group,
          names_ranks_that_never_started, says_how_many_are_silent, a_pause_of_all_is_no_silence)
