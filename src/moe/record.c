/* The routing record's memory, and the statistics that it holds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "moe/router.h"

void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = max_slots, .load = -1};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

void ch_route_counts_alloc(ch_exec *x, ch_arena *a, ch_route_counts *c, int e) {
  *c = (ch_route_counts){.demand = CH_NEW(a, int, e), .cutoff = CH_NEW(a, real, e)};
  double CH_DEV *both = CH_NEW(a, double, 2);
  c->aux_loss = both;
  c->dropped = (int64_t CH_DEV *)(both + 1);
  if (!ch_counting(x)) x->memory->zero(both, 2 * sizeof *both);
}

void choir_route_stats_free(choir_route_stats *stats) {
  free(stats->load);
  free(stats->demand);
  free(stats->histogram);
  *stats = (choir_route_stats){0};
}

int ch_route_stats_alloc(int experts, choir_route_stats *stats) {
  *stats = (choir_route_stats){.experts = experts};
  size_t e = (size_t)experts;
  stats->load = calloc(e, sizeof *stats->load);
  stats->demand = calloc(e, sizeof *stats->demand);
  stats->histogram = calloc(e + 1, sizeof *stats->histogram);
  if (!stats->load || !stats->demand || !stats->histogram) {
    choir_route_stats_free(stats);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics of %d experts", experts);
  }
  return CHOIR_OK;
}

void ch_route_stats_clear(choir_route_stats *stats) {
  size_t e = (size_t)stats->experts;
  memset(stats->load, 0, e * sizeof *stats->load);
  memset(stats->demand, 0, e * sizeof *stats->demand);
  memset(stats->histogram, 0, (e + 1) * sizeof *stats->histogram);
  *stats = (choir_route_stats){
      .experts = stats->experts, .load = stats->load, .demand = stats->demand, .histogram = stats->histogram};
}

/* The mean over the tokens of both. */
static double pooled(double a, int64_t tokens_a, double b, int64_t tokens_b) {
  int64_t tokens = tokens_a + tokens_b;
  return tokens ? (a * (double)tokens_a + b * (double)tokens_b) / (double)tokens : 0;
}

static int larger(int a, int b) { return a > b ? a : b; }

void ch_certificate_add(choir_certificate *sum, const choir_certificate *more) {
  if (!more->assignments) return;
  sum->gap = sum->assignments ? fmax(sum->gap, more->gap) : more->gap; /* of too many experts a token it is negative */
  sum->assignments += more->assignments;
  sum->iterations += more->iterations;
  sum->expert_before = fmax(sum->expert_before, more->expert_before);
  sum->token_before = fmax(sum->token_before, more->token_before);
  sum->expert_after = larger(sum->expert_after, more->expert_after);
  sum->token_after = larger(sum->token_after, more->token_after);
  sum->over_cap += more->over_cap;
}

void ch_route_stats_collect(choir_route_stats *sum, int tokens, const ch_route_counts *c, const double *sums,
                            const int64_t *counts) {
  int e = sum->experts;
  const int64_t *load = counts + 1, *demand = load + e, *histogram = demand + e;
  sum->aux_loss = pooled(sum->aux_loss, sum->tokens, sums[0], tokens);
  sum->gate_mass = pooled(sum->gate_mass, sum->tokens, tokens ? sums[1] / tokens : 0, tokens);
  sum->tokens += tokens;
  sum->capacity += c->capacity;
  sum->dropped += counts[0];
  ch_certificate_add(&sum->certificate, &c->certificate);
  for (int i = 0; i < e; i++) {
    sum->assignments += load[i];
    sum->load[i] += load[i];
    sum->demand[i] += demand[i];
  }
  for (int i = 0; i <= e; i++) sum->histogram[i] += histogram[i];
}

int ch_route_stats_make(const ch_memory *memory, int experts, int tokens, const ch_route_counts *c,
                        const ch_route_tally *t, choir_route_stats *stats) {
  size_t cells = CH_TALLY_COUNTS((size_t)experts);
  double sums[CH_TALLY_SUMS];
  int64_t *counts = malloc(cells * sizeof *counts);
  if (!counts) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics of %d experts", experts);
  int code = ch_route_stats_alloc(experts, stats);
  if (!code) {
    memory->get(sums, t->sums, sizeof sums);
    memory->get(counts, t->counts, cells * sizeof *counts);
    ch_route_stats_collect(stats, tokens, c, sums, counts);
  }
  free(counts);
  return code;
}

int ch_route_stats_add(choir_route_stats *sum, const choir_route_stats *more) {
  if (sum->experts != more->experts)
    return ch_error(CHOIR_ERROR_ARGUMENT, "statistics of %d experts cannot be added to those of %d", more->experts,
                    sum->experts);
  sum->aux_loss = pooled(sum->aux_loss, sum->tokens, more->aux_loss, more->tokens);
  sum->gate_mass = pooled(sum->gate_mass, sum->tokens, more->gate_mass, more->tokens);
  sum->tokens += more->tokens;
  sum->capacity += more->capacity;
  sum->assignments += more->assignments;
  sum->dropped += more->dropped;
  ch_certificate_add(&sum->certificate, &more->certificate);
  for (int i = 0; i < sum->experts; i++) {
    sum->load[i] += more->load[i];
    sum->demand[i] += more->demand[i];
  }
  for (int i = 0; i <= sum->experts; i++) sum->histogram[i] += more->histogram[i];
  return CHOIR_OK;
}

/* The largest entry over the mean; 0 where all are 0. */
static double imbalance(const int64_t *count, int experts) {
  double sum = 0, most = 0;
  for (int i = 0; i < experts; i++) {
    sum += (double)count[i];
    most = fmax(most, (double)count[i]);
  }
  return sum > 0 ? most * experts / sum : 0;
}

ch_route_summary ch_route_stats_summary(const choir_route_stats *stats, int layers) {
  ch_route_summary sum = {0};
  double dropped = 0, kept = 0, capacity = 0, tokens = 0, unrouted = 0;
  for (int i = 0; i < layers; i++) {
    const choir_route_stats *s = &stats[i];
    dropped += (double)s->dropped;
    kept += (double)s->assignments;
    capacity += (double)s->capacity * s->experts;
    tokens += s->tokens;
    unrouted += (double)s->histogram[0];
    sum.imbalance = fmax(sum.imbalance, imbalance(s->load, s->experts));
    sum.demand_imbalance = fmax(sum.demand_imbalance, imbalance(s->demand, s->experts));
  }
  sum.dropped = dropped + kept > 0 ? dropped / (dropped + kept) : 0;
  sum.unrouted = tokens > 0 ? unrouted / tokens : 0;
  sum.fill = capacity > 0 ? kept / capacity : 0;
  sum.slots = tokens > 0 ? kept / tokens : 0;
  return sum;
}
