/* The final norm and the head, on all positions or on the requested ones. */

#include <math.h>

#include "model/block.h"

static real scale_of(const ch_transformer *m) {
  double scale = m->config.head_scale;
  return (real)(scale > 0 ? scale : 1 / sqrt((double)m->config.d_model));
}

/* Number of rows of logits, and of targets, in a pass. */
static int64_t logit_rows(const ch_pass *p) { return p->row ? p->rows : (int64_t)p->B * p->T; }

/* Weight of the consistency loss (between the two predictions of a sequence) for each pair with a target. */
double ch_consistency_weight(ch_exec *x, const ch_transformer *m, const ch_pass *p) {
  int64_t targets = 0;
  if (!p->paired || ch_counting(x)) return 0;
  for (int64_t t = 0; t < logit_rows(p) / 2; t++) targets += p->target[t] >= 0;
  return targets ? m->config.router.consistency_weight / (double)targets : 0;
}

/* Gathers the requested positions `row` [rows] from the stream [B*T,d]; the counterpart below scatters their gradients
 * [rows,d] into dx and clears the other rows. Both use the embedding ops, with positions as tokens. */
static const real CH_DEV *pick_rows(ch_exec *x, const ch_transformer *m, const ch_pass *p, const int32_t CH_DEV *row,
                                    const real CH_DEV *in) {
  int d = m->config.d_model;
  real CH_DEV *picked = CH_NEW(&x->scratch, real, (int64_t)p->rows * d);
  CH_OP(x, embedding, .n = p->rows, .d = d, .V = p->B * p->T, .token = row, .w = in, .x = picked);
  return picked;
}

static void spread_rows(ch_exec *x, const ch_transformer *m, const ch_pass *p, const int32_t CH_DEV *row,
                        const real CH_DEV *dpicked, real CH_DEV *dx) {
  int d = m->config.d_model;
  CH_OP(x, copy, .count = (int64_t)p->B * p->T * d, .y = dx);
  CH_OP(x, embedding_backward, .n = p->rows, .d = d, .V = p->B * p->T, .token = row, .dx = dpicked, .dw = dx);
}

typedef struct {
  const ch_transformer *m;
  const ch_pass *p;
  int64_t n;                      /* rows of a gradient chunk */
  const int32_t CH_DEV *target;   /* [rows] of all gradient chunks, as all arrays here */
  const float CH_DEV *row_weight; /* [rows] or NULL */
  const real CH_DEV *in;          /* [rows,d] */
  real CH_DEV *dx;                /* [rows,d] or NULL */
  real CH_DEV *logits;            /* [rows,V] or NULL */
  float CH_DEV *losses;           /* [rows] or NULL */
} head_chunk;

enum { DHEAD, DNORM, GRADIENTS };

/* The head on one gradient chunk. dw: gradients of the head's weight [V,d] and of the norm's weight [d]. */
static void chunk_head(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  const head_chunk *c = context;
  const ch_transformer *m = c->m;
  const ch_pass *p = c->p;
  int d = m->config.d_model, V = m->config.vocab_size;
  int64_t n = c->n, first = shard * n;
  CH_SCRATCH(x);
  ch_rmsnorm_args norm = ch_norm(x, m, m->final_norm, n, c->in + first * d, NULL);
  real CH_DEV *dnormed = p->gradients ? CH_NEW(&x->scratch, real, n * d) : NULL;
  CH_OP(x, head, .n = n, .d = d, .V = V, .scale = scale_of(m), .x = norm.y, .w = m->head->w, .w16 = m->head->w16,
        .w8 = m->head->w8, .target = c->target + first, .row_weight = c->row_weight ? c->row_weight + first : NULL,
        .loss_sum = p->grad_chunk_loss + shard, .loss_total = p->sums + CH_PASS_GUARD,
        .token_loss = c->losses ? c->losses + first : NULL, .logits = c->logits ? c->logits + first * V : NULL,
        .weight = p->weight, .dx = dnormed, .dw = dw[DHEAD], .accumulate = accumulate, .paired = p->paired,
        .consistency_sum = p->sums + CH_PASS_CONSISTENCY,
        .consistency = p->aux_scale * (real)ch_consistency_weight(x, m, p));
  norm.dy = dnormed;
  norm.dx = p->gradients ? c->dx + first * d : NULL;
  norm.dw = dw[DNORM];
  if (p->gradients) x->ops->rmsnorm_backward(x, &norm);
}

/* Runs the head on all gradient chunks, and sums the weights' gradients if the pass has gradients. */
static void all_chunks(ch_exec *x, const head_chunk *c) {
  const ch_sum sum[GRADIENTS] = {ch_sum_of(c->m->head), ch_sum_of(c->m->final_norm)};
  real CH_DEV *const none[GRADIENTS] = {NULL, NULL};
  int grad_chunks = ch_pass_grad_chunks(c->p);
  if (c->p->gradients)
    ch_sum_grad_chunks(x, grad_chunks, sum, GRADIENTS, c->p->accumulate, chunk_head, (void *)c);
  else
    for (int i = 0; i < grad_chunks; i++) chunk_head(x, (void *)c, i, none, 0);
}

/* in [n,d], logits [n,V] */
void ch_logits(ch_exec *x, const ch_transformer *m, int64_t n, const real CH_DEV *in, real CH_DEV *logits) {
  int d = m->config.d_model;
  CH_SCRATCH(x);
  const ch_rmsnorm_args norm = ch_norm(x, m, m->final_norm, n, in, NULL);
  CH_OP(x, gemm, .m = n, .n = m->config.vocab_size, .k = d, .trans_b = 1, .a = norm.y, .b = m->head->w,
        .b16 = m->head->w16, .b8 = m->head->w8, .c = logits, .alpha = scale_of(m));
}

/* Targets [n], all -1, of a pass that computes logits and no loss. */
static const int32_t CH_DEV *no_targets(ch_exec *x, int64_t n) {
  int32_t *target = CH_NEW_HOST(&ch_host(x)->scratch, int32_t, n);
  for (int64_t i = 0; i < n && !ch_counting(x); i++) target[i] = -1;
  return ch_upload(&x->scratch, target, (size_t)n * sizeof *target);
}

void ch_head(ch_exec *x, const ch_transformer *m, const ch_pass *p, const real CH_DEV *in, real CH_DEV *dx) {
  int64_t n = logit_rows(p);
  CH_SCRATCH(x);
  size_t bytes = (size_t)n * (size_t)m->config.vocab_size * sizeof(real);
  size_t losses = (size_t)n * sizeof *p->token_loss;
  const int32_t CH_DEV *row = p->row ? ch_upload(&x->scratch, p->row, (size_t)n * sizeof *p->row) : NULL;
  real CH_DEV *dpicked = p->gradients && row ? CH_NEW(&x->scratch, real, n * m->config.d_model) : dx;
  head_chunk c = {
      .m = m,
      .p = p,
      .n = n / ch_pass_grad_chunks(p),
      .target = p->target ? ch_upload(&x->scratch, p->target, (size_t)n * sizeof *p->target) : no_targets(x, n),
      .row_weight = p->row_weight || ch_counting(x) ? ch_upload(&x->scratch, p->row_weight, losses) : NULL,
      .in = row ? pick_rows(x, m, p, row, in) : in,
      .dx = dpicked,
      .logits = p->logits ? ch_staging(&x->scratch, p->logits, bytes) : NULL,
      .losses = p->token_loss || ch_counting(x) ? ch_staging(&x->scratch, p->token_loss, losses) : NULL};
  all_chunks(x, &c);
  if (p->token_loss) ch_download_into(&x->scratch, p->token_loss, c.losses, losses);
  if (p->logits) ch_download_into(&x->scratch, p->logits, c.logits, bytes);
  if (p->gradients && row) spread_rows(x, m, p, row, dpicked, dx);
}
