/* Statistics counted from routings of a callback: `choir stats`, `choir inspect`, evaluations of a training run. */
#include <math.h>
#include <stdlib.h>

#include "moe/route_stats.h"

int choir_routing_expert(const choir_routing *r, int slot) {
  if (!r) return -1;
  int low = 0, high = r->experts;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (r->expert_begin[middle] <= slot)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static double score_at(const void *scores, int i) { return (double)((const float *)scores)[i]; }
static double count_at(const void *counts, int i) { return (double)((const int64_t *)counts)[i]; }

/* Entropy of weights that need not sum to 1; nats. log(sum) - sum w log w / sum */
static double entropy(double (*at)(const void *weights, int i), const void *weights, int count) {
  double sum = 0, dot = 0;
  for (int i = 0; i < count; i++) {
    double w = at(weights, i);
    if (!(w > 0)) continue;
    sum += w;
    dot += w * log(w);
  }
  return sum > 0 ? log(sum) - dot / sum : 0;
}

static int is_valid(const choir_routing *r, int t) { return !r->valid || r->valid[t]; }

/* Counts tokens by their number of experts, and adds their entropy; returns the number of valid tokens. */
static int64_t add_tokens(choir_route_stats *s, const choir_routing *r) {
  double sum = 0;
  int64_t tokens = 0;
  for (int t = 0; t < r->tokens; t++) {
    if (!is_valid(r, t)) continue;
    tokens++;
    s->histogram[r->token_begin[t + 1] - r->token_begin[t]]++;
    if (r->scores) sum += entropy(score_at, r->scores + (int64_t)t * r->experts, r->experts);
    if (s->text && r->token && r->token[t] >= 0 && r->token[t] < s->vocab_size) s->text[r->token[t]]++;
  }
  s->token_entropy = r->scores ? ch_pooled(s->token_entropy, s->tokens, sum, tokens) : NAN;
  return tokens;
}

/* Counts the tokens of each expert; returns the sum of all gates. */
static double add_slots(choir_route_stats *s, const choir_routing *r) {
  double mass = 0;
  for (int i = 0; i < r->experts; i++) {
    double gates = 0;
    int load = r->expert_begin[i + 1] - r->expert_begin[i];
    for (int slot = r->expert_begin[i]; slot < r->expert_begin[i + 1]; slot++) {
      gates += (double)r->slot_gate[slot];
      int32_t id = r->token ? r->token[r->slot_token[slot]] : -1;
      if (s->held && id >= 0 && id < s->vocab_size) s->held[(int64_t)i * s->vocab_size + id]++;
    }
    s->gate[i] = ch_pooled(s->gate[i], s->load[i], gates, load);
    s->load[i] += load;
    s->demand[i] += r->demand[i];
    mass += gates;
  }
  return mass;
}

/* Pairs of experts that hold the same token. */
static void add_shared(choir_route_stats *s, const choir_routing *r) {
  for (int t = 0; t < r->tokens; t++)
    for (int a = r->token_begin[t]; a < r->token_begin[t + 1]; a++) {
      int64_t row = (int64_t)choir_routing_expert(r, r->token_slot[a]) * s->experts;
      for (int b = r->token_begin[t]; b < r->token_begin[t + 1]; b++)
        s->shared[row + choir_routing_expert(r, r->token_slot[b])]++;
    }
}

/* Weights a batch by its number of tokens, since the last batch may be smaller. */
static void add_cutoffs(choir_route_stats *s, const choir_routing *r, int64_t tokens) {
  double sum = 0;
  int known = 0;
  for (int i = 0; i < r->experts; i++) {
    if (r->thresholds) s->threshold[i] = (double)r->thresholds[i];
    if (r->cutoffs && isfinite(r->cutoffs[i])) {
      s->cutoff[i] = ch_pooled(s->cutoff[i], s->ranked[i], (double)r->cutoffs[i] * (double)tokens, tokens);
      s->ranked[i] += tokens;
    }
    if (!isfinite(s->threshold[i]) || s->threshold[i] == 0 || !isfinite(s->cutoff[i])) continue;
    sum += fabs((s->cutoff[i] - s->threshold[i]) / s->threshold[i]);
    known++;
  }
  s->drift = known ? sum / known : NAN;
}

void choir_route_stats_count(choir_route_stats *s, const choir_routing *r) {
  if (!s || !r) return;
  if (r->experts != s->experts || !s->gate) return; /* statistics of choir_route and of models have no arrays */
  s->layer = r->layer;
  s->moe = r->moe;
  int64_t tokens = add_tokens(s, r);
  double mass = add_slots(s, r);
  if (s->shared) add_shared(s, r);
  if (tokens) add_cutoffs(s, r, tokens);
  s->gate_mass = ch_pooled(s->gate_mass, s->tokens, mass, tokens);
  s->aux_loss = ch_pooled(s->aux_loss, s->tokens, r->aux_loss * (double)tokens, tokens);
  s->z_loss = ch_pooled(s->z_loss, s->tokens, r->z_loss * (double)tokens, tokens);
  ch_certificate_add(&s->certificate, &r->certificate);
  s->tokens += tokens;
  s->assignments += r->expert_begin[r->experts];
  s->dropped += r->dropped;
  s->capacity += r->capacity;
  s->target += r->target;
  s->load_entropy = entropy(count_at, s->load, s->experts);
}

double choir_route_stats_overlap(const choir_route_stats *s, int a, int b) {
  if (!s) return 0;
  if (!s->shared || a < 0 || b < 0 || a >= s->experts || b >= s->experts) return 0;
  int64_t both = s->shared[(int64_t)a * s->experts + b], either = s->load[a] + s->load[b] - both;
  return either ? (double)both / (double)either : 0;
}

/* Inserts a candidate into `best`, sorted by descending `value`. Candidates come in ascending order of tokens, so of
 * equal values the lower token comes first. */
static int insert(choir_favourite *best, double *value, int count, int max, choir_favourite candidate, double worth) {
  if (count == max && !(worth > value[max - 1])) return count;
  int at = count < max ? count : max - 1;
  for (; at > 0 && worth > value[at - 1]; at--) {
    best[at] = best[at - 1];
    value[at] = value[at - 1];
  }
  best[at] = candidate;
  value[at] = worth;
  return count < max ? count + 1 : count;
}

static int favourites(const choir_route_stats *s, int expert, int max, int typical, choir_favourite *best) {
  if (!s->held || expert < 0 || expert >= s->experts || max < 1 || !s->load[expert]) return 0;
  double *value = reallocarray(NULL, (size_t)max, sizeof *value);
  if (!value) return 0;
  int count = 0;
  for (int v = 0; v < s->vocab_size; v++) {
    int64_t held = s->held[(int64_t)expert * s->vocab_size + v];
    if (!held) continue;
    double lift = ((double)held / (double)s->load[expert]) / ((double)s->text[v] / (double)s->tokens);
    double worth = typical ? (double)held * log(lift) : (double)held;
    if (typical && !(lift > 1)) continue;
    count = insert(best, value, count, max,
                   (choir_favourite){.token = v, .held = held, .text = s->text[v], .lift = lift}, worth);
  }
  free(value);
  return count;
}

int choir_route_stats_get_frequent(const choir_route_stats *s, int expert, int max, choir_favourite *best) {
  return s ? favourites(s, expert, max, 0, best) : 0;
}

int choir_route_stats_get_typical(const choir_route_stats *s, int expert, int max, choir_favourite *best) {
  return s ? favourites(s, expert, max, 1, best) : 0;
}
