/* Batches of products by the definition, in double. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* Matrix p of a batch as doubles [columns][rows], whatever stands in memory. */
static double *widened(const fake_matrix *a, int p, int rows, int columns) {
  double *all = malloc((size_t)rows * (size_t)columns * sizeof *all);
  if (!all) fake_wrong("no memory for a product");
  for (int c = 0; c < columns; c++)
    for (int r = 0; r < rows; r++) {
      long long i = p * a->stride + (a->transposed ? (long long)r * a->ld + c : (long long)c * a->ld + r);
      union {
        uint32_t bits;
        float value;
      } x = {a->type ? (uint32_t)((const uint16_t *)a->at)[i] << 16 : ((const uint32_t *)a->at)[i]};
      all[(size_t)c * (size_t)rows + (size_t)r] = x.value;
    }
  return all;
}

/* The nearest bf16 number, the even one of two. */
static uint16_t rounded(float value) {
  union {
    float value;
    uint32_t bits;
  } x = {value};
  return (uint16_t)(value == value ? (x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16 : 0x7fc0);
}

/* Sums of a column of C, over l in ascending order. b: the column of B. */
static void add_up(double *sum, const double *a, const double *b, int m, int k) {
  memset(sum, 0, (size_t)m * sizeof *sum);
  for (int l = 0; l < k; l++, a += m)
    for (int i = 0; i < m; i++) sum[i] += a[i] * b[l];
}

static void put(const fake_product *q, long long at, double sum) {
  float *to = q->c.at, result = (float)(q->alpha * sum);
  if (q->c.type)
    ((uint16_t *)q->c.at)[at] = rounded(result);
  else
    to[at] = result + (q->beta ? q->beta * to[at] : 0);
}

void fake_multiply(const fake_product *q) {
  double *sum = malloc((size_t)q->m * sizeof *sum);
  for (int p = 0; p < q->batch; p++) {
    double *a = widened(&q->a, p, q->m, q->k), *b = widened(&q->b, p, q->k, q->n);
    for (int j = 0; j < q->n; j++) {
      add_up(sum, a, b + (size_t)j * (size_t)q->k, q->m, q->k);
      for (int i = 0; i < q->m; i++) put(q, p * q->c.stride + (long long)j * q->c.ld + i, sum[i]);
    }
    free(a), free(b);
  }
  free(sum);
}
