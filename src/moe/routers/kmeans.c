/* Hard routing by clusters: a token goes to the expert whose centroid is nearest to its hidden state, gate 1. Centroids
 * are the columns of the router's weight [d,e]; they have no gradient: `observe` moves each toward the mean of its
 * tokens, on the host. |x - mu|^2 / 2 = |x|^2 / 2 - (x.mu - |mu|^2 / 2), and x.mu are the logits. */
#include <math.h>
#include <string.h>

#include "comm/collective.h"
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

/* |mu|^2 / 2 of every expert. */
static const real *half_squares(ch_exec *x, const ch_route_args *a) {
  real *half = CH_NEW_HOST(&ch_host(x)->scratch, real, a->e);
  const real *weight = ch_download(x, a->weight, (size_t)a->d * (size_t)a->e * sizeof *weight);
  for (int i = 0; i < a->e && !ch_counting(x); i++) {
    double sum = 0;
    for (int j = 0; j < a->d; j++) sum += (double)weight[(int64_t)j * a->e + i] * (double)weight[(int64_t)j * a->e + i];
    half[i] = (real)(sum / 2);
  }
  return half;
}

/* Outside a layer there are no centroids; the highest score then counts as the nearest. */
static void route_kmeans(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_choices c = ch_choices_alloc(x, a, 1);
  const real CH_DEV *half = a->weight ? ch_upload(&x->scratch, half_squares(x, a), (size_t)a->e * sizeof *half) : NULL;
  ch_choices_best(x, a, a->routing->logits, half, &c);
  ch_choices_place(x, a, &c, 0);
  CH_OP(x, gate, .rule = CH_GATE_EVEN, .count = 1, .record = &a->routing->record);
}

/* ---- centroids */

/* Inputs of an update of the centroids. */
typedef struct {
  int threads, n, d, e;
  const int *begin, *token;      /* of the record */
  const uint8_t *valid;          /* [n] or NULL */
  const real *x, *logits, *half; /* [n,d], [n,e] x.mu, [e] |mu|^2 / 2 */
  real *centroid;                /* [d,e] */
} step;

/* x.mu - |mu|^2 / 2 of the nearest centroid. */
static real closeness_of(const step *s, int t) {
  int best = 0;
  const real *score = s->logits + (int64_t)t * s->e;
  for (int i = 1; i < s->e; i++)
    if (score[i] - s->half[i] > score[best] - s->half[best]) best = i;
  return score[best] - s->half[best];
}

/* |x - mu|^2 / 2 of every token and its centroid; 0 for padding. */
static void find_distances(const step *s, real *distance) {
#pragma omp parallel for num_threads(s->threads)
  for (int t = 0; t < s->n; t++) {
    const real *in = s->x + (int64_t)t * s->d;
    double square = 0, closeness = (double)closeness_of(s, t);
    for (int j = 0; j < s->d; j++) square += (double)in[j] * (double)in[j];
    distance[t] = s->valid && !s->valid[t] ? 0 : (real)fmax(square / 2 - closeness, 0);
  }
}

/* Updates each token's distance to its nearest centroid after token `seed` has become a centroid. */
static void shorten(const step *s, int seed, real *distance) {
  const real *to = s->x + (int64_t)seed * s->d;
#pragma omp parallel for num_threads(s->threads)
  for (int t = 0; t < s->n; t++) {
    const real *from = s->x + (int64_t)t * s->d;
    double square = 0;
    for (int j = 0; j < s->d; j++) square += ((double)from[j] - (double)to[j]) * ((double)from[j] - (double)to[j]);
    if (square / 2 < (double)distance[t]) distance[t] = (real)(square / 2);
  }
}

/* Re-initializes experts without tokens: in order, each centroid is set to the token that is farthest from all
 * centroids (ties: the first token), including new ones. */
static void reseed(const step *s, real *distance) {
  int found = 0;
  for (int i = 0; i < s->e; i++) {
    if (s->begin[i + 1] > s->begin[i]) continue;
    if (!found++) find_distances(s, distance);
    int far = 0;
    for (int t = 1; t < s->n; t++)
      if (distance[t] > distance[far]) far = t;
    if (!(distance[far] > 0)) return; /* every token is equal to a centroid */
    for (int j = 0; j < s->d; j++) s->centroid[(int64_t)j * s->e + i] = s->x[(int64_t)far * s->d + j];
    shorten(s, far, distance);
  }
}

/* Moves the centroids of experts with tokens toward the tokens' mean, by the fraction `weight`. sums: [e,d] */
static void move(const step *s, double weight, double *sums) {
#pragma omp parallel for num_threads(s->threads)
  for (int i = 0; i < s->e; i++) {
    int begin = s->begin[i], end = s->begin[i + 1];
    double *sum = sums + (int64_t)i * s->d;
    if (begin == end) continue;
    memset(sum, 0, (size_t)s->d * sizeof *sum);
    for (int at = begin; at < end; at++)
      for (int j = 0; j < s->d; j++) sum[j] += (double)s->x[(int64_t)s->token[at] * s->d + j];
    for (int j = 0; j < s->d; j++) {
      real *centroid = &s->centroid[(int64_t)j * s->e + i];
      *centroid = (real)((double)*centroid + weight * (sum[j] / (end - begin) - (double)*centroid));
    }
  }
}

/* Uses the rows of all ranks. The state is the weight itself, so distances to the old centroids are computed before the
 * update. */
static void observe(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  ch_arena *host = &ch_host(x)->scratch;
  const ch_record *r = &a->routing->record;
  size_t n = (size_t)a->n, e = (size_t)a->e, d = (size_t)a->d, centroids = d * e * sizeof(real);
  int64_t local = ch_local_count(x->comm, a->n) * a->d * (int64_t)sizeof(real);
  const real CH_DEV *rows = ch_comm_gather_in(&x->scratch, x->comm, "tokens of all", a->x, local);
  step s = {.threads = x->threads,
            .n = a->n,
            .d = a->d,
            .e = a->e,
            .begin = ch_download(x, r->expert_begin, (e + 1) * sizeof(int)),
            .token = ch_download(x, r->slot_token, (size_t)r->max_slots * sizeof(int)),
            .valid = a->tokens.valid ? a->tokens.mask : NULL,
            .x = ch_download(x, rows, n * d * sizeof(real)),
            .logits = ch_download(x, a->routing->logits, n * e * sizeof(real)),
            .half = half_squares(x, a),
            .centroid = (real *)(uintptr_t)ch_download(x, a->router_state.updated, centroids)};
  real *distance = CH_NEW_HOST(host, real, n);
  double *sums = CH_NEW_HOST(host, double, (e * d));
  if (ch_counting(x)) return;
  reseed(&s, distance);
  move(&s, ch_router_mean_weight(a->options->decay, a->router_state.observed), sums);
  if (!x->memory->host) x->memory->upload(a->router_state.updated, s.centroid, centroids);
}

const ch_router ch_router_kmeans = {
    .name = "kmeans",
    .summary = "each token goes to the expert with the nearest centroid; centroids track the tokens, without gradients",
    .reads = CHOIR_READS_LOGITS,
    .takes = {.decay = 1},
    .choices = 1,
    .defaults = {.capacity_factor = 1},
    .check = ch_token_choice_check,
    .max_slots = ch_token_choice_slots,
    .route = route_kmeans,
    .observe = observe,
};
