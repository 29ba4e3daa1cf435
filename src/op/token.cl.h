/* What ops of routing do to one token or one expert: one text for the reference and for the kernels of devices, in the
 * common subset of C and CUDA C. Devices read it behind their prelude, which has the names below for them. */
#ifndef CH_OP_TOKEN_CL_H
#define CH_OP_TOKEN_CL_H

#ifndef GLOBAL
#include <math.h>

#include "base/real.h"
#define GLOBAL
#define INLINE static inline
#define INF ((real)INFINITY)
typedef unsigned char uchar;
#endif

/* The share that a score has of the sum of a token's two; both 0, which no softmax gives: the score itself. The sum of
 * two finite scores may overflow; their halves are added then. */
INLINE real normalize_top2(GLOBAL const real *value, real score) {
  real a_half = (real)0.5, sum = value[0] + value[1];
  return sum == INF ? a_half * score / (a_half * value[0] + a_half * value[1]) : score / (sum == 0 ? 1 : sum);
}

/* dscore [e] has the gradients of a token's two gates, and gets those of its scores: d(g1/(g1+g2)) = g2 dg1 / (g1+g2)^2
 * and so on; the square of a small sum would be 0. */
INLINE void normalize_top2_backward(GLOBAL const int *expert, GLOBAL const real *value, GLOBAL real *dscore) {
  real first = value[0], second = value[1], sum = first + second;
  if (expert[0] < 0 || sum == 0) return; /* with a sum of 0 gates are the scores themselves */
  real slope = (dscore[expert[0]] - dscore[expert[1]]) / sum;
  if (sum == INF) first *= (real)0.5, second *= (real)0.5, sum = first + second; /* the slope is 0: below all floats */
  dscore[expert[0]] = second / sum * slope;
  dscore[expert[1]] = -first / sum * slope;
}

/* The gates of a token's slots begin[0] .. begin[1]-1 are divided by their sum, which is returned. */
INLINE real normalize_gates(GLOBAL const int *begin, GLOBAL const int *slot, GLOBAL real *gate) {
  double sum = 0;
  for (int i = begin[0]; i < begin[1]; i++) sum += (double)gate[slot[i]];
  real by = (real)(sum == 0 ? 1 : sum);
  for (int i = begin[0]; i < begin[1]; i++)
    gate[slot[i]] = (real)((double)gate[slot[i]] / (by == INF ? sum : (double)by));
  return by == INF ? (real)3.40282347e+38 : by; /* finite gates, whose sum no float holds */
}

INLINE void normalize_gates_backward(GLOBAL const int *begin, GLOBAL const int *slot, GLOBAL const real *gate, real sum,
                                     GLOBAL real *dgate) {
  double mean = 0;
  for (int i = begin[0]; i < begin[1]; i++) mean += (double)gate[slot[i]] * (double)dgate[slot[i]];
  for (int i = begin[0]; i < begin[1]; i++) dgate[slot[i]] = (real)(((double)dgate[slot[i]] - mean) / (double)sum);
}

/* The share of the choices that each of `nulls` null experts gets, of those that share [e] leaves of 1. The loss needs
 * no mean score of null experts, which is 1 minus the others', with shares less this one. */
INLINE double null_share(int e, int nulls, GLOBAL const double *share) {
  double left = 1;
  for (int i = 0; i < e && nulls; i++) left -= share[i];
  return nulls ? left / nulls : 0;
}

/* sum_i (share_i - null) score_i of one token, of its scores divided by their sum if `whole` asks for that, which it
 * becomes; 0 of 0 counts as 0. */
INLINE double mean_share(int e, double null, GLOBAL const double *share, GLOBAL const real *score, double *whole) {
  double sum = 0, all = 0;
  for (int i = 0; i < e; i++) {
    sum += (share[i] - null) * (double)score[i];
    all += (double)score[i];
  }
  *whole = *whole == 0 || all == 0 ? 1 : all;
  return sum / *whole;
}

/* dscore [e] += scale times the gradient of that. */
INLINE void mean_share_backward(int e, int shares, double scale, double null, GLOBAL const double *share,
                                GLOBAL const real *score, GLOBAL real *dscore) {
  double whole = shares, mean = mean_share(e, null, share, score, &whole);
  for (int i = 0; i < e; i++) dscore[i] += (real)(scale * (share[i] - null - (shares ? mean : 0)) / whole);
}

INLINE real log_sum_exp(int e, GLOBAL const real *logit) {
  double max = (double)logit[0], sum = 0;
  for (int i = 1; i < e; i++) max = fmax(max, (double)logit[i]);
  for (int i = 0; i < e; i++) sum += exp((double)logit[i] - max);
  return (real)(max + log(sum));
}

/* Op `price`, of all experts. */
INLINE void move_prices(int e, GLOBAL const real *next, GLOBAL real *beta) {
  double sum = 0;
  int apart = 0;
  for (int i = 0; i < e && next; i++) apart |= next[i] != beta[i];
  for (int i = 0; i < e && next; i++) beta[i] = apart ? (beta[i] + next[i]) / 2 : 0;
  for (int i = 0; i < e; i++) sum += (double)beta[i];
  for (int i = 0; i < e; i++) beta[i] = (real)((double)beta[i] - (sum - 1) / e);
}

/* keep [e] = 1 where a valid token passes and, under a cap, is among the best of score - bar. */
INLINE void pass_bars(int e, int cap, int valid, GLOBAL const real *score, GLOBAL const real *bar, GLOBAL uchar *keep) {
  int passed = 0;
  for (int i = 0; i < e; i++) passed += keep[i] = valid && score[i] >= bar[i];
  for (; cap && passed > cap; passed--) {
    int worst = -1; /* of equal margins the higher expert goes */
    for (int i = 0; i < e; i++)
      if (keep[i] && (worst < 0 || score[i] - bar[i] <= score[worst] - bar[worst])) worst = i;
    keep[worst] = 0;
  }
}

#endif
