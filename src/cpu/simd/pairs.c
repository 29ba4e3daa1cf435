/* The consistency loss of two predictions of one target, for the head. */
#include "cpu/simd/rows.h"

enum { FLUSH = 4096 };

/* Sums of p delta and q delta: float within a run of elements, double over runs. */
static void means(int count, const float *delta, const float *z, const float *y, double *A, double *B) {
  *A = *B = 0;
  for (int begin = 0; begin < count; begin += FLUSH) {
    int end = count - begin < FLUSH ? count : begin + FLUSH;
    float a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
    for (int v = begin; v < end; v++) {
      a += z[v] * delta[v];
      b += y[v] * delta[v];
    }
    *A += (double)a;
    *B += (double)b;
  }
}

double CH_SIMD(ch_consistency)(const ch_pair *r, float *restrict z, float *restrict y) {
  const float *restrict delta = r->delta;
  double A, B;
  means(r->count, delta, z, y, &A, &B);
  A /= r->sum[0];
  B /= r->sum[1];
  float to_p = (float)(1 / r->sum[0]), to_q = (float)(1 / r->sum[1]), weight = r->weight, half = r->consistency / 2;
  float one_less_A = (float)(1 - A), one_plus_B = (float)(1 + B);
#pragma omp simd
  for (int v = 0; v < r->count; v++) {
    float p = z[v] * to_p, q = y[v] * to_q;
    z[v] = weight * p + half * (p * (one_less_A + delta[v]) - q);
    y[v] = weight * q + half * (q * (one_plus_B - delta[v]) - p);
  }
  return (A - B) / 2;
}
