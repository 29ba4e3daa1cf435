/* Reference: centroids of k-means. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

CH_REF_OP(half_squares) {
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < a->e; i++) {
    double sum = 0;
    for (int j = 0; j < a->d; j++) {
      double w = (double)a->w[(int64_t)j * a->e + i];
      sum += w * w;
    }
    a->half[i] = (real)(sum / 2);
  }
}

/* x.mu - |mu|^2 / 2 of the nearest centroid. */
static real closeness_of(const ch_kmeans_args *a, int t) {
  int e = a->record->experts, best = 0;
  const real *score = a->logits + (int64_t)t * e;
  for (int i = 1; i < e; i++)
    if (score[i] - a->half[i] > score[best] - a->half[best]) best = i;
  return score[best] - a->half[best];
}

/* |x - mu|^2 / 2 of every token and its centroid; 0 where the token takes no part. */
static void distances(ch_exec *x, const ch_kmeans_args *a, real *distance) {
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->record->tokens; t++) {
    const real *in = a->x + (int64_t)t * a->d;
    double square = 0, closeness = (double)closeness_of(a, t);
    for (int j = 0; j < a->d; j++) square += (double)in[j] * (double)in[j];
    distance[t] = a->valid && !a->valid[t] ? 0 : (real)fmax(square / 2 - closeness, 0);
  }
}

/* Updates each token's distance to its nearest centroid after token `seed` has become a centroid. */
static void shorten(ch_exec *x, const ch_kmeans_args *a, int seed, real *distance) {
  const real *to = a->x + (int64_t)seed * a->d;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->record->tokens; t++) {
    const real *from = a->x + (int64_t)t * a->d;
    double square = 0;
    for (int j = 0; j < a->d; j++) square += ((double)from[j] - (double)to[j]) * ((double)from[j] - (double)to[j]);
    if (square / 2 < (double)distance[t]) distance[t] = (real)(square / 2);
  }
}

/* Experts that got nobody start again, so that they spread over the tokens. */
static void reseed(ch_exec *x, const ch_kmeans_args *a, real *distance) {
  const ch_record *r = a->record;
  int found = 0;
  for (int i = 0; i < r->experts; i++) {
    if (r->expert_begin[i + 1] > r->expert_begin[i]) continue;
    if (!found++) distances(x, a, distance);
    int far = 0;
    for (int t = 1; t < r->tokens; t++)
      if (distance[t] > distance[far]) far = t;
    if (!(distance[far] > 0)) return; /* everybody is on a centroid */
    for (int j = 0; j < a->d; j++) a->centroid[(int64_t)j * r->experts + i] = a->x[(int64_t)far * a->d + j];
    shorten(x, a, far, distance);
  }
}

/* Moves experts that got somebody. sums: [e,d] */
static void move(ch_exec *x, const ch_kmeans_args *a, double *sums) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(x->threads)
  for (int i = 0; i < r->experts; i++) {
    int begin = r->expert_begin[i], end = r->expert_begin[i + 1];
    double *sum = sums + (int64_t)i * a->d;
    if (begin == end) continue;
    memset(sum, 0, (size_t)a->d * sizeof *sum);
    for (int s = begin; s < end; s++)
      for (int j = 0; j < a->d; j++) sum[j] += (double)a->x[(int64_t)r->slot_token[s] * a->d + j];
    for (int j = 0; j < a->d; j++) {
      real *centroid = &a->centroid[(int64_t)j * r->experts + i];
      *centroid = (real)((double)*centroid + a->weight * (sum[j] / (end - begin) - (double)*centroid));
    }
  }
}

CH_REF_SCRATCH_OP(kmeans) {
  CH_SCRATCH(x);
  real *distance = CH_NEW(&x->scratch, real, a->record->tokens);
  double *sums = CH_NEW(&x->scratch, double, (int64_t)a->record->experts * a->d);
  if (ch_counting(x)) return;
  reseed(x, a, distance);
  move(x, a, sums);
}
