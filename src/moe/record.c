/* The routing record's memory, and the statistics that it holds. */
#include <stdlib.h>

#include "base/error.h"
#include "moe/router.h"

void ch_record_alloc(ch_arena *a, ch_record *r, int n, int e, int max_slots) {
  *r = (ch_record){.tokens = n, .experts = e, .slots = max_slots, .max_slots = max_slots};
  r->expert_begin = CH_NEW(a, int, e + 1);
  r->slot_token = CH_NEW(a, int, max_slots);
  r->slot_gate = CH_NEW(a, real, max_slots);
  r->token_begin = CH_NEW(a, int, n + 1);
  r->token_slot = CH_NEW(a, int, max_slots);
}

void choir_route_stats_free(choir_route_stats *stats) {
  free(stats->load);
  free(stats->demand);
  free(stats->histogram);
  *stats = (choir_route_stats){0};
}

int ch_route_stats_make(const ch_record *r, const ch_route_counts *c, const uint8_t *valid, choir_route_stats *stats) {
  *stats = (choir_route_stats){.tokens = ch_valid_count(valid, r->tokens), .experts = r->experts, .capacity = c->capacity,
                               .assignments = r->slots, .dropped = c->dropped, .aux_loss = c->aux_loss};
  size_t e = (size_t)r->experts;
  stats->load = calloc(e, sizeof *stats->load);
  stats->demand = calloc(e, sizeof *stats->demand);
  stats->histogram = calloc(e + 1, sizeof *stats->histogram);
  if (!stats->load || !stats->demand || !stats->histogram) {
    choir_route_stats_free(stats);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics of %d experts", r->experts);
  }
  for (int i = 0; i < r->experts; i++) {
    stats->load[i] = r->expert_begin[i + 1] - r->expert_begin[i];
    stats->demand[i] = c->demand[i];
  }
  for (int t = 0; t < r->tokens; t++)
    if (!valid || valid[t]) stats->histogram[r->token_begin[t + 1] - r->token_begin[t]]++;
  double mass = 0;
  for (int s = 0; s < r->slots; s++) mass += (double)r->slot_gate[s];
  stats->gate_mass = stats->tokens ? mass / stats->tokens : 0;
  return CHOIR_OK;
}

/* The mean over the tokens of both. */
static double pooled(double a, int64_t tokens_a, double b, int64_t tokens_b) {
  int64_t tokens = tokens_a + tokens_b;
  return tokens ? (a * (double)tokens_a + b * (double)tokens_b) / (double)tokens : 0;
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
  for (int i = 0; i < sum->experts; i++) {
    sum->load[i] += more->load[i];
    sum->demand[i] += more->demand[i];
  }
  for (int i = 0; i <= sum->experts; i++) sum->histogram[i] += more->histogram[i];
  return CHOIR_OK;
}
