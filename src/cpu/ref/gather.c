/* Reference: ops that move whole rows: dispatch, combine, embedding. */
#include "cpu/ref/ref.h"

CH_REF_OP(gather) {
#pragma omp parallel for num_threads(x->threads)
  for (int s = 0; s < ch_slots(a->record); s++)
    for (int j = 0; j < a->d; j++) a->y[(int64_t)s * a->d + j] = a->x[(int64_t)a->record->slot_token[s] * a->d + j];
}

CH_REF_OP(combine) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < r->tokens; t++) {
    real *out = a->out + (int64_t)t * a->d;
    for (int j = 0; j < a->d; j++) {
      double sum = 0;
      for (int i = r->token_begin[t]; i < r->token_begin[t + 1]; i++) {
        int s = r->token_slot[i];
        sum += (a->gated ? (double)r->slot_gate[s] : 1) * (double)a->y[(int64_t)s * a->d + j];
      }
      out[j] = (real)(a->out_acc ? (double)out[j] + sum : sum);
    }
  }
}

CH_REF_OP(combine_backward) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(x->threads)
  for (int s = 0; s < ch_slots(r); s++) {
    const real *dout = a->dout + (int64_t)r->slot_token[s] * a->d, *y = a->y + (int64_t)s * a->d;
    double gate = a->gated ? (double)r->slot_gate[s] : 1, dot = 0;
    for (int j = 0; j < a->d; j++) dot += (double)dout[j] * (double)y[j]; /* before dy is written: dy may alias y */
    for (int j = 0; j < a->d; j++) a->dy[(int64_t)s * a->d + j] = (real)(gate * (double)dout[j]);
    a->dgate[s] = (real)dot;
  }
}

CH_REF_OP(embedding) {
  real scale = a->scale != 0 ? a->scale : 1;
#pragma omp parallel for num_threads(x->threads)
  for (int64_t t = 0; t < a->n; t++)
    for (int j = 0; j < a->d; j++) a->x[t * a->d + j] = scale * a->w[(int64_t)a->token[t] * a->d + j];
}

/* Parallel over columns, so that repeated tokens add up in ascending t. */
CH_REF_OP(embedding_backward) {
  real scale = a->scale != 0 ? a->scale : 1;
#pragma omp parallel for num_threads(x->threads)
  for (int j = 0; j < a->d; j++)
    for (int64_t t = 0; t < a->n; t++) a->dw[(int64_t)a->token[t] * a->d + j] += scale * a->dx[t * a->d + j];
}
