/* Ops that move whole rows: dispatch, combine, embedding. Memory-bound; a row is contiguous and read once. */
#include <string.h>

#include "cpu/simd/fill.h"

CH_SIMD_OP(gather) {
  const ch_record *r = a->record;
  int64_t d = a->d;
  int slots = ch_slots(r);
#pragma omp parallel for num_threads(x->threads) if (slots * d > CH_PIECE)
  for (int s = 0; s < slots; s++) memcpy(a->y + s * d, a->x + r->slot_token[s] * d, (size_t)d * sizeof(float));
}

/* out = sum of gate y over the token's slots, or out += ...; out stays in L1. */
static void combine_token(const ch_combine_args *a, int t) {
  const ch_record *r = a->record;
  int64_t d = a->d;
  float *out = a->out + t * d;
  int begin = r->token_begin[t], end = r->token_begin[t + 1];
  if (begin == end && !a->out_acc) memset(out, 0, (size_t)d * sizeof *out);
  for (int i = begin; i < end; i++) {
    int s = r->token_slot[i];
    const float *y = a->y + s * d;
    float gate = a->gated ? r->slot_gate[s] : 1.0f;
    if (i == begin && !a->out_acc) {
#pragma omp simd
      for (int64_t j = 0; j < d; j++) out[j] = gate * y[j];
    } else {
#pragma omp simd
      for (int64_t j = 0; j < d; j++) out[j] += gate * y[j];
    }
  }
}

/* Dynamic schedule, because tokens differ in their number of slots. */
CH_SIMD_OP(combine) {
#pragma omp parallel for schedule(dynamic, 64) \
    num_threads(x->threads) if (ch_slots(a->record) * (int64_t)a->d > CH_PIECE)
  for (int t = 0; t < a->record->tokens; t++) combine_token(a, t);
}

/* One pass: y is read before dy, which may be the same array, is written. */
static float combine_backward_row(int64_t d, float gate, const float *dout, const float *y, float *dy) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t j = 0; j < d; j++) {
    dot += dout[j] * y[j];
    dy[j] = gate * dout[j];
  }
  return dot;
}

CH_SIMD_OP(combine_backward) {
  const ch_record *r = a->record;
  int64_t d = a->d;
  int slots = ch_slots(r);
#pragma omp parallel for num_threads(x->threads) if (slots * d > CH_PIECE)
  for (int s = 0; s < slots; s++)
    a->dgate[s] = combine_backward_row(d, a->gated ? r->slot_gate[s] : 1.0f, a->dout + r->slot_token[s] * d,
                                       a->y + s * d, a->dy + s * d);
}

CH_SIMD_OP(embedding) {
  int64_t d = a->d;
  float scale = a->scale != 0 ? a->scale : 1;
#pragma omp parallel for num_threads(x->threads) if (a->n * d > CH_PIECE)
  for (int64_t t = 0; t < a->n; t++) {
    const float *w = a->w + a->token[t] * d;
    float *to = a->x + t * d;
#pragma omp simd
    for (int64_t j = 0; j < d; j++) to[j] = scale * w[j];
  }
}

/* The vocabulary is split into classes. The task of a class scans all ids (few bytes compared with rows), so that
 * repeated tokens add up in ascending t and no two threads share a row. */
CH_SIMD_OP(embedding_backward) {
  enum { CLASSES = 32 };
  int64_t d = a->d;
  float scale = a->scale != 0 ? a->scale : 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(x->threads) if (a->n * d > CH_PIECE)
  for (int part = 0; part < CLASSES; part++)
    for (int64_t t = 0; t < a->n; t++) {
      if (a->token[t] % CLASSES != part) continue;
      const float *dx = a->dx + t * d;
      float *dw = a->dw + a->token[t] * d;
#pragma omp simd
      for (int64_t j = 0; j < d; j++) dw[j] += scale * dx[j];
    }
}
