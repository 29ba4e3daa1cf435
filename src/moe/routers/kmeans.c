/* Hard routing by clusters: a token goes to the expert whose centroid is nearest to its hidden state, gate 1. Centroids
 * are the columns of the router's weight [d,e]; no gradient trains them: `observe` moves each toward the mean of the
 * tokens that it got. |x - mu|^2 / 2 = |x|^2 / 2 - (x.mu - |mu|^2 / 2), and x.mu are the logits. */
#include <math.h>
#include <string.h>

#include "moe/routers/token_choice.h"

static int check(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  return ch_router_check_sizes(o, n, e);
}

/* |mu|^2 / 2 of every expert; 0 outside a layer, where there are no centroids and the best score is the nearest. */
static void half_squares(ch_exec *x, const ch_route_args *a, real *half) {
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < a->e; i++) {
    double sum = 0;
    for (int j = 0; a->weight && j < a->d; j++) {
      double w = (double)a->weight[(int64_t)j * a->e + i];
      sum += w * w;
    }
    half[i] = (real)(sum / 2);
  }
}

/* Ties to the lower expert; *closeness = x.mu - |mu|^2 / 2. */
static int nearest(const ch_route_args *a, int t, const real *half, real *closeness) {
  const real *score = (a->logits ? a->logits : a->scores) + (int64_t)t * a->e;
  int best = 0;
  for (int i = 1; i < a->e; i++)
    if (score[i] - half[i] > score[best] - half[best]) best = i;
  *closeness = score[best] - half[best];
  return best;
}

static void route(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 1);
  real *half = CH_NEW(&x->scratch, real, a->e);
  if (!ch_counting(x)) {
    half_squares(x, a, half);
#pragma omp parallel for num_threads(x->threads)
    for (int t = 0; t < a->n; t++) {
      real closeness;
      c.expert[t] = !a->valid || a->valid[t] ? nearest(a, t, half, &closeness) : -1;
      c.gate[t] = 1;
    }
    a->counts->aux_loss = 0;
    ch_choices_place(a, &c, ch_valid_count(a->valid, a->n));
  }
  ch_arena_release(&x->scratch, mark);
}

/* |x - mu|^2 / 2 of every token and its centroid; 0 where the token takes no part. */
static void distances(ch_exec *x, const ch_route_args *a, const real *half, real *distance) {
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    const real *in = a->x + (int64_t)t * a->d;
    double square = 0;
    real closeness;
    nearest(a, t, half, &closeness);
    for (int j = 0; j < a->d; j++) square += (double)in[j] * (double)in[j];
    distance[t] = a->valid && !a->valid[t] ? 0 : (real)fmax(square / 2 - (double)closeness, 0);
  }
}

/* ... now that there is a centroid where token `seed` is, too. */
static void shorten(ch_exec *x, const ch_route_args *a, int seed, real *distance) {
  const real *to = a->x + (int64_t)seed * a->d;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    const real *from = a->x + (int64_t)t * a->d;
    double square = 0;
    for (int j = 0; j < a->d; j++) square += ((double)from[j] - (double)to[j]) * ((double)from[j] - (double)to[j]);
    if (square / 2 < (double)distance[t]) distance[t] = (real)(square / 2);
  }
}

/* Experts that got nobody start again, in order, each from the token that is farthest from every centroid (of equal
 * ones the first), those of this step's new ones included: so they spread over the tokens. */
static void reseed(ch_exec *x, const ch_route_args *a, const real *half, real *distance) {
  const ch_record *r = a->record;
  int found = 0;
  for (int i = 0; i < a->e; i++) {
    if (r->expert_begin[i + 1] > r->expert_begin[i]) continue;
    if (!found++) distances(x, a, half, distance);
    int far = 0;
    for (int t = 1; t < a->n; t++)
      if (distance[t] > distance[far]) far = t;
    if (!(distance[far] > 0)) return; /* everybody stands on a centroid */
    for (int j = 0; j < a->d; j++) a->state[(int64_t)j * a->e + i] = a->x[(int64_t)far * a->d + j];
    shorten(x, a, far, distance);
  }
}

/* Moves experts that got somebody. */
static void move(ch_exec *x, const ch_route_args *a, double *sums) {
  const ch_record *r = a->record;
  double weight = ch_router_mean_weight(a->options->decay, a->observed);
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < a->e; i++) {
    int begin = r->expert_begin[i], end = r->expert_begin[i + 1];
    double *sum = sums + (int64_t)i * a->d;
    if (begin == end) continue;
    memset(sum, 0, (size_t)a->d * sizeof *sum);
    for (int s = begin; s < end; s++)
      for (int j = 0; j < a->d; j++) sum[j] += (double)a->x[(int64_t)r->slot_token[s] * a->d + j];
    for (int j = 0; j < a->d; j++) {
      real *centroid = &a->state[(int64_t)j * a->e + i];
      *centroid = (real)((double)*centroid + weight * (sum[j] / (end - begin) - (double)*centroid));
    }
  }
}

/* state is the weight itself: what is asked of the old centroids is asked before they move. */
static void observe(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  real *half = CH_NEW(&x->scratch, real, a->e), *distance = CH_NEW(&x->scratch, real, a->n);
  double *sums = CH_NEW(&x->scratch, double, (int64_t)a->e * a->d);
  if (!ch_counting(x)) {
    half_squares(x, a, half);
    reseed(x, a, half, distance);
    move(x, a, sums);
  }
  ch_arena_release(&x->scratch, mark);
}

const ch_router ch_router_kmeans = {
    .name = "kmeans",
    .summary = "the expert whose centroid is nearest; centroids follow the tokens, not gradients",
    .reads = CH_READS_LOGITS,
    .options = CH_ROUTER_TAKES(decay),
    .choices = 1,
    .defaults = {CH_ROUTER_DEFAULTS("kmeans"), .capacity_factor = 1},
    .check = check,
    .max_slots = ch_fixed_max_slots,
    .route = route,
    .observe = observe,
};
