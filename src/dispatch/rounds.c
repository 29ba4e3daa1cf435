/* Rounds.
 *
 * A rank has buffers for twice the mean number of slots per rank (ch_comm's `means`). A router may give one rank's
 * tokens more slots, in the worst case all of them, and buffers for the worst case would need the memory of a single
 * process on every rank. If a rank has more slots than its buffers hold, its rows are sent in several rounds, one range
 * of tokens each.
 *
 * All ranks know the record, so they split it identically. Usually no rank overflows and there is one round. With
 * several rounds communication and products do not overlap: all rows are sent, in rounds, before the first product, and
 * returned, in rounds, after the last. Experts see the same rows in the same order, so results are bit-identical. */
#include <string.h>

#include "dispatch/exchange.h"

void ch_rounds_alloc(ch_exec *x, ch_dispatch *ex) {
  if (ex->max_rows >= ex->local.max_slots) return;
  ch_arena *host = &ch_host(x)->scratch;
  ch_round *round = &ex->round;
  int64_t cells = (int64_t)x->comm->size * ex->e, tokens = ch_counting(x) ? x->comm->size * ex->n : ex->all.tokens;
  size_t wanted = ch_counting(x) || round->several ? sizeof(int) : 0;
  ch_record_alloc(&x->scratch, &round->piece, ex->n, ex->e, ex->max_rows);
  round->last = CH_NEW_HOST(host, int, x->comm->size);
  round->before = CH_NEW_HOST(host, int64_t, cells);
  round->slots = CH_NEW_HOST(host, int64_t, cells);
  round->token_begin = ch_download(x, ex->all.token_begin, wanted * (size_t)(tokens + 1));
  round->slot_token = ch_download(x, ex->all.slot_token, wanted * (size_t)ex->all.max_slots);
}

void ch_rounds_split(const ch_exec *x, ch_dispatch *ex) {
  ex->round.several = 0;
  for (int r = 0; r < x->comm->size; r++) ex->round.several |= ch_slots_at(ex, r, (ch_range){0, ex->e}) > ex->max_rows;
  ex->exchanges = ex->round.several ? 0 : ex->groups;
}

void ch_rounds_begin(ch_exec *x, ch_dispatch *ex) {
  ch_round *round = &ex->round;
  round->number = 0;
  if (!round->several) return;
  size_t bytes = (size_t)x->comm->size * (size_t)ex->e * sizeof *round->slots;
  for (int r = 0; r < x->comm->size; r++) round->last[r] = ch_tokens_of(ex, r).first;
  memset(round->before, 0, bytes);
  memset(round->slots, 0, bytes);
}

/* The end of the longest range of tokens from `first` on that fits the buffers. One token has at most e slots and
 * always fits. */
static int end_of_round(const ch_dispatch *ex, int first, int end) {
  const int *begin = ex->round.token_begin;
  int last = first;
  while (last < end && begin[last + 1] - begin[first] <= ex->max_rows) last++;
  return last;
}

/* Counts the round's slots per rank and expert; the round ends before tokens round->last. */
static void count(const ch_exec *x, ch_dispatch *ex) {
  ch_round *round = &ex->round;
  int64_t slot = 0;
  for (int i = 0; i < ex->e; i++)
    for (int r = 0; r < x->comm->size; r++) {
      int64_t at = (int64_t)r * ex->e + i, next = slot + round->before[at], end = slot + ex->slots[at], s = next;
      while (s < end && round->slot_token[s] < round->last[r]) s++;
      round->slots[at] = s - next;
      slot = end;
    }
}

/* Sets the round to this rank's tokens from `first` on. */
static void cut_round(ch_exec *x, ch_dispatch *ex, int first) {
  ch_round *round = &ex->round;
  int begin = ch_tokens_of(ex, x->comm->rank).first, last = round->last[x->comm->rank];
  round->part = &round->piece;
  round->first_token = first - begin;
  round->piece.tokens = last - first;
  CH_OP(x, part, .all = &ex->local, .begin = first - begin, .end = last - begin, .part = &round->piece);
  CH_OP(x, index, .record = &round->piece);
}

int ch_rounds_next(ch_exec *x, ch_dispatch *ex) {
  ch_round *round = &ex->round;
  if (!round->several) {
    round->part = &ex->local;
    round->first_token = 0;
    return !round->number++;
  }
  int more = 0, first = round->last[x->comm->rank];
  for (int r = 0; r < x->comm->size; r++) {
    int from = round->last[r], end = ch_tokens_of(ex, r).last;
    round->last[r] = end_of_round(ex, from, end);
    more |= from < end;
  }
  if (!more) return 0;
  for (int64_t i = 0; i < (int64_t)x->comm->size * ex->e; i++) round->before[i] += round->slots[i];
  count(x, ex);
  cut_round(x, ex, first);
  return 1;
}

static int64_t sum(const int64_t *slots, int count) {
  int64_t all = 0;
  for (int i = 0; i < count; i++) all += slots[i];
  return all;
}

int64_t ch_rounds_rows(const ch_exec *x, const ch_dispatch *ex) {
  return sum((ex->round.several ? ex->round.slots : ex->slots) + (int64_t)x->comm->rank * ex->e, ex->e);
}

/* Index of the round's first row of `rank`'s tokens for `expert`, among all rows of this rank's experts. Within a group
 * of experts rows are sorted by rank, then by expert. */
static int64_t place_of_rows(const ch_exec *x, const ch_dispatch *ex, int rank, int expert) {
  int group = 0;
  while (ch_local_group(x, ex, group).last <= expert) group++;
  ch_range some = ch_local_group(x, ex, group);
  int64_t at = ex->group[group].slot;
  for (int r = 0; r < rank; r++) at += ch_slots_at(ex, ch_comm_number(&x->grid.replica, r), some);
  int number = ch_comm_number(&x->grid.replica, rank);
  return at + ch_slots_at(ex, number, (ch_range){some.first, expert}) +
         ex->round.before[(int64_t)number * ex->e + expert];
}

/* Byte ranges of every rank's k-th expert: the rows of one expert and rank are contiguous on both sides. */
static void spans(const ch_exec *x, const ch_dispatch *ex, int k, int back, char *owned, ch_bytes *of_tokens,
                  ch_bytes *of_experts) {
  int64_t bytes = ch_row_bytes(x, ex->d);
  const int64_t *slots = ex->round.slots, *own_slots = slots + (int64_t)x->comm->rank * ex->e;
  ch_range range = ch_experts_of(x, ex->e, x->grid.replica.rank);
  for (int r = 0; r < x->grid.replica.size; r++) {
    ch_range theirs = ch_experts_of(x, ex->e, r);
    int there = theirs.first + k, here = range.first + k;
    char *local = CH_HOST_OR_DEVICE(ch_rows_of_shard(x, ex, back ? r % x->grid.tp_group.size : 0));
    of_tokens[r] = of_experts[r] = (ch_bytes){local, 0};
    if (there < theirs.last) of_tokens[r] = (ch_bytes){local + sum(own_slots, there) * bytes, own_slots[there] * bytes};
    if (here < range.last)
      of_experts[r] = (ch_bytes){owned + place_of_rows(x, ex, r, here) * bytes,
                                 slots[(int64_t)ch_comm_number(&x->grid.replica, r) * ex->e + here] * bytes};
  }
}

void ch_rounds_move(ch_exec *x, ch_dispatch *ex, const char *what, void CH_DEV *owned, int back) {
  ch_bytes of_tokens[CH_RANKS], of_experts[CH_RANKS];
  if (!ex->round.several) return;
  for (int k = 0; k < ch_largest_share(&x->grid.ep_group, ex->e); k++) {
    spans(x, ex, k, back, CH_HOST_OR_DEVICE(owned), of_tokens, of_experts);
    ch_comm_exchange(&x->grid.replica, what, back ? of_experts : of_tokens, back ? of_tokens : of_experts);
  }
}

real CH_DEV *ch_rounds_numbers(ch_exec *x, const ch_dispatch *ex, real CH_DEV *local) {
  real CH_DEV *of_round = CH_NEW(&x->scratch, real, ex->max_rows);
  return ex->round.several ? of_round : local;
}

void ch_rounds_place(ch_exec *x, const ch_dispatch *ex, const real CH_DEV *of_round, real CH_DEV *local) {
  int64_t first = (int64_t)x->comm->rank * ex->e;
  const int64_t *slots = ex->round.slots + first, *before = ex->round.before + first, *all = ex->slots + first;
  if (!ex->round.several) return;
  for (int i = 0; i < ex->e; of_round += slots[i], local += all[i], i++)
    CH_OP(x, copy, .count = slots[i], .x = of_round, .y = local + before[i]);
}
