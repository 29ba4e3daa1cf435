/* Routing ops on a device. Records are built from marks or choices: counts per expert, their prefix sums, then
 * lists. */
#include "device/device.h"

static int64_t parts_of(int64_t count, int size) { return (count + size - 1) / size; }

static void add_up_sizes(ch_exec *x, const int CH_DEV *size, int CH_DEV *begin, int64_t count) {
  CH_LAUNCH(x, prefix, count ? parts_of(count, TILE_SIZES) : 1, .size = size, .begin = begin, .count = count);
}

/* Computes expert_begin and slot_token from marks keep [n,e]. */
static void list_marks(ch_exec *x, const uint8_t CH_DEV *keep, const ch_record *r) {
  CH_SCRATCH(x);
  int64_t parts = parts_of(r->tokens, TILE_TOKENS), tiles = parts * parts_of(r->experts, TILE_EXPERTS),
          sizes = r->experts * parts;
  int CH_DEV *size = CH_NEW(&x->scratch, int, sizes), *begin = CH_NEW(&x->scratch, int, sizes + 1);
  CH_LAUNCH(x, list_marked, tiles, .keep = keep, .size = size, .n = r->tokens, .e = r->experts, .parts = (int)parts);
  add_up_sizes(x, size, begin, sizes);
  CH_LAUNCH(x, list_marked, tiles, .keep = keep, .size = begin, .expert_begin = r->expert_begin,
            .slot_token = r->slot_token, .n = r->tokens, .e = r->experts, .parts = (int)parts);
}

/* Max number of tokens per pool. */
static int largest_pool(const ch_select_args *a) {
  int max = 0;
  if (a->stride > 1) return (a->record->tokens + a->stride - 1) / a->stride;
  for (int p = 0; p < a->pools; p++)
    if (a->pool_begin[p + 1] - a->pool_begin[p] > max) max = a->pool_begin[p + 1] - a->pool_begin[p];
  return max;
}

/* Common arguments of a selection's kernels. */
typedef struct {
  const int CH_DEV *pool_begin, *k;
  uint32_t CH_DEV *key;
  int CH_DEV *left, *surplus, *count;
  uint8_t CH_DEV *keep;
  int64_t parts; /* parts of the largest pool */
} selection;

enum { DIGITS = 256, SHIFTS = 4 };

/* Marks the selected tokens of some pools: a radix search for the key of each expert's k-th best score. */
static void select_from(ch_exec *x, const ch_select_args *a, const selection *s, int first, int pools) {
  const ch_record *r = a->record;
  int64_t pairs = (int64_t)pools * r->experts, tiles = pools * s->parts * parts_of(r->experts, TILE_EXPERTS);
  ch_zero(x, s->count, (size_t)(SHIFTS * DIGITS * pairs) * sizeof *s->count);
#define POOLS .n = r->tokens, .e = r->experts, .first_pool = first, .stride = a->stride
  for (int i = 0; i < SHIFTS; i++) {
    int CH_DEV *count = s->count + i * DIGITS * pairs;
    int shift = 24 - 8 * i;
    CH_LAUNCH(x, select_count, tiles, .pool_begin = s->pool_begin, .valid = a->valid, .score = a->score, .key = s->key,
              .count = count, POOLS, .parts = (int)s->parts, .shift = shift);
    CH_LAUNCH(x, select_digit, pairs, .k = s->k + first, .count = count, .key = s->key, .left = s->left,
              .surplus = s->surplus, .cutoff = a->cutoff ? a->cutoff + (int64_t)first * r->experts : NULL,
              .e = r->experts, .shift = shift);
  }
  CH_LAUNCH(x, select_marks, tiles, .pool_begin = s->pool_begin, .valid = a->valid, .score = a->score, .key = s->key,
            .left = s->left, .keep = s->keep, POOLS, .parts = (int)s->parts);
  CH_LAUNCH(x, select_ties, pairs, .pool_begin = s->pool_begin, .score = a->score, .key = s->key, .left = s->left,
            .surplus = s->surplus, .keep = s->keep, POOLS);
#undef POOLS
}

/* Processes several pools at a time, bounded by the memory of their digit counts. */
CH_DEVICE_OP(select) {
  enum { COUNTS = 1 << 21 };
  CH_SCRATCH(x);
  const ch_record *r = a->record;
  int64_t of_pool = (int64_t)r->experts * DIGITS * SHIFTS, max = of_pool < COUNTS ? COUNTS / of_pool : 1;
  int at_once = max < a->pools ? (int)max : a->pools;
  int64_t pairs = (int64_t)at_once * r->experts;
  selection s = {.k = ch_upload(&x->scratch, a->k, (size_t)a->pools * sizeof *a->k),
                 .key = CH_NEW(&x->scratch, uint32_t, pairs),
                 .left = CH_NEW(&x->scratch, int, pairs),
                 .surplus = CH_NEW(&x->scratch, int, pairs),
                 .count = CH_NEW(&x->scratch, int, (at_once * of_pool)),
                 .keep = CH_NEW(&x->scratch, uint8_t, (int64_t)r->tokens * r->experts)};
  if (a->stride <= 1)
    s.pool_begin = ch_upload(&x->scratch, a->pool_begin, ((size_t)a->pools + 1) * sizeof *a->pool_begin);
  if (!ch_counting(x)) s.parts = parts_of(largest_pool(a), TILE_TOKENS);
  for (int p = 0; p < a->pools; p += at_once) select_from(x, a, &s, p, a->pools - p < at_once ? a->pools - p : at_once);
  list_marks(x, s.keep, r);
}

CH_DEVICE_OP(collect) { list_marks(x, a->keep, a->record); }

CH_DEVICE_OP(within) {
  CH_SCRATCH(x);
  const ch_record *r = a->record;
  size_t marks = (size_t)r->tokens * (size_t)r->experts;
  uint8_t CH_DEV *keep = CH_NEW(&x->scratch, uint8_t, marks);
  int CH_DEV *dropped = CH_NEW(&x->scratch, int, r->experts);
  ch_zero(x, keep, marks);
  CH_LAUNCH(x, within, r->experts, .min_begin = a->min->expert_begin, .min_token = a->min->slot_token,
            .max_begin = a->max->expert_begin, .max_token = a->max->slot_token, .min_cutoff = a->min_cutoff,
            .valid = a->valid, .score = a->score, .threshold = a->threshold, .keep = keep, .demand = a->demand,
            .dropped = dropped, .n = r->tokens, .e = r->experts);
  CH_LAUNCH(x, sum_counts, 1, .counts = dropped, .total = a->dropped, .count = r->experts);
  list_marks(x, keep, r);
}

CH_DEVICE_OP(place) {
  CH_SCRATCH(x);
  const ch_record *r = a->record;
  int64_t choices = (int64_t)r->tokens * a->count;
  int CH_DEV *dropped = CH_NEW(&x->scratch, int, r->experts), *held = CH_NEW(&x->scratch, int, r->experts),
             *asked = CH_NEW(&x->scratch, int, choices);
  ch_copy(x, asked, a->choice, (size_t)choices * sizeof *asked);
  CH_LAUNCH(x, place, r->experts, .asked = asked, .value = a->value, .choice = a->choice, .demand = a->demand,
            .dropped = dropped, .held = held, .n = r->tokens, .e = r->experts, .count = a->count,
            .capacity = a->capacity);
  CH_LAUNCH(x, sum_counts, 1, .counts = dropped, .total = a->dropped, .count = r->experts);
  add_up_sizes(x, held, r->expert_begin, r->experts);
  CH_LAUNCH(x, list_chosen, r->experts, .choice = a->choice, .begin = r->expert_begin, .slot_token = r->slot_token,
            .n = r->tokens, .e = r->experts, .count = a->count);
}

CH_ONE_KERNEL(best, ch_groups(a->n))
CH_ONE_KERNEL(modulo, ch_groups(a->n))

CH_DEVICE_OP(sample_second) {
  CH_LAUNCH(x, sample_second, ch_groups(a->n), .value = a->value, .choice = a->choice, .seed = a->rng.seed,
            .base = a->rng_base, .stream = a->rng.stream, .sub = a->rng.sub, .n = a->n);
}

CH_DEVICE_OP(jitter) {
  CH_LAUNCH(x, jitter, ch_groups((int64_t)a->n * a->d), .factor = a->factor, .seed = a->rng.seed, .base = a->rng_base,
            .unit = 2 * a->jitter * 0x1p-32, .low = 1 - a->jitter, .stream = a->rng.stream, .sub = a->rng.sub,
            .n = a->n, .d = a->d);
}

/* ---- thresholds ---- */

CH_ONE_KERNEL(threshold, ch_groups(a->n))
CH_ONE_KERNEL(mean_cutoff, ch_groups(a->e))
CH_ONE_KERNEL(running_mean, ch_groups(a->count))
CH_ONE_KERNEL(price, 1)
CH_ONE_KERNEL(update_bias, ch_groups(a->e))

/* ---- gates ---- */

CH_DEVICE_OP(gate) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, gate, r->experts, .begin = r->expert_begin, .slot_token = r->slot_token, .slot_gate = r->slot_gate,
            .score = a->score, .value = a->value, .e = r->experts, .rule = (int)a->rule,
            .even = a->rule == CH_GATE_EVEN ? (float)(1.0 / a->count) : 0);
}

CH_DEVICE_OP(gate_backward) {
  const ch_record *r = a->record;
  ch_zero(x, a->dscore, (size_t)r->tokens * (size_t)r->experts * sizeof *a->dscore);
  CH_LAUNCH(x, gate_backward, r->experts, .begin = r->expert_begin, .slot_token = r->slot_token,
            .slot_gate = r->slot_gate, .dgate = a->dgate, .dscore = a->dscore, .e = r->experts,
            .sigmoid = a->rule == CH_GATE_SIGMOID);
  if (a->rule == CH_GATE_SHARE)
    CH_LAUNCH(x, share_backward, ch_groups(r->tokens), .choice = a->choice, .value = a->value, .dscore = a->dscore,
              .n = r->tokens, .e = r->experts);
}

CH_DEVICE_OP(normalize_gates) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, normalize_gates, ch_groups(r->tokens), .token_begin = r->token_begin, .token_slot = r->token_slot,
            .slot_gate = r->slot_gate, .sum = a->sum, .n = r->tokens);
}

CH_DEVICE_OP(normalize_gates_backward) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, normalize_backward, ch_groups(r->tokens), .token_begin = r->token_begin, .token_slot = r->token_slot,
            .slot_gate = r->slot_gate, .sum = a->sum, .dgate = a->dgate, .n = r->tokens);
}

/* Scratch [groups,e+1]: every expert's share of choices, then the number of valid tokens. */
static double CH_DEV *shares(ch_exec *x, const ch_balance_args *a) {
  int groups = (a->n + a->span - 1) / a->span;
  double CH_DEV *share = CH_NEW(&x->scratch, double, ((int64_t)groups * (a->e + 1)));
  CH_LAUNCH(x, choice_shares, groups * (a->e + 1), .valid = a->valid, .choice = a->choice, .share = share, .n = a->n,
            .e = a->e, .count = a->count, .counted = a->counted, .span = a->span);
  return share;
}

CH_DEVICE_OP(balance) {
  CH_SCRATCH(x);
  double CH_DEV *share = shares(x, a);
  CH_LAUNCH(x, balance, 1, .valid = a->valid, .score = a->score, .share = share, .loss = a->loss, .n = a->n, .e = a->e,
            .nulls = a->nulls, .shares = a->shares, .span = a->span, .groups = a->groups);
}

CH_DEVICE_OP(balance_backward) {
  CH_SCRATCH(x);
  double CH_DEV *share = shares(x, a);
  if ((double)a->scale != 0 && a->groups)
    CH_LAUNCH(x, balance_backward, ch_groups(a->n), .valid = a->valid, .score = a->score, .share = share,
              .dscore = a->dscore_acc, .scale = (double)a->scale / a->groups, .n = a->n, .e = a->e, .nulls = a->nulls,
              .shares = a->shares, .span = a->span);
}

CH_DEVICE_OP(z_loss) { CH_LAUNCH(x, z_loss, ch_groups(a->n), .logit = a->logit, .lse = a->lse, .n = a->n, .e = a->e); }

CH_DEVICE_OP(z_loss_backward) {
  CH_LAUNCH(x, z_loss_backward, ch_groups((int64_t)a->n * a->e), .valid = a->valid, .logit = a->logit, .lse = a->lse,
            .dlogit = a->dlogit_acc, .scale = (double)a->scale, .n = a->n, .e = a->e);
}

/* ---- the record ---- */

CH_DEVICE_OP(loads) {
  CH_LAUNCH(x, loads, ch_groups(a->record->experts), .begin = a->record->expert_begin, .demand = a->demand,
            .e = a->record->experts);
}

CH_DEVICE_OP(index) {
  CH_SCRATCH(x);
  const ch_record *r = a->record;
  int CH_DEV *size = CH_NEW(&x->scratch, int, r->tokens);
  CH_LAUNCH(x, index_count, ch_groups(r->tokens), .begin = r->expert_begin, .slot_token = r->slot_token, .size = size,
            .n = r->tokens, .e = r->experts);
  add_up_sizes(x, size, r->token_begin, r->tokens);
  CH_LAUNCH(x, index_fill, ch_groups(r->tokens), .begin = r->expert_begin, .slot_token = r->slot_token,
            .token_begin = r->token_begin, .token_slot = r->token_slot, .n = r->tokens, .e = r->experts);
}

CH_DEVICE_OP(part) {
  CH_SCRATCH(x);
  const ch_record *all = a->all, *some = a->part;
  int CH_DEV *size = CH_NEW(&x->scratch, int, all->experts);
  CH_LAUNCH(x, part_count, ch_groups(all->experts), .begin = all->expert_begin, .slot_token = all->slot_token,
            .size = size, .e = all->experts, .first = a->begin, .end = a->end);
  add_up_sizes(x, size, some->expert_begin, all->experts);
  CH_LAUNCH(x, part_fill, all->experts, .begin = all->expert_begin, .slot_token = all->slot_token,
            .slot_gate = all->slot_gate, .part_begin = some->expert_begin, .part_token = some->slot_token,
            .part_gate = some->slot_gate, .e = all->experts, .first = a->begin);
}

CH_DEVICE_OP(tally) {
  const ch_record *r = a->record;
  CH_LAUNCH(x, tally, r->experts + 1, .begin = r->expert_begin, .slot_gate = r->slot_gate,
            .token_begin = r->token_begin, .valid = a->valid, .aux_loss = a->aux_loss, .dropped = a->dropped,
            .demand = a->demand, .lse = a->lse, .sums = a->sums, .counts = a->counts, .n = r->tokens, .e = r->experts);
}
