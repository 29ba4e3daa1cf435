/* Routing ops for one token or one expert, in the common subset of C and CUDA C: the same source for the reference and
 * for device kernels. On devices the kernel prelude defines the names below. */
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

/* score / (value[0] + value[1]); the score itself if the sum is 0. If the sum of the finite scores overflows, their
 * halves are added. */
INLINE real normalize_top2(GLOBAL const real *value, real score) {
  real a_half = (real)0.5, sum = value[0] + value[1];
  return sum == INF ? a_half * score / (a_half * value[0] + a_half * value[1]) : score / (sum == 0 ? 1 : sum);
}

/* In: dscore [e] has the gradients of a token's two gates; out: of its two scores: d(g1/(g1+g2)) = g2 dg1 / (g1+g2)^2
 * and so on. The factors avoid the square of a small sum, which would underflow to 0. */
INLINE void normalize_top2_backward(GLOBAL const int *expert, GLOBAL const real *value, GLOBAL real *dscore) {
  real first = value[0], second = value[1], sum = first + second;
  if (expert[0] < 0 || sum == 0) return; /* if the sum is 0, gates are the scores */
  real slope = (dscore[expert[0]] - dscore[expert[1]]) / sum;
  if (sum == INF)
    first *= (real)0.5, second *= (real)0.5, sum = first + second; /* the derivative is 0: it underflows */
  dscore[expert[0]] = second / sum * slope;
  dscore[expert[1]] = -first / sum * slope;
}

/* Divides the gates of a token's slots begin[0] .. begin[1]-1 by their sum, and returns the sum. */
INLINE real normalize_gates(GLOBAL const int *begin, GLOBAL const int *slot, GLOBAL real *gate) {
  double sum = 0;
  for (int i = begin[0]; i < begin[1]; i++) sum += (double)gate[slot[i]];
  real by = (real)(sum == 0 ? 1 : sum);
  for (int i = begin[0]; i < begin[1]; i++)
    gate[slot[i]] = (real)((double)gate[slot[i]] / (by == INF ? sum : (double)by));
  return by == INF ? (real)3.40282347e+38 : by; /* the sum of finite gates overflows */
}

INLINE void normalize_gates_backward(GLOBAL const int *begin, GLOBAL const int *slot, GLOBAL const real *gate, real sum,
                                     GLOBAL real *dgate) {
  double mean = 0;
  for (int i = begin[0]; i < begin[1]; i++) mean += (double)gate[slot[i]] * (double)dgate[slot[i]];
  for (int i = begin[0]; i < begin[1]; i++) dgate[slot[i]] = (real)(((double)dgate[slot[i]] - mean) / (double)sum);
}

/* The fraction of choices per null expert: (1 - sum of share [e]) / nulls. The load-balancing loss does not need the
 * mean score of null experts, which is 1 minus that of the others, if this fraction is subtracted from all shares. */
INLINE double null_share(int e, int nulls, GLOBAL const double *share) {
  double left = 1;
  for (int i = 0; i < e && nulls; i++) left -= share[i];
  return nulls ? left / nulls : 0;
}

/* sum_i (share_i - null) score_i of one token. If *whole is nonzero, scores are divided by their sum, which is stored
 * to *whole (1 if it is 0). */
INLINE double mean_share(int e, double null, GLOBAL const double *share, GLOBAL const real *score, double *whole) {
  double sum = 0, all = 0;
  for (int i = 0; i < e; i++) {
    sum += (share[i] - null) * (double)score[i];
    all += (double)score[i];
  }
  *whole = *whole == 0 || all == 0 ? 1 : all;
  return sum / *whole;
}

/* dscore [e] += scale times the gradient of mean_share. */
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

/* Op `price`, for all experts. */
INLINE void move_prices(int e, GLOBAL const real *next, GLOBAL real *beta) {
  double sum = 0;
  int apart = 0;
  for (int i = 0; i < e && next; i++) apart |= next[i] != beta[i];
  for (int i = 0; i < e && next; i++) beta[i] = apart ? (beta[i] + next[i]) / 2 : 0;
  for (int i = 0; i < e; i++) sum += (double)beta[i];
  for (int i = 0; i < e; i++) beta[i] = (real)((double)beta[i] - (sum - 1) / e);
}

/* keep [e] = 1 if the token is valid, score >= bar and, with a cap, score - bar is among the `cap` largest. */
INLINE void pass_bars(int e, int cap, int valid, GLOBAL const real *score, GLOBAL const real *bar, GLOBAL uchar *keep) {
  int passed = 0;
  for (int i = 0; i < e; i++) passed += keep[i] = valid && score[i] >= bar[i];
  for (; cap && passed > cap; passed--) {
    int worst = -1; /* ties: remove the higher expert */
    for (int i = 0; i < e; i++)
      if (keep[i] && (worst < 0 || score[i] - bar[i] <= score[worst] - bar[worst])) worst = i;
    keep[worst] = 0;
  }
}

#endif
