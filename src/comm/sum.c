/* Sums over gradient chunks in a fixed tree. */
#include "base/memory.h"
#include "comm/collective.h"

_Static_assert(2 * CH_AT_ONCE < CH_TRANSFERS, "sums may be under way, matrices for the next layer, and one more");

/* Whether one rank has all gradient chunks of the node [lo, hi). local: chunks per rank. */
static int is_piece(int lo, int hi, int local) { return lo / local == (hi - 1) / local; }

static void cover(int lo, int hi, int rank, int local, ch_piece *pieces, int *count) {
  if (hi <= rank * local || lo >= (rank + 1) * local) return;
  if (is_piece(lo, hi, local)) {
    pieces[(*count)++] = (ch_piece){lo, hi};
    return;
  }
  int mid = (lo + hi) / 2;
  cover(lo, mid, rank, local, pieces, count);
  cover(mid, hi, rank, local, pieces, count);
}

int ch_comm_pieces(int grad_chunks, int rank, int size, ch_piece *pieces) {
  int count = 0;
  cover(0, grad_chunks, rank, grad_chunks / size, pieces, &count);
  return count;
}

static int all_pieces(const ch_comm *comm, int grad_chunks, int *of) {
  ch_piece pieces[CH_SUM_PIECES];
  int total = 0;
  for (int r = 0; r < comm->size; r++) total += of[r] = ch_comm_pieces(grad_chunks, r, comm->size, pieces);
  return total;
}

ch_sum_buffers ch_comm_sum_buffers(const ch_comm *comm, int grad_chunks, int arrays, ch_arena *arena) {
  int of[CH_RANKS];
  if (comm->size == 1) return (ch_sum_buffers){0};
  real *piece = CH_NEW_HOST(arena, real, (int64_t)all_pieces(comm, grad_chunks, of) * CH_SUM_SLICE);
  return (ch_sum_buffers){piece, CH_NEW_HOST(arena, ch_bytes, (int64_t)arrays * CH_SPANS * comm->size)};
}

/* At most CH_SUM_SLICE elements of rank r's share of `count`, starting at offset `from` of the share. */
static ch_bytes slice_of(const ch_comm *comm, const real *array, int64_t count, int r, int64_t from) {
  int64_t first = ch_share(count, r, comm->size), left = ch_share(count, r + 1, comm->size) - first - from;
  if (left <= 0) return (ch_bytes){0};
  return (ch_bytes){(real *)(uintptr_t)array + first + from,
                    (left < CH_SUM_SLICE ? left : CH_SUM_SLICE) * (int64_t)sizeof(real)};
}

/* Collects a slice of this rank's share from the pieces of all ranks into `buffers`, consecutively. One exchange per
 * piece index i. */
static void collect_slices(const ch_comm *comm, const char *what, const int *of, const ch_comm_array *a, int64_t from,
                           int64_t bytes, real *buffers) {
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  for (int i = 0, more = 1; more; i++) {
    int64_t before = 0; /* pieces of lower ranks */
    more = 0;
    for (int r = 0; r < comm->size; before += of[r++]) {
      send[r] = receive[r] = (ch_bytes){0};
      if (i < of[comm->rank]) send[r] = slice_of(comm, a->piece[i], a->count, r, from);
      if (i < of[r]) receive[r] = (ch_bytes){buffers + (before + i) * CH_SUM_SLICE, bytes};
      more |= i + 1 < of[r];
    }
    ch_comm_exchange(comm, what, send, receive);
  }
}

/* Sums a tree node [count] into its first piece. *next: in, the node's first piece; out, the piece after the node. */
static real *add_node(int lo, int hi, int local, real **next, int64_t count) {
  int mid = (lo + hi) / 2;
  if (is_piece(lo, hi, local)) {
    *next += CH_SUM_SLICE;
    return *next - CH_SUM_SLICE;
  }
  real *left = add_node(lo, mid, local, next, count);
  const real *right = add_node(mid, hi, local, next, count);
  for (int64_t i = 0; i < count; i++) left[i] += right[i];
  return left;
}

/* Computes this rank's share of the sum into piece[0]. */
static void sum_share(const ch_comm *comm, const char *what, int grad_chunks, const int *of, const ch_comm_array *a,
                      real *buffers) {
  for (int64_t from = 0; from * comm->size < a->max; from += CH_SUM_SLICE) {
    const ch_bytes local = slice_of(comm, a->piece[0], a->count, comm->rank, from);
    collect_slices(comm, what, of, a, from, local.bytes, buffers);
    real *next = buffers;
    const real *sum = add_node(0, grad_chunks, grad_chunks / comm->size, &next, local.bytes / (int64_t)sizeof(real));
    ch_stage_copy(local.at, sum, (size_t)local.bytes);
  }
}

void ch_comm_sum(const ch_comm *comm, const char *what, int grad_chunks, const ch_comm_array *array, int arrays,
                 const ch_sum_buffers *buffers) {
  int of[CH_RANKS];
  ch_transfer t[CH_AT_ONCE];
  if (comm->size == 1) return; /* one rank: piece[0] is the sum */
  all_pieces(comm, grad_chunks, of);
  for (int i = 0; i < arrays; i++) sum_share(comm, what, grad_chunks, of, &array[i], buffers->piece);
  for (int i = 0; i < arrays; i++)
    ch_comm_gather_begin(comm, &t[i], what, array[i].piece[0], array[i].count, sizeof(real), array[i].to,
                         buffers->spans + i * CH_SPANS * (int64_t)comm->size);
  for (int i = 0; i < arrays; i++) ch_comm_finish(comm, &t[i]);
}

static double add_numbers(const double *shard, int lo, int hi) {
  int mid = (lo + hi) / 2;
  return hi - lo == 1 ? shard[lo] : add_numbers(shard, lo, mid) + add_numbers(shard, mid, hi);
}

double ch_add_grad_chunks(int grad_chunks, const double *shard) { return add_numbers(shard, 0, grad_chunks); }
