/* Ranks by law, on 1 to 8 processes: what goes round comes back, and sums do not depend on how many add. */
#include "comm/collective.h"
#include "comm/grid.h"
#include "forked_comm.h"
#include "testing.h"

/* A failed check ends the process, and with it the test. */
#define must(condition)                                                                                      \
  do {                                                                                                       \
    if (!(condition)) {                                                                                      \
      fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, comm->rank, comm->size, #condition); \
      return 1;                                                                                              \
    }                                                                                                        \
  } while (0)

static void on_all(int (*body)(const ch_comm *, void *)) {
  for (int size = 1; size <= 8; size++)
    for (int64_t piece = 7; piece <= FORKED_PIECE; piece += FORKED_PIECE - 7) /* 7: many messages for one span */
      if (forked_run(size, piece, body, NULL)) fail_msg("%d ranks, messages of %d bytes", size, (int)piece);
}

/* ---- exchanges ---- */

/* Numbers that nobody else has. */
static int32_t number(int from, int to, int64_t i) { return (int32_t)(from * 1000003 + to * 10007 + i); }

/* Counts that both sides know: few, none or many, all to one; from FEWER on the same of fewer. */
enum { FEWER = 3 };
static int64_t count_of(int kind, int from, int to) {
  if (kind >= FEWER) return count_of(kind - FEWER, from, to) / 100;
  if (kind == 0) return 5;
  if (kind == 1) return (int64_t)ch_rng_below(ch_rng_make(3, CH_STREAM_TEST, 5), (uint64_t)(from * 64 + to), 4) * 1000;
  return to == 0 ? 9000 : 0;
}

/* One exchange with numbers of its own, and what it must leave. */
typedef struct {
  ch_transfer transfer;
  int kind, salt;
  int32_t *to[FORKED_MOST], *from[FORKED_MOST];
  ch_bytes send[FORKED_MOST], receive[FORKED_MOST];
  int64_t sent; /* bytes */
} numbers;

static void prepare(const ch_comm *comm, int kind, int salt, numbers *x) {
  *x = (numbers){.kind = kind, .salt = salt};
  for (int r = 0; r < comm->size; r++) {
    int64_t out = count_of(kind, comm->rank, r), in = count_of(kind, r, comm->rank);
    x->to[r] = malloc((size_t)(out + 1) * sizeof **x->to);
    x->from[r] = malloc((size_t)(in + 1) * sizeof **x->from);
    for (int64_t i = 0; i < out; i++) x->to[r][i] = number(comm->rank, r, i) + salt;
    for (int64_t i = 0; i <= in; i++) x->from[r][i] = 77;
    x->send[r] = (ch_bytes){x->to[r], out * (int64_t)sizeof **x->to};
    x->receive[r] = (ch_bytes){x->from[r], in * (int64_t)sizeof **x->from};
    x->sent += r == comm->rank ? 0 : x->send[r].bytes;
  }
}

static int check(const ch_comm *comm, const numbers *x) {
  for (int r = 0; r < comm->size; r++) {
    int64_t in = count_of(x->kind, r, comm->rank);
    for (int64_t i = 0; i < in; i++) must(x->from[r][i] == number(r, comm->rank, i) + x->salt);
    must(x->from[r][in] == 77);
  }
  return 0;
}

static void numbers_free(numbers *x) {
  for (int r = 0; r < FORKED_MOST; r++) free(x->to[r]), free(x->from[r]);
}

static int exchanges_of(const ch_comm *comm) {
  for (int kind = 0; kind < 3; kind++) {
    numbers x;
    prepare(comm, kind, 0, &x);
    int64_t before = comm->traffic ? comm->traffic->bytes : 0;
    ch_comm_exchange(comm, "test", x.send, x.receive);
    must(!comm->traffic || comm->traffic->bytes - before == x.sent);
    if (check(comm, &x)) return 1;
    numbers_free(&x);
  }
  return 0;
}

/* As many as there may be, begun in one order and ended in another, which differs from rank to rank, with a whole
 * exchange in between. What has arrived is there; what is sent may be changed when it has ended. */
static int under_way(const ch_comm *comm, void *context) {
  (void)context;
  static numbers x[CH_TRANSFERS - 1];
  enum { COUNT = sizeof x / sizeof *x };
  for (int i = 0; i < COUNT; i++) {
    prepare(comm, i % 3 + (comm->piece == 7 ? FEWER : 0), 1 + i, &x[i]);
    ch_comm_begin(comm, &x[i].transfer, "test", x[i].send, x[i].receive);
    if (i == COUNT / 2) must(ch_comm_max(comm, comm->rank) == comm->size - 1);
    ch_comm_test(comm, &x[i / 2].transfer);
  }
  for (int i = 0; i < COUNT; i++) {
    numbers *at = &x[(comm->rank + 2 * i) % COUNT]; /* COUNT is odd */
    ch_comm_arrive(comm, &at->transfer);
    if (check(comm, at)) return 1;
    if (i % 3 == 0)
      while (!ch_comm_test(comm, &at->transfer)) sched_yield();
    ch_comm_finish(comm, &at->transfer);
    must(ch_comm_test(comm, &at->transfer));
    for (int r = 0; r < comm->size; r++)
      for (int64_t k = 0; k < count_of(at->kind, comm->rank, r); k++) at->to[r][k] = -1;
  }
  must(ch_comm_max(comm, 5) == 5); /* nobody has anything left to send */
  for (int i = 0; i < COUNT; i++) {
    if (check(comm, &x[i])) return 1;
    numbers_free(&x[i]);
  }
  return 0;
}

static int ragged(const ch_comm *comm, void *context) { return (void)context, exchanges_of(comm); }

/* Blocks of a matrix change places with their mirror images: twice is the identity. */
static int transposed_twice(const ch_comm *comm, void *context) {
  (void)context;
  enum { COUNT = 37 };
  int32_t x[FORKED_MOST * COUNT], y[FORKED_MOST * COUNT], z[FORKED_MOST * COUNT];
  ch_bytes a[FORKED_MOST], b[FORKED_MOST], c[FORKED_MOST];
  for (int i = 0; i < comm->size * COUNT; i++) x[i] = number(comm->rank, 0, i);
  for (int r = 0; r < comm->size; r++) {
    a[r] = (ch_bytes){x + r * COUNT, sizeof *x * COUNT};
    b[r] = (ch_bytes){y + r * COUNT, sizeof *y * COUNT};
    c[r] = (ch_bytes){z + r * COUNT, sizeof *z * COUNT};
  }
  ch_comm_exchange(comm, "test", a, b);
  for (int r = 0; r < comm->size; r++) must(y[r * COUNT] == number(r, 0, comm->rank * COUNT));
  for (int r = 0; r < comm->size; r++) b[r] = (ch_bytes){y + r * COUNT, sizeof *y * COUNT};
  ch_comm_exchange(comm, "test", b, c);
  must(!memcmp(x, z, sizeof *x * COUNT * (size_t)comm->size));
  return 0;
}

static int gathers(const ch_comm *comm, void *context) {
  (void)context;
  enum { COUNT = 29 }; /* shares differ by one, and there may be more ranks than things */
  for (int count = 1; count <= COUNT; count += 7) {
    double all[COUNT] = {0};
    for (int64_t i = ch_share(count, comm->rank, comm->size); i < ch_share(count, comm->rank + 1, comm->size); i++)
      all[i] = 1.5 * (double)(i + 1);
    ch_comm_gather_shares(comm, "test", all, count, sizeof *all);
    for (int i = 0; i < COUNT; i++) must(all[i] == (i < count ? 1.5 * (i + 1) : 0));
  }
  must(ch_comm_max(comm, 3 + comm->rank % 5) == 3 + (comm->size < 5 ? comm->size - 1 : 4));
  return 0;
}

/* An error of one is that of all; of two the worse, of equal ones the lower rank's. */
static int agrees(const ch_comm *comm, void *context) {
  (void)context;
  char want[64];
  must(ch_comm_agree(comm, CHOIR_OK) == CHOIR_OK);
  for (int bad = 0; bad < comm->size; bad++) {
    int code = comm->rank == bad ? ch_error(CHOIR_ERROR_FORMAT, "file of %d", bad) : CHOIR_OK;
    if (comm->rank == (bad + 1) % comm->size && comm->size > 1) code = ch_error(CHOIR_ERROR_ARGUMENT, "less bad");
    must(ch_comm_agree(comm, code) == CHOIR_ERROR_FORMAT);
    if (bad)
      snprintf(want, sizeof want, "rank %d of %d: file of %d", bad, comm->size, bad);
    else
      snprintf(want, sizeof want, "file of 0");
    must(!strcmp(choir_error_message(), want));
  }
  must(ch_comm_agree(comm, ch_error(CHOIR_ERROR_IO, "all of %d", comm->rank)) == CHOIR_ERROR_IO);
  must(!strcmp(choir_error_message(), "all of 0"));
  return 0;
}

/* ---- sums ---- */

enum { SHARDS = 24, SOME = 13, MANY = (1 << 16) * 9 + 5 }; /* more than one round of every number of ranks */

static real part_of(int shard, int64_t i) { return (real)(1.0 / (3 + shard) + (double)(i % 1000) * 1e-3 * shard); }

static real naive(int lo, int hi, int64_t i) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? part_of(lo, i) : naive(lo, mid, i) + naive(mid, hi, i);
}

static int sums_of(const ch_comm *comm, int shards, int64_t count) {
  ch_piece pieces[CH_SUM_PIECES];
  real *piece[CH_SUM_PIECES], *room = calloc((size_t)ch_comm_sum_room(comm, shards) + 1, sizeof *room);
  int of = ch_comm_pieces(shards, comm->rank, comm->size, pieces), at = shards / comm->size * comm->rank;
  for (int p = 0; p < of; p++) {
    must(pieces[p].lo == at && pieces[p].hi > at); /* they cover the rank's shards */
    at = pieces[p].hi;
    piece[p] = malloc((size_t)count * sizeof **piece);
    for (int64_t i = 0; i < count; i++) piece[p][i] = naive(pieces[p].lo, pieces[p].hi, i);
  }
  must(at == shards / comm->size * (comm->rank + 1));
  ch_comm_sum(comm, "test", shards, piece, count, count, room);
  for (int64_t i = 0; i < count; i++) must(piece[0][i] == naive(0, shards, i));
  for (int p = 0; p < of; p++) free(piece[p]);
  free(room);
  return 0;
}

static int sums(const ch_comm *comm, void *context) {
  (void)context;
  double shard[SHARDS];
  for (int shards = comm->size; shards <= SHARDS; shards += comm->size)
    if (sums_of(comm, shards, SOME)) return 1;
  for (int s = 0; s < SHARDS; s++) shard[s] = 1.0 / (3 + s);
  must(ch_add_shards(1, shard) == shard[0] && ch_add_shards(3, shard) == shard[0] + (shard[1] + shard[2]));
  return comm->piece == 7 ? 0 : sums_of(comm, SHARDS / comm->size * comm->size, MANY);
}

/* ---- groups ---- */

/* Every stride-th rank of a group: they reach each other and nobody else, as if there were no others. */
static int law_of_group(const ch_comm *comm, const ch_comm *all, int first, int stride) {
  int64_t numbers[FORKED_MOST], before = all->traffic ? all->traffic->bytes : 0;
  must(comm->rank >= 0 && comm->rank < comm->size && ch_comm_number(comm, comm->rank) == all->rank);
  numbers[comm->rank] = all->rank;
  ch_comm_gather(comm, "test", numbers, sizeof *numbers);
  for (int r = 0; r < comm->size; r++) must(numbers[r] == first + r * stride);
  must(ch_comm_max(comm, all->rank) == first + (comm->size - 1) * stride);
  must(!all->traffic || all->traffic->bytes - before == 2 * (comm->size - 1) * (int64_t)sizeof *numbers);
  return exchanges_of(comm) || sums_of(comm, comm->size, SOME);
}

/* A grid of every shape; and a group of a group, which is one of all. */
static int groups_of(const ch_comm *comm, void *context) {
  (void)context;
  for (int R = 1; R <= comm->size; R++) {
    ch_grid grid;
    int E = comm->size / R, r = comm->rank / E, g = comm->rank % E;
    must(ch_grid_make(comm, R, &grid) == (comm->size % R ? CHOIR_ERROR_ARGUMENT : CHOIR_OK));
    if (comm->size % R) continue;
    must(grid.replica.size == E && grid.replica.rank == g && grid.holders.size == R && grid.holders.rank == r);
    if (law_of_group(&grid.replica, comm, r * E, 1) || law_of_group(&grid.holders, comm, g, E)) return 1;
    static numbers x[2]; /* both under way at a time */
    const ch_comm *of[] = {&grid.replica, &grid.holders};
    for (int i = 0; i < 2; i++) {
      prepare(of[i], 1, i, &x[i]);
      ch_comm_begin(of[i], &x[i].transfer, "test", x[i].send, x[i].receive);
    }
    for (int i = 1; i >= 0; i--) {
      ch_comm_finish(of[i], &x[i].transfer);
      if (check(of[i], &x[i])) return 1;
      numbers_free(&x[i]);
    }
    if (E % 2) continue;
    const ch_comm part = ch_comm_group(&grid.replica, g % 2, 2, E / 2);
    if (law_of_group(&part, comm, r * E + g % 2, 2)) return 1;
  }
  return 0;
}

/* ---- the watch ---- */

typedef struct {
  atomic_int told;
  pid_t process[FORKED_MOST];
  char text[FORKED_MOST][1024];
} silence;

enum { STOPPED = 2, WATCHERS = 4 };

/* The last of the others ends itself, and so all. */
static void tell(void *context, const char *text) {
  silence *s = context;
  int at = atomic_fetch_add(&s->told, 1);
  snprintf(s->text[at], sizeof s->text[at], "%s", text);
  if (at == WATCHERS - 2) _exit(3);
}

/* Whoever comes too late to a later exchange was last heard in the one before. */
static int stops(const ch_comm *comm, void *context) {
  test_ok(ch_watch_start(comm, 0.5, tell, context));
  ch_watch_section(comm, "step", 17);
  must(ch_comm_max(comm, comm->rank) == comm->size - 1);
  if (comm->rank == STOPPED) raise(SIGSTOP);
  ch_watch_section(comm, "step", 18);
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  return 0;
}

static void says_who_is_silent(void **state) {
  (void)state;
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(WATCHERS, 0, stops, s), 1);
  assert_int_equal(atomic_load(&s->told), WATCHERS - 1);
  for (int i = 0; i < WATCHERS - 1; i++)
    if (!strstr(s->text[i], "has waited for 0.5 s in step 18, exchange 3 (agreement) for rank 2 (") ||
        !strstr(s->text[i], "last heard in step 17, exchange 2 (maximum)") || strchr(s->text[i], ';'))
      fail_msg("%s", s->text[i]);
  munmap(s, sizeof *s);
}

/* One that goes on, and stops before it takes part in the second of two exchanges that the others have begun: the first
 * has come from it, the second has not. */
static int stops_between(const ch_comm *comm, void *context) {
  numbers x[2];
  test_ok(ch_watch_start(comm, 0.5, tell, context));
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
  (void)state;
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(WATCHERS, 0, stops_between, s), 1);
  assert_int_equal(atomic_load(&s->told), WATCHERS - 1);
  for (int i = 0; i < WATCHERS - 1; i++)
    if (!strstr(s->text[i], "has waited for 0.5 s in step 19, exchange 3 (second) for rank 2 (") ||
        !strstr(s->text[i], "last heard in step 19, exchange 2 (first)") || strchr(s->text[i], ';'))
      fail_msg("%s", s->text[i]);
  munmap(s, sizeof *s);
}

/* In a group, who is waited for is told by its number among all. */
static int stops_in_a_group(const ch_comm *comm, void *context) {
  ch_grid grid;
  test_ok(ch_grid_make(comm, 2, &grid));
  test_ok(ch_watch_start(comm, 0.5, tell, context));
  must(ch_comm_max(comm, comm->rank) == comm->size - 1);
  if (comm->rank == STOPPED) raise(SIGSTOP);
  ch_comm_max(&grid.replica, 0);
  ch_comm_max(&grid.holders, 0);
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  return 0;
}

/* Ranks 2 and 3 are a replica, 0 and 2 hold the same experts, and so do 1 and 3. */
static void says_who_is_silent_in_a_group(void **state) {
  (void)state;
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

/* Both are stopped for longer than the limit and go on: nobody was silent. */
static int pauses(const ch_comm *comm, void *context) {
  silence *s = context;
  s->process[comm->rank] = getpid();
  test_ok(ch_watch_start(comm, 1, tell, context));
  if (comm->rank == 0 && fork() == 0) {
    usleep(200000);
    for (int r = 0; r < 2; r++) kill(s->process[r], SIGSTOP);
    usleep(2000000);
    for (int r = 0; r < 2; r++) kill(s->process[r], SIGCONT);
    _exit(0);
  }
  for (int i = 0; i < 10 && comm->rank == 1; i++) usleep(50000); /* most of them after the pause */
  test_ok(ch_comm_agree(comm, CHOIR_OK));
  must(atomic_load(&s->told) == 0);
  if (comm->rank == 0) must(wait(NULL) > 0);
  return 0;
}

static void a_pause_of_all_is_no_silence(void **state) {
  (void)state;
  silence *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_int_equal(forked_run(2, 0, pauses, s), 0);
  munmap(s, sizeof *s);
}

static void exchanges_ragged(void **state) { (void)state, on_all(ragged); }
static void exchanges_under_way(void **state) { (void)state, on_all(under_way); }
static void transposes(void **state) { (void)state, on_all(transposed_twice); }
static void gathers_shares(void **state) { (void)state, on_all(gathers); }
static void agrees_on_errors(void **state) { (void)state, on_all(agrees); }
static void sums_are_of_one(void **state) { (void)state, on_all(sums); }
static void groups_are_alone(void **state) {
  for (int size = 1; size <= 8; size++) assert_int_equal(forked_run(size, 0, groups_of, *state), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(exchanges_ragged),
                                     cmocka_unit_test(exchanges_under_way),
                                     cmocka_unit_test(transposes),
                                     cmocka_unit_test(gathers_shares),
                                     cmocka_unit_test(agrees_on_errors),
                                     cmocka_unit_test(sums_are_of_one),
                                     cmocka_unit_test(groups_are_alone),
                                     cmocka_unit_test(says_who_is_silent),
                                     cmocka_unit_test(says_who_is_silent_in_what_was_begun),
                                     cmocka_unit_test(says_who_is_silent_in_a_group),
                                     cmocka_unit_test(a_pause_of_all_is_no_silence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
