#include "routes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "moe/router.h"

static scale_routes options;

/* The record of all tokens, and how many of every rank's each expert has. The first call makes it, and all
 * layers and steps of a run share it. */
static struct {
  int ranks, experts;
  int *token; /* [slots] */
  int *count; /* [ranks,experts] */
  double fullest;
} made;

void scale_routes_set(const scale_routes *routes) { options = *routes; }

double scale_routes_fullest(void) { return made.fullest; }

/* N(0,1), a function of the seed and two numbers. */
static double normal(uint64_t kind, uint64_t i) {
  ch_rng rng = ch_rng_make(options.seed, CH_STREAM_ROUTER_JITTER, (uint32_t)kind);
  return ch_rng_normal(rng, i);
}

/* Expert i's `load` tokens by rank: shares of its weights, cut where their running sum passes a whole number, beginning
 * at a place that depends on the expert, so that the remainder does not always go to the same ranks. */
static void spread_tokens(int expert, int load, int *count) {
  double sum = 0, so_far = fmod(expert * 0.6180339887498949, 1);
  for (int r = 0; r < made.ranks; r++) sum += exp(options.spread * normal(1, (uint64_t)r * made.experts + expert));
  int placed = 0, max = options.tokens / made.ranks;
  for (int r = 0; r < made.ranks; r++) {
    so_far += load * exp(options.spread * normal(1, (uint64_t)r * made.experts + expert)) / sum;
    int until = r == made.ranks - 1 ? load : (int)fmin(so_far, load);
    if (until - placed > max) {
      fprintf(stderr, "expert %d: %d tokens of rank %d, which has %d: take a smaller spread\n", expert, until - placed,
              r, max);
      exit(1);
    }
    count[(int64_t)r * made.experts + expert] = until - placed;
    placed = until;
  }
}

/* Refuses rows that would go in rounds (dispatch/rounds.c): those need more of a record than is made. */
static void check_capacity(int slots) {
  for (int r = 0; r < made.ranks; r++) {
    int64_t own = 0;
    for (int i = 0; i < made.experts; i++) own += made.count[(int64_t)r * made.experts + i];
    if (own <= (int64_t)CH_COMM_MEANS * slots / made.ranks) continue;
    fprintf(stderr, "rank %d has %d times the mean of all slots: take a smaller spread\n", r, CH_COMM_MEANS);
    exit(1);
  }
}

/* Any tokens of the right ranks, ascending. */
static void make(const int *expert_begin, int experts, int ranks) {
  int slot = 0, own = options.tokens / ranks;
  made.ranks = ranks;
  made.experts = experts;
  made.token = malloc((size_t)expert_begin[experts] * sizeof *made.token);
  made.count = calloc((size_t)ranks * (size_t)experts, sizeof *made.count);
  if (!made.token || !made.count) abort();
  for (int i = 0; i < experts; i++) {
    int load = expert_begin[i + 1] - expert_begin[i];
    spread_tokens(i, load, made.count);
    made.fullest = fmax(made.fullest, (double)load * experts / expert_begin[experts]);
    for (int r = 0; r < ranks; r++)
      for (int j = 0; j < made.count[(int64_t)r * experts + i]; j++) made.token[slot++] = r * own + j;
  }
  check_capacity(slot);
}

/* ---- ops ---- */

static int *begin_of(const ch_record *r) { return CH_AS_HOST(int, r->expert_begin); }

static void choose(ch_exec *x, const ch_select_args *a) {
  int k = 0;
  if (ch_counting(x)) return;
  for (int p = 0; p < a->pools; p++) k += a->k[p];
  for (int i = 0; i <= a->record->experts; i++) begin_of(a->record)[i] = i * k;
}

/* Draws how many of the tokens' choices ask for each expert; the expert takes them up to its capacity. */
static void place(ch_exec *x, const ch_place_args *a) {
  double sum = 0;
  int e = a->record->experts, *begin = begin_of(a->record);
  if (ch_counting(x)) return;
  for (int i = 0; i < e; i++) sum += exp(options.popular * normal(0, (uint64_t)i));
  begin[0] = 0;
  for (int i = 0; i < e; i++) {
    double wanted = (double)a->count * options.tokens * exp(options.popular * normal(0, (uint64_t)i)) / sum;
    begin[i + 1] = begin[i] + (int)fmin(wanted, a->capacity);
  }
}

/* The record of all ranks' tokens gets its slots here. All ranks share one array of slots, outside the record. */
static void index_slots(ch_exec *x, const ch_index_args *a) {
  if (ch_counting(x) || a->record->tokens != options.tokens) return;
  if (!made.token) make(begin_of(a->record), a->record->experts, x->comm->size);
  ((ch_record *)(uintptr_t)a->record)->slot_token = CH_AS_DEV(int, made.token);
}

/* A rank's part of it. */
static void part(ch_exec *x, const ch_part_args *a) {
  int *begin = begin_of(a->part);
  if (ch_counting(x)) return;
  const int *count = made.count + (int64_t)(a->begin / (options.tokens / made.ranks)) * made.experts;
  begin[0] = 0;
  for (int i = 0; i < made.experts; i++) begin[i + 1] = begin[i] + count[i];
}

static void tally(ch_exec *x, const ch_tally_args *a) {
  if (ch_counting(x)) return;
  memset(CH_AS_HOST(double, a->sums), 0, CH_TALLY_SUMS * sizeof *a->sums);
  memset(CH_AS_HOST(int64_t, a->counts), 0, CH_TALLY_COUNTS((size_t)a->record->experts) * sizeof *a->counts);
}

void scale_fill_routes(ch_ops *ops) {
  ops->select = choose;
  ops->place = place;
  ops->index = index_slots;
  ops->part = part;
  ops->tally = tally;
}
