/* One pass of a session: the model's layers on a few new tokens of every sequence. */
#include <math.h>

#include "infer/session.h"
#include "model/block.h"

/* stream += Wo Attn(RMSNorm(stream)), with what the caches hold. */
static void attention_half(choir_session *s, ch_layer *b, const ch_pass *p, real CH_DEV *stream) {
  ch_exec *x = &s->x;
  const ch_transformer *m = &s->net;
  int n = p->T;
  CH_SCRATCH(x);
  b->rstd1 = CH_NEW(&x->scratch, real, n);
  b->qh = CH_NEW(&x->scratch, real, (int64_t)n * m->width);
  b->kh = CH_NEW(&x->scratch, real, (int64_t)n * m->kv_width);
  b->vh = CH_NEW(&x->scratch, real, (int64_t)n * m->kv_width);
  b->att = CH_NEW(&x->scratch, real, (int64_t)n * m->width);
  ch_attention_in(x, m, b, n, stream);
  ch_queries in = ch_attention_queries(x, m, b, p);
  x->ops->attention_cached(x, &(ch_attention_cached_args){.B = s->slots,
                                                          .H = m->config.heads,
                                                          .kv_heads = m->kv_heads,
                                                          .dh = m->d_head,
                                                          .positions = s->positions,
                                                          .max_rows = n,
                                                          .begin = s->begin,
                                                          .past = s->length,
                                                          .scale = (real)(1 / sqrt((double)m->d_head)),
                                                          .q = in.q,
                                                          .k = in.k,
                                                          .v = b->vh,
                                                          .keys = s->keys[b->number],
                                                          .values = s->values[b->number],
                                                          .bias = s->bias[b->number],
                                                          .out = b->att});
  ch_linear(x, b->o, n, b->att, stream, 1);
}

/* Where the new tokens are in their sequences, for rope. */
static void place_tokens(choir_session *s, ch_pass *p) {
  if (!s->turn) return;
  for (int b = 0; b < s->slots && !ch_counting(&s->x); b++)
    for (int row = s->begin[b]; row < s->begin[b + 1]; row++) s->position[row] = s->length[b] + row - s->begin[b];
  p->turn = s->turn;
  p->position = ch_put(&s->x.tape, s->position, (size_t)p->T * sizeof *s->position);
}

static void all_logits(choir_session *s, int n, const real CH_DEV *stream, real *all) {
  ch_exec *x = &s->x;
  CH_SCRATCH(x);
  size_t bytes = (size_t)n * (size_t)s->net.config.vocab_size * sizeof *all;
  real CH_DEV *logits = ch_stand_in(&x->scratch, all, bytes);
  ch_logits(x, &s->net, n, stream, logits);
  ch_get_into(&x->scratch, all, logits, bytes);
}

/* Computes the logits after the last token of every slot that asks for them, in one product, and copies them to the
 * host. */
static void last_logits(choir_session *s, const real CH_DEV *stream) {
  ch_exec *x = &s->x;
  int64_t d = s->net.config.d_model, V = s->net.config.vocab_size;
  int count = 0;
  CH_SCRATCH(x);
  real CH_DEV *rows = CH_NEW(&x->scratch, real, s->slots * d), *logits = CH_NEW(&x->scratch, real, s->slots * V);
  if (ch_counting(x)) {
    ch_logits(x, &s->net, s->slots, rows, logits);
  } else {
    for (int b = 0; b < s->slots; b++)
      if (s->last[b]) x->memory->copy(rows + count++ * d, stream + (s->begin[b + 1] - 1) * d, (size_t)d * sizeof *rows);
    if (count) ch_logits(x, &s->net, count, rows, logits);
    for (int b = s->slots - 1; b >= 0; b--)
      if (s->last[b]) x->memory->get(s->last[b], logits + --count * V, (size_t)V * sizeof *logits);
  }
}

void ch_session_pass(choir_session *s, real *all) {
  ch_exec *x = &s->x;
  int n = ch_counting(x) ? s->chunk : s->begin[s->slots];
  int64_t d = s->net.config.d_model;
  size_t mark = ch_arena_mark(&x->tape);
  real CH_DEV *stream = CH_NEW(&x->tape, real, n * d), *mid = CH_NEW(&x->tape, real, n * d);
  ch_pass pass = {.B = 1, .T = n, .route.causal = s->causal};
  ch_pass_begin(x, &s->net, &pass);
  pass.route.tokens.id = ch_put(&x->tape, s->token, (size_t)n * sizeof *s->token);
  place_tokens(s, &pass);
  ch_embed(x, &s->net, &pass, pass.route.tokens.id, stream);
  for (int l = 0; l < s->net.config.layers; l++) {
    size_t layer_mark = ch_arena_mark(&x->tape);
    attention_half(s, &s->net.block[l], &pass, stream);
    ch_ffn_forward(x, &s->net, &s->net.block[l], &pass, stream, mid);
    ch_arena_release(&x->tape, layer_mark);
    real CH_DEV *other = stream;
    stream = mid;
    mid = other;
  }
  if (all) all_logits(s, n, stream, all);
  last_logits(s, stream);
  ch_pass_end(x, &s->net, &pass);
  ch_arena_release(&x->tape, mark);
  for (int b = 0; b < s->slots && !ch_counting(x); b++) s->length[b] += s->begin[b + 1] - s->begin[b];
}
