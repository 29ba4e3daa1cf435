/* dykstra in units of lambda, on a copy of the scores whose rows are whole vectors. One pass over the scores an
 * iteration: a piece of tokens gets its new alphas and, while its scores are near, its part of the experts' next sums.
 */
#include <math.h>

#include "cpu/simd/fill.h"
#include "cpu/simd/row_exp.h"

enum { TOKENS = 128, PAD = 16 };
static const float never = -1e30f; /* columns that only fill a row up: no expert's score in units of lambda is as low */

typedef struct {
  const ch_dykstra_args *a;
  int threads, pieces;
  int64_t ld;
  float *score;   /* [n,ld] S / lambda */
  float *alpha;   /* [n] */
  float *beta[2]; /* [ld] of the last iteration, and of this one */
  float *largest; /* [pieces,ld] over the piece's tokens: max of log A without beta */
  float *sum;     /* [pieces,ld] of exp(log A - largest) */
  float *row;     /* [pieces,ld] scratch of a token */
} dykstra_state;

static int piece_begin(int p) { return p * TOKENS; }
static int piece_end(const dykstra_state *s, int p) { return (int)ch_piece_end(p, s->a->n, TOKENS); }
static int takes_part(const dykstra_state *s, int t) { return !s->a->valid || s->a->valid[t]; }

static void copy_scores(const dykstra_state *s, int p) {
  int e = s->a->e;
  float scale = (float)(1 / s->a->lambda);
  for (int t = piece_begin(p); t < piece_end(s, p); t++) {
    const float *from = s->a->score + (int64_t)t * e;
    float *to = s->score + t * s->ld;
    for (int i = 0; i < e; i++) to[i] = from[i] * scale;
    for (int64_t i = e; i < s->ld; i++) to[i] = never;
    s->alpha[t] = s->a->warm && takes_part(s, t) ? s->a->alpha[t] * scale : 0;
  }
}

/* The piece's part of sum_t exp(min(S, alpha + beta) - alpha), the experts' loads except for exp(-beta). */
static void add_columns(const dykstra_state *s, int p, const float *beta) {
  int64_t ld = s->ld;
  float *restrict largest = s->largest + p * ld, *restrict sum = s->sum + p * ld;
  for (int64_t i = 0; i < ld; i++) {
    largest[i] = -INFINITY;
    sum[i] = 0;
  }
  for (int t = piece_begin(p); t < piece_end(s, p); t++) {
    if (!takes_part(s, t)) continue;
    const float *restrict score = s->score + t * ld;
    float alpha = s->alpha[t];
#pragma omp simd
    for (int64_t i = 0; i < ld; i++) {
      float z = score[i] - alpha;
      z = z < beta[i] ? z : beta[i];
      largest[i] = z > largest[i] ? z : largest[i];
    }
  }
  for (int t = piece_begin(p); t < piece_end(s, p); t++) {
    if (!takes_part(s, t)) continue;
    const float *restrict score = s->score + t * ld;
    float alpha = s->alpha[t];
#pragma omp simd
    for (int64_t i = 0; i < ld; i++) {
      float z = score[i] - alpha;
      z = z < beta[i] ? z : beta[i];
      sum[i] += ch_expf(z - largest[i]);
    }
  }
}

/* beta = log(sum over all tokens) - log k; returns how far the furthest moved from `last`. Uses up piece 0's sums. */
static float move_beta(const dykstra_state *s, const float *last, float *beta) {
  int64_t ld = s->ld;
  float *restrict most = s->row, *restrict sum = s->sum, moved = 0, log_k = logf((float)s->a->k);
  for (int64_t i = 0; i < ld; i++) most[i] = s->largest[i];
  for (int p = 1; p < s->pieces; p++)
    for (int64_t i = 0; i < ld; i++) {
      float largest = s->largest[p * ld + i];
      most[i] = largest > most[i] ? largest : most[i];
    }
  for (int64_t i = 0; i < ld; i++) sum[i] *= ch_expf(s->largest[i] - most[i]);
  for (int p = 1; p < s->pieces; p++) {
    const float *restrict part = s->sum + p * ld, *restrict largest = s->largest + p * ld;
    for (int64_t i = 0; i < ld; i++) sum[i] += part[i] * ch_expf(largest[i] - most[i]);
  }
  for (int i = 0; i < s->a->e; i++) {
    beta[i] = most[i] + logf(sum[i]) - log_k;
    float change = fabsf(beta[i] - last[i]);
    moved = change > moved || change != change ? change : moved;
  }
  for (int64_t i = s->a->e; i < ld; i++) beta[i] = 0;
  return moved;
}

/* alpha = max(0, log(sum over experts) - log b), with the entries' corrections of the last iteration. */
static void move_alphas(const dykstra_state *s, int p, const float *last, const float *beta) {
  int64_t ld = s->ld;
  float *restrict z = s->row + p * ld, log_b = logf((float)s->a->b);
  for (int t = piece_begin(p); t < piece_end(s, p); t++) {
    if (!takes_part(s, t)) continue;
    const float *restrict score = s->score + t * ld;
    float alpha = s->alpha[t];
#pragma omp simd
    for (int64_t i = 0; i < ld; i++) {
      float bound = alpha + last[i];
      z[i] = (score[i] < bound ? score[i] : bound) - beta[i];
    }
    float largest = ch_row_max((int)ld, z);
    alpha = largest + logf(ch_row_exp((int)ld, z, largest)) - log_b;
    s->alpha[t] = alpha > 0 ? alpha : 0;
  }
}

/* The outputs of the piece's tokens; loads go to the piece's sums. */
static void finish_piece(const dykstra_state *s, int p, const float *beta) {
  const ch_dykstra_args *a = s->a;
  float *restrict z = s->row + p * s->ld, *restrict load = s->sum + p * s->ld, lambda = (float)a->lambda;
  for (int64_t i = 0; i < s->ld; i++) load[i] = 0;
  for (int t = piece_begin(p); t < piece_end(s, p); t++) {
    const float *restrict score = s->score + t * s->ld;
    float *restrict margin = a->margin + (int64_t)t * a->e, alpha = s->alpha[t];
#pragma omp simd
    for (int64_t i = 0; i < s->ld; i++) {
      float value = score[i] - alpha - beta[i];
      z[i] = value < 0 ? value : 0;
    }
    for (int i = 0; i < a->e; i++) margin[i] = z[i] * lambda;
    a->alpha[t] = alpha * lambda;
    a->taken[t] = 0;
    if (!takes_part(s, t)) continue;
    a->taken[t] = (double)ch_row_exp((int)s->ld, z, 0);
    for (int64_t i = 0; i < s->ld; i++) load[i] += z[i];
  }
}

static void write_out(const dykstra_state *s, const float *beta) {
  for (int i = 0; i < s->a->e; i++) {
    s->a->beta[i] = beta[i] * (float)s->a->lambda;
    s->a->load[i] = 0;
    for (int p = 0; p < s->pieces; p++) s->a->load[i] += (double)s->sum[p * s->ld + i];
  }
}

/* Alternates until the iterations are used up or beta stands still; returns the beta that goes with the alphas. */
static const float *iterate(const dykstra_state *s) {
  const ch_dykstra_args *a = s->a;
  int now = 0;
  float tolerance = (float)a->tolerance;
  for (int64_t i = 0; i < s->ld; i++)
    s->beta[0][i] = a->warm && i < a->e ? a->beta[i] * (float)(1 / a->lambda) : INFINITY;
#pragma omp parallel for num_threads(s->threads)
  for (int p = 0; p < s->pieces; p++) {
    copy_scores(s, p);
    add_columns(s, p, s->beta[0]);
  }
  for (*a->done = 0; *a->done < a->iterations; ++*a->done, now = !now) {
    const float *last = s->beta[now], *beta = s->beta[!now];
    if (move_beta(s, last, s->beta[!now]) <= tolerance) break;
#pragma omp parallel for num_threads(s->threads)
    for (int p = 0; p < s->pieces; p++) {
      move_alphas(s, p, last, beta);
      add_columns(s, p, beta);
    }
  }
  return s->beta[now];
}

CH_SIMD_SCRATCH_OP(dykstra) {
  CH_SCRATCH(x);
  dykstra_state s = {
      .a = a, .threads = x->threads, .pieces = (int)ch_pieces(a->n, TOKENS), .ld = ch_pieces(a->e, PAD) * PAD};
  s.score = CH_NEW(&x->scratch, float, a->n *s.ld);
  s.alpha = CH_NEW(&x->scratch, float, a->n);
  s.beta[0] = CH_NEW(&x->scratch, float, s.ld);
  s.beta[1] = CH_NEW(&x->scratch, float, s.ld);
  s.largest = CH_NEW(&x->scratch, float, s.pieces *s.ld);
  s.sum = CH_NEW(&x->scratch, float, s.pieces *s.ld);
  s.row = CH_NEW(&x->scratch, float, s.pieces *s.ld);
  if (ch_counting(x)) return;
  const float *beta = iterate(&s);
#pragma omp parallel for num_threads(x->threads)
  for (int p = 0; p < s.pieces; p++) finish_piece(&s, p, beta);
  write_out(&s, beta);
}
