/* Ranks by law, on 1 to 8 processes: what goes round comes back, and sums do not depend on how many add. */
#include "comm/grid.h"
#include "comm_testing.h"

static void on_all(int (*body)(const ch_comm *, void *)) {
  for (int size = 1; size <= 8; size++)
    for (int64_t piece = 7; piece <= FORKED_PIECE; piece += FORKED_PIECE - 7) /* 7: many messages for one span */
      if (forked_run(size, piece, body, NULL)) fail_msg("%d ranks, messages of %d bytes", size, (int)piece);
}

/* ---- exchanges ---- */

static int exchanges_of(const ch_comm *comm) {
  for (int kind = 0; kind < 3; kind++) {
    numbers x;
    prepare(comm, kind, 0, &x);
    ch_traffic before = comm->traffic ? *comm->traffic : (ch_traffic){0};
    int64_t messages = 0; /* spans in pieces, of which the last may be less */
    for (int r = 0; r < comm->size; r++)
      if (r != comm->rank) messages += x.send[r].bytes / comm->piece + (x.send[r].bytes % comm->piece > 0);
    ch_comm_exchange(comm, "test", x.send, x.receive);
    must(!comm->traffic || comm->traffic->bytes - before.bytes == x.sent);
    must(!comm->traffic || comm->traffic->messages - before.messages == messages);
    if (check(comm, &x)) return 1;
    numbers_free(&x);
  }
  return 0;
}

/* As many as there may be, begun in one order and ended in another, which differs from rank to rank, with a whole
 * exchange in between. A transfer that has ended has all its bytes, and the sender may write over its own. */
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
  int32_t x[FORKED_MAX * COUNT], y[FORKED_MAX * COUNT], z[FORKED_MAX * COUNT];
  ch_bytes a[FORKED_MAX], b[FORKED_MAX], c[FORKED_MAX];
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

/* Lists of 0 to 4 elements, except that the first rank has most. */
static int gathers_lists(const ch_comm *comm, void *context) {
  (void)context;
  enum { COUNT = 11, FIRST = 200 };
  for (int count = 1; count <= COUNT; count += 5) {
    int begin[COUNT + 1] = {0}, all[FIRST + 5 * COUNT], own[FIRST + 5 * COUNT];
    for (int i = 0; i < count; i++) begin[i + 1] = begin[i] + (i ? i * i % 5 : FIRST);
    const ch_range lists = ch_local_range(comm, count);
    for (int s = begin[lists.first]; s < begin[lists.last]; s++) own[s - begin[lists.first]] = number(3, 1, s);
    ch_comm_gather_lists(comm, "test", own, all, count, begin, sizeof *all);
    for (int s = 0; s < begin[count]; s++) must(all[s] == number(3, 1, s));
  }
  return 0;
}

/* Each rank has rows of a matrix and receives columns of it. */
static int columns_of_rows(const ch_comm *comm, void *context) {
  (void)context;
  enum { ROWS = 3, COLUMNS = 5 };
  int own[ROWS * COLUMNS], packed[ROWS * COLUMNS], received[FORKED_MAX * ROWS * COLUMNS], *at = received;
  for (int i = 0; i < ROWS * COLUMNS; i++) own[i] = number(comm->rank, i / COLUMNS, i % COLUMNS);
  ch_comm_columns(comm, "test", ROWS, COLUMNS, sizeof *own, own, packed, received);
  const ch_range mine = ch_local_range(comm, COLUMNS);
  for (int row = 0; row < comm->size * ROWS; row++)
    for (int c = mine.first; c < mine.last; c++) must(*at++ == number(row / ROWS, row % ROWS, c));
  return 0;
}

/* At once, or with other exchanges in between. */
static void spread(const ch_comm *comm, ch_broadcasts *s) {
  if (comm->piece != 7) {
    ch_comm_broadcast_end(comm, s);
    return;
  }
  ch_comm_broadcast_next(comm, s);
  ch_comm_max(comm, 1);
  ch_comm_broadcast_move(comm, s);
  ch_comm_broadcast_next(comm, s);
  ch_comm_max(comm, 2);
  ch_comm_broadcast_end(comm, s);
}

/* Spreads arrays of several owners, some of them twice, and more arrays than are under way at a time; some are less
 * than there are ranks. An owner sends what there is, once, and everybody else a share to all but two. */
static int spreads(const ch_comm *comm, void *context) {
  (void)context;
  enum { COUNT = CH_AT_ONCE + 3 };
  static const int64_t few[COUNT] = {1, 300, 50, 0, 700, 5, 2, 99, 400, 1, 30},
                       many[COUNT] = {1, 3 * FORKED_WORTH, 50, 0, 8 * 9 * FORKED_WORTH, 5, 2, 1 << 14, 7, 1 << 15, 1};
  const int64_t *bytes = comm->piece == 7 ? few : many;
  static uint8_t data[COUNT][8 * 9 * FORKED_WORTH];
  static ch_bytes spans[CH_AT_ONCE * CH_SPANS * FORKED_MAX];
  ch_broadcast some[COUNT];
  int64_t sent = 2 * (comm->size - 1) * (int64_t)sizeof(int64_t) * (comm->piece == 7);
  int64_t before = comm->traffic ? comm->traffic->bytes : 0;
  for (int k = 0; k < COUNT; k++) {
    some[k] = (ch_broadcast){3 * k % comm->size, data[k], bytes[k]};
    for (int64_t i = 0; i < bytes[k]; i++) data[k][i] = comm->rank == some[k].owner ? (uint8_t)(i * (k + 7) >> 3) : 0;
    if (comm->size == 1) continue;
    int place = comm->rank - (comm->rank > some[k].owner), others = comm->size - 1;
    int64_t share = ch_share(bytes[k], place + 1, others) - ch_share(bytes[k], place, others);
    sent += comm->rank == some[k].owner ? bytes[k] : share * (comm->size - 2);
  }
  spread(comm, &(ch_broadcasts){.what = "test", .left = some, .count = COUNT, .spans = spans});
  for (int k = 0; k < COUNT; k++)
    for (int64_t i = 0; i < bytes[k]; i++) must(data[k][i] == (uint8_t)(i * (k + 7) >> 3));
  must(!comm->traffic || comm->traffic->bytes - before == sent);
  return 0;
}

/* All ranks get the error of the one that failed; of two errors the worse, of equal errors the lower rank's. */
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

/* Equal facts are no error; all ranks name the first fact that differs, at any place in the list. */
static int same_facts(const ch_comm *comm, void *context) {
  (void)context;
  char want[64];
  for (int odd = -1; odd < 3; odd++) {
    ch_fact fact[] = {{"first", 1}, {"second", 2}, {"third", 3}};
    if (odd >= 0 && comm->rank == comm->size - 1) fact[odd].value++;
    must(CH_SAME(comm, fact) == (odd < 0 || comm->size == 1 ? CHOIR_OK : CHOIR_ERROR_ARGUMENT));
    if (odd < 0 || comm->size == 1) continue;
    snprintf(want, sizeof want, "rank %d of %d has another %s than rank 0", comm->size - 1, comm->size, fact[odd].name);
    must(strstr(choir_error_message(), want));
  }
  return 0;
}

/* ---- sums ---- */

enum { SHARDS = 24, SOME = 13, MANY = (1 << 16) * 9 + 5 }; /* more than one round of every number of ranks */

static real part_of(int shard, int64_t i) { return (real)(1.0 / (3 + shard) + (double)(i % 1000) * 1e-3 * shard); }

static real naive(int lo, int hi, int64_t i) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? part_of(lo, i) : naive(lo, mid, i) + naive(mid, hi, i);
}

typedef struct {
  real *piece[CH_SUM_PIECES];
  ch_comm_array array;
} summed;

static int pieces_of(const ch_comm *comm, int shards, int64_t count, const ch_receivers *to, summed *s) {
  ch_piece pieces[CH_SUM_PIECES];
  int of = ch_comm_pieces(shards, comm->rank, comm->size, pieces), at = shards / comm->size * comm->rank;
  s->array = (ch_comm_array){s->piece, count, count, to};
  for (int p = 0; p < of; p++) {
    must(pieces[p].lo == at && pieces[p].hi > at); /* they cover the rank's shards */
    at = pieces[p].hi;
    s->piece[p] = malloc((size_t)count * sizeof **s->piece);
    for (int64_t i = 0; i < count; i++) s->piece[p][i] = naive(pieces[p].lo, pieces[p].hi, i);
  }
  must(at == shards / comm->size * (comm->rank + 1));
  return 0;
}

/* Sums two arrays at once. The first one's sum is on every `every`-th rank from `first` on. */
static int sums_to(const ch_comm *comm, int shards, int64_t count, const ch_receivers *to) {
  summed s[2] = {0};
  ch_arena arena;
  ch_arena_init(&arena, "test", &ch_memory_host);
  ch_comm_sum_buffers(comm, shards, 2, &arena);
  must(ch_arena_commit(&arena) == CHOIR_OK);
  const ch_sum_buffers buffers = ch_comm_sum_buffers(comm, shards, 2, &arena);
  if (pieces_of(comm, shards, count, to, &s[0]) || pieces_of(comm, shards, SOME + 1, NULL, &s[1])) return 1;
  ch_comm_sum(comm, "test", shards, (ch_comm_array[]){s[0].array, s[1].array}, 2, &buffers);
  for (int k = 0; k < 2; k++) {
    for (int64_t i = 0; i < s[k].array.count && (k || !to || ch_receives(to, comm->rank)); i++)
      must(s[k].piece[0][i] == naive(0, shards, i));
    for (int p = 0; p < CH_SUM_PIECES; p++) free(s[k].piece[p]);
  }
  ch_arena_free(&arena);
  return 0;
}

static int sums_of(const ch_comm *comm, int shards, int64_t count) {
  int64_t before = comm->traffic ? comm->traffic->bytes : 0;
  if (sums_to(comm, shards, count, NULL)) return 1;
  int64_t to_all = comm->traffic ? comm->traffic->bytes - before : 0;
  for (int every = 1; every <= comm->size; every++)
    for (int first = 0; first < every && comm->size % every == 0; first += every - first > 1 ? every - first - 1 : 1) {
      before = comm->traffic ? comm->traffic->bytes : 0;
      if (sums_to(comm, shards, count, &(ch_receivers){first, every})) return 1;
      int64_t sent = comm->traffic ? comm->traffic->bytes - before : 0;
      int fewer = every > 1 && count >= comm->size && comm->rank % every == first;
      must(fewer ? sent < to_all : sent <= to_all);
    }
  return 0;
}

static int sums(const ch_comm *comm, void *context) {
  (void)context;
  double shard[SHARDS];
  for (int shards = comm->size; shards <= SHARDS; shards += comm->size)
    if (sums_of(comm, shards, SOME)) return 1;
  for (int s = 0; s < SHARDS; s++) shard[s] = 1.0 / (3 + s);
  must(ch_add_grad_chunks(1, shard) == shard[0] && ch_add_grad_chunks(3, shard) == shard[0] + (shard[1] + shard[2]));
  return comm->piece == 7 ? 0 : sums_of(comm, SHARDS / comm->size * comm->size, MANY);
}

/* ---- groups ---- */

/* A group of every stride-th rank: its members exchange with each other only, numbered from 0. */
static int law_of_group(const ch_comm *comm, const ch_comm *all, int first, int stride) {
  int64_t own = all->rank, numbers[FORKED_MAX], before = all->traffic ? all->traffic->bytes : 0;
  must(comm->rank >= 0 && comm->rank < comm->size && ch_comm_number(comm, comm->rank) == all->rank);
  ch_comm_gather(comm, "test", &own, numbers, sizeof own);
  for (int r = 0; r < comm->size; r++) must(numbers[r] == first + r * stride);
  must(ch_comm_max(comm, all->rank) == first + (comm->size - 1) * stride);
  must(!all->traffic || all->traffic->bytes - before == 2 * (comm->size - 1) * (int64_t)sizeof *numbers);
  return exchanges_of(comm) || sums_of(comm, comm->size, SOME);
}

/* Both under way at a time. */
static int both_at_once(const ch_comm *const *of) {
  static numbers x[2];
  for (int i = 0; i < 2; i++) {
    prepare(of[i], 1, i, &x[i]);
    ch_comm_begin(of[i], &x[i].transfer, "test", x[i].send, x[i].receive);
  }
  for (int i = 1; i >= 0; i--) {
    ch_comm_finish(of[i], &x[i].transfer);
    if (check(of[i], &x[i])) return 1;
    numbers_free(&x[i]);
  }
  return 0;
}

/* A grid of so many replicas and hidden shards; and a group of a group, which is one of all. */
static int grid_of(const ch_comm *comm, int R, int H) {
  ch_grid grid;
  int size = comm->size / R, E = size / H, r = comm->rank / size, place = comm->rank % size, g = place / H,
      s = place % H;
  must(ch_grid_make(comm, R, H, &grid) == CHOIR_OK);
  must(grid.replica.size == size && grid.replica.rank == place && grid.dp_group.size == R && grid.dp_group.rank == r);
  must(grid.ep_group.size == E && grid.ep_group.rank == g && grid.tp_group.size == H && grid.tp_group.rank == s);
  if (law_of_group(&grid.replica, comm, r * size, 1) || law_of_group(&grid.dp_group, comm, place, size)) return 1;
  if (law_of_group(&grid.ep_group, comm, r * size + s, H) || law_of_group(&grid.tp_group, comm, comm->rank - s, 1))
    return 1;
  if (both_at_once((const ch_comm *[]){&grid.replica, &grid.dp_group})) return 1;
  const ch_comm apart = ch_comm_group(&grid.dp_group, r % 2, 2, R / 2); /* of ranks that stand apart already */
  if (R % 2 == 0 && law_of_group(&apart, comm, r % 2 * size + place, 2 * size)) return 1;
  const ch_comm part = ch_comm_group(&grid.replica, place % 2, 2, size / 2);
  return size % 2 == 0 && law_of_group(&part, comm, r * size + place % 2, 2);
}

static int groups_of(const ch_comm *comm, void *context) {
  (void)context;
  for (int R = 1; R <= comm->size; R++)
    for (int H = 1; H <= comm->size; H++) {
      ch_grid grid;
      int divides = comm->size % R == 0 && comm->size / R % H == 0;
      must(divides || ch_grid_make(comm, R, H, &grid) == CHOIR_ERROR_ARGUMENT);
      if (divides && grid_of(comm, R, H)) return 1;
    }
  return 0;
}

/* What does not divide is refused with what would. */
static void grids_that_do_not_divide(void **state) {
  static const struct {
    int size, replicas, hidden;
    const char *says;
  } odd[] = {
      {1, 2, 1, "2 replicas of the experts on 1 process, which they must divide: take one of 1, or"},
      {4, 3, 1, "3 replicas of the experts on 4 processes, which they must divide: take one of 1, 2, 4, or"},
      {4, 0, 1, "0 replicas of the experts on 4 processes, which"},
      {4, 1, 3, "3 hidden shards of the experts on 4 processes, which they must divide: take one of 1, 2, 4, or"},
      {6, 2, 2,
       "2 hidden shards of the experts on 3 processes of a replica, which they must divide: take one of "
       "1, 3, or"}};
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    ch_grid grid;
    test_fails(ch_grid_make(&(ch_comm){.size = odd[i].size, .stride = 1}, odd[i].replicas, odd[i].hidden, &grid),
               CHOIR_ERROR_ARGUMENT, odd[i].says);
  }
}

static void exchanges_ragged(void **state) { (void)state, on_all(ragged); }
static void exchanges_under_way(void **state) { (void)state, on_all(under_way); }
static void transposes(void **state) { (void)state, on_all(transposed_twice); }
static void gathers_shares(void **state) { (void)state, on_all(gathers); }
static void gathers_ragged_lists(void **state) { (void)state, on_all(gathers_lists); }
static void turns_rows_into_columns(void **state) { (void)state, on_all(columns_of_rows); }
static void spreads_from_owners(void **state) { (void)state, on_all(spreads); }
static void agrees_on_errors(void **state) { (void)state, on_all(agrees); }
static void compares_facts(void **state) { (void)state, on_all(same_facts); }
static void sums_are_of_one(void **state) { (void)state, on_all(sums); }
static void groups_are_alone(void **state) {
  for (int size = 1; size <= 8; size++) assert_int_equal(forked_run(size, 0, groups_of, *state), 0);
}

TEST_MAIN(NULL, NULL, exchanges_ragged, exchanges_under_way, transposes, gathers_shares, gathers_ragged_lists,
          turns_rows_into_columns, agrees_on_errors, compares_facts, sums_are_of_one, groups_are_alone,
          grids_that_do_not_divide, spreads_from_owners)
