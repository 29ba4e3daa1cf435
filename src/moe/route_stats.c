/* Statistics of routings: their memory, and sums of what op `tally` counts of every call. */
#include "moe/route_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "file/json.h"

void choir_route_stats_clear(choir_route_stats *s) {
  if (!s) return;
  free(s->load); /* the other arrays are in the same block */
  *s = (choir_route_stats){0};
}

/* These three come from callbacks that see each routing; without a callback they are unknown. */
static const choir_route_stats empty = {.token_entropy = NAN, .load_entropy = NAN, .drift = NAN};

/* Allocates all arrays in one block: those up to the histogram or, if vocab_size >= 0, those that only
 * choir_route_stats_count fills. */
static int allocate(int experts, int vocab_size, choir_route_stats *s) {
  _Static_assert(sizeof *s->load == sizeof *s->gate, "counts and numbers stand behind each other");
  const size_t e = (size_t)experts, few = 3 * e + 1, V = vocab_size < 0 ? 0 : (size_t)vocab_size;
  const size_t more = vocab_size < 0 ? 0 : 4 * e + (V ? e * e + V + e * V : 0);
  int64_t *at;
  *s = empty;
  CH_TRY(CH_ALLOC(&at, few + more, "statistics of %d experts", experts));
  s->experts = experts;
  s->load = at, s->demand = at + e, s->histogram = at + 2 * e;
  if (vocab_size < 0) return CHOIR_OK;
  s->vocab_size = vocab_size;
  s->gate = (double *)(at += few), s->threshold = s->gate + e, s->cutoff = s->gate + 2 * e, s->ranked = at + 3 * e;
  if (V) s->shared = at + 4 * e, s->text = s->shared + e * e, s->held = s->text + V;
  for (int i = 0; i < experts; i++) s->threshold[i] = s->cutoff[i] = NAN;
  return CHOIR_OK;
}

int ch_route_stats_alloc(int experts, choir_route_stats *s) { return allocate(experts, -1, s); }

int choir_route_stats_init(int experts, int vocab_size, choir_route_stats *stats) {
  CH_ENTER(stats);
  *stats = (choir_route_stats){0};
  if (experts < 1 || vocab_size < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "statistics of %d experts and %d tokens", experts, vocab_size);
  return allocate(experts, vocab_size, stats);
}

void ch_route_stats_clear(choir_route_stats *s) {
  int experts = s->experts;
  int64_t *load = s->load;
  memset(load, 0, (3 * (size_t)experts + 1) * sizeof *load);
  *s = empty;
  s->experts = experts;
  s->load = load, s->demand = load + experts, s->histogram = load + 2 * experts;
}

double ch_pooled(double mean, int64_t before, double sum, int64_t more) {
  return before + more ? ((before ? mean * (double)before : 0) + sum) / (double)(before + more) : 0;
}

static int larger(int a, int b) { return a > b ? a : b; }

void ch_certificate_add(choir_certificate *sum, const choir_certificate *more) {
  if (!more->assignments) return;
  sum->gap = sum->assignments ? fmax(sum->gap, more->gap) : more->gap; /* negative if tokens exceed their cap */
  sum->assignments += more->assignments;
  sum->iterations += more->iterations;
  sum->expert_before = fmax(sum->expert_before, more->expert_before);
  sum->token_before = fmax(sum->token_before, more->token_before);
  sum->expert_after = larger(sum->expert_after, more->expert_after);
  sum->token_after = larger(sum->token_after, more->token_after);
  sum->over_cap += more->over_cap;
}

static void add_stats(choir_route_stats *sum, const choir_route_stats *more) {
  sum->aux_loss = ch_pooled(sum->aux_loss, sum->tokens, more->aux_loss * (double)more->tokens, more->tokens);
  sum->z_loss = ch_pooled(sum->z_loss, sum->tokens, more->z_loss * (double)more->tokens, more->tokens);
  sum->gate_mass = ch_pooled(sum->gate_mass, sum->tokens, more->gate_mass * (double)more->tokens, more->tokens);
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
}

void ch_route_stats_collect(choir_route_stats *sum, int tokens, const ch_route_counts *c, const double *sums,
                            const int64_t *counts) {
  int64_t *load = (int64_t *)(uintptr_t)counts + 1; /* not written */
  choir_route_stats one = {.experts = sum->experts,
                           .tokens = tokens,
                           .capacity = c->capacity,
                           .dropped = counts[0],
                           .aux_loss = sums[0],
                           .z_loss = sums[2],
                           .gate_mass = tokens ? sums[1] / tokens : 0,
                           .load = load,
                           .demand = load + sum->experts,
                           .histogram = load + 2 * sum->experts,
                           .certificate = c->certificate};
  for (int i = 0; i < one.experts; i++) one.assignments += load[i];
  add_stats(sum, &one);
}

int ch_route_stats_make(const ch_memory *memory, int tokens, const ch_routing *r, choir_route_stats *stats) {
  int experts = r->record.experts;
  size_t cells = CH_TALLY_COUNTS((size_t)experts);
  double sums[CH_TALLY_SUMS];
  int64_t *counts;
  CH_TRY(CH_ALLOC(&counts, cells, "statistics of %d experts", experts));
  int code = ch_route_stats_alloc(experts, stats);
  if (!code) {
    memory->download(sums, r->tally.sums, sizeof sums);
    memory->download(counts, r->tally.counts, cells * sizeof *counts);
    ch_route_stats_collect(stats, tokens, &r->counts, sums, counts);
  }
  free(counts);
  return code;
}

int ch_route_stats_add(choir_route_stats *sum, const choir_route_stats *more) {
  if (sum->experts != more->experts)
    return ch_error(CHOIR_ERROR_ARGUMENT, "statistics of %d experts cannot be added to those of %d", more->experts,
                    sum->experts);
  add_stats(sum, more);
  return CHOIR_OK;
}

/* Max load / mean load of `devices` devices with equally many consecutive experts; 0 if all counts are 0. With one
 * expert per device it is the imbalance of experts. */
static double imbalance(const int64_t *count, int experts, int devices) {
  int64_t sum = 0, max = 0;
  for (int i = 0, held = experts / devices; i < experts; i += held) {
    int64_t tied = 0;
    for (int j = i; j < i + held; j++) tied += count[j];
    sum += tied;
    max = tied > max ? tied : max;
  }
  return sum > 0 ? (double)max * devices / (double)sum : 0;
}

ch_route_summary ch_route_stats_summary(const choir_route_stats *stats, int layers) {
  ch_route_summary sum = {0};
  double dropped = 0, kept = 0, capacity = 0, tokens = 0, unrouted = 0;
  for (int i = 0; i < layers; i++) {
    const choir_route_stats *s = &stats[i];
    dropped += (double)s->dropped;
    kept += (double)s->assignments;
    capacity += (double)s->capacity * s->experts;
    tokens += (double)s->tokens;
    unrouted += (double)s->histogram[0];
    sum.imbalance = fmax(sum.imbalance, imbalance(s->load, s->experts, s->experts));
    sum.demand_imbalance = fmax(sum.demand_imbalance, imbalance(s->demand, s->experts, s->experts));
  }
  for (int d = 0, devices = 8; d < 3; d++, devices *= 2) {
    sum.fullest[d] = layers ? 0 : 1;
    for (int i = 0; i < layers; i++) {
      const choir_route_stats *s = &stats[i];
      sum.fullest[d] += (s->experts % devices ? 1 : fmax(1, imbalance(s->load, s->experts, devices))) / layers;
    }
  }
  sum.dropped = dropped + kept > 0 ? dropped / (dropped + kept) : 0;
  sum.unrouted = tokens > 0 ? unrouted / tokens : 0;
  sum.fill = capacity > 0 ? kept / capacity : 0;
  sum.slots = tokens > 0 ? kept / tokens : 0;
  return sum;
}

json_t *ch_certificate_json(const choir_certificate *c) {
  if (!c->assignments) return json_null();
  return json_pack("{s:o, s:o, s:o, s:i, s:i, s:I, s:I}", "gap", ch_json_number(c->gap), "expert_before",
                   ch_json_number(c->expert_before), "token_before", ch_json_number(c->token_before), "expert_after",
                   c->expert_after, "token_after", c->token_after, "over_cap", (json_int_t)c->over_cap, "iterations",
                   (json_int_t)c->iterations);
}

/* The fields up to `histogram` as JSON. */
static json_t *stats_json(const choir_route_stats *s) {
  return json_pack("{s:I, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens", (json_int_t)s->tokens,
                   "experts", s->experts, "capacity", (json_int_t)s->capacity, "assignments",
                   (json_int_t)s->assignments, "dropped", (json_int_t)s->dropped, "aux_loss",
                   ch_json_number(s->aux_loss), "z_loss", ch_json_number(s->z_loss), "gate_mass",
                   ch_json_number(s->gate_mass), "load", ch_json_integers(s->load, s->experts), "demand",
                   ch_json_integers(s->demand, s->experts), "histogram", ch_json_integers(s->histogram, s->experts + 1),
                   "certificate", ch_certificate_json(&s->certificate));
}

int choir_route_stats_get_json(const choir_route_stats *stats, char **json) {
  CH_ENTER(stats, json);
  json_t *root = stats_json(stats);
  *json = ch_json_dump(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(root);
  return *json ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics as JSON");
}
