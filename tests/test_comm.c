/* Ranks by law, on 1 to 8 processes: what goes round comes back, and sums do not depend on how many add. */
#include "comm/collective.h"
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
  for (int size = 1; size <= FORKED_MOST; size++)
    for (int64_t piece = 7; piece <= FORKED_PIECE; piece += FORKED_PIECE - 7) /* 7: many messages for one span */
      if (forked_run(size, piece, body, NULL)) fail_msg("%d ranks, messages of %d bytes", size, (int)piece);
}

/* ---- exchanges ---- */

/* Numbers that nobody else has. */
static int32_t number(int from, int to, int64_t i) { return (int32_t)(from * 1000003 + to * 10007 + i); }

/* Counts that both sides know: none, many, all to one. */
static int64_t count_of(int kind, int from, int to) {
  if (kind == 0) return 5;
  if (kind == 1) return (int64_t)ch_rng_below(ch_rng_make(3, CH_STREAM_TEST, 5), (uint64_t)(from * 64 + to), 4) * 1000;
  return to == 0 ? 9000 : 0;
}

static int ragged(const ch_comm *comm, void *context) {
  (void)context;
  for (int kind = 0; kind < 3; kind++) {
    ch_bytes send[FORKED_MOST], receive[FORKED_MOST];
    int64_t sent = 0;
    for (int r = 0; r < comm->size; r++) {
      int64_t out = count_of(kind, comm->rank, r), in = count_of(kind, r, comm->rank);
      int32_t *to = malloc((size_t)(out + 1) * sizeof *to), *from = malloc((size_t)(in + 1) * sizeof *from);
      for (int64_t i = 0; i < out; i++) to[i] = number(comm->rank, r, i);
      from[in] = 77;
      send[r] = (ch_bytes){to, out * (int64_t)sizeof *to};
      receive[r] = (ch_bytes){from, in * (int64_t)sizeof *from};
      sent += r == comm->rank ? 0 : send[r].bytes;
    }
    int64_t before = comm->traffic ? comm->traffic->bytes : 0;
    ch_comm_exchange(comm, "test", send, receive);
    must(!comm->traffic || comm->traffic->bytes - before == sent);
    for (int r = 0; r < comm->size; r++) {
      const int32_t *got = receive[r].at;
      int64_t in = count_of(kind, r, comm->rank);
      for (int64_t i = 0; i < in; i++) must(got[i] == number(r, comm->rank, i));
      must(got[in] == 77);
      free(send[r].at), free(receive[r].at);
    }
  }
  return 0;
}

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
  ch_comm_sum(comm, shards, piece, count, room);
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
static void transposes(void **state) { (void)state, on_all(transposed_twice); }
static void gathers_shares(void **state) { (void)state, on_all(gathers); }
static void agrees_on_errors(void **state) { (void)state, on_all(agrees); }
static void sums_are_of_one(void **state) { (void)state, on_all(sums); }

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(exchanges_ragged),
                                     cmocka_unit_test(transposes),
                                     cmocka_unit_test(gathers_shares),
                                     cmocka_unit_test(agrees_on_errors),
                                     cmocka_unit_test(sums_are_of_one),
                                     cmocka_unit_test(says_who_is_silent),
                                     cmocka_unit_test(a_pause_of_all_is_no_silence)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
