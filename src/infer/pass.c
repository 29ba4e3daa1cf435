/* One pass of a session: the model's layers on a few new tokens of every sequence. */
#include "infer/session.h"
#include "model/block.h"

/* Sets the position of every new token in its sequence, for rope. */
static void place_tokens(choir_session *s, ch_pass *p) {
  if (!s->rope_table) return;
  for (int b = 0; b < s->slots && !ch_counting(&s->x); b++)
    for (int row = s->begin[b]; row < s->begin[b + 1]; row++) s->position[row] = s->length[b] + row - s->begin[b];
  p->rope_table = s->rope_table;
  p->position = ch_upload(&s->x.tape, s->position, (size_t)p->T * sizeof *s->position);
}

static void all_logits(choir_session *s, int n, const real CH_DEV *stream, real *all) {
  ch_exec *x = &s->x;
  CH_SCRATCH(x);
  size_t bytes = (size_t)n * (size_t)s->net.config.vocab_size * sizeof *all;
  real CH_DEV *logits = ch_staging(&x->scratch, all, bytes);
  ch_logits(x, &s->net, n, stream, logits);
  ch_download_into(&x->scratch, all, logits, bytes);
}

/* Computes the logits after the last token of every slot that requests them, in one product, and copies them to the
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
      if (s->last[b]) x->memory->download(s->last[b], logits + --count * V, (size_t)V * sizeof *logits);
  }
}

void ch_session_pass(choir_session *s, real *all) {
  ch_exec *x = &s->x;
  int n = ch_counting(x) ? s->chunk : s->begin[s->slots];
  size_t mark = ch_arena_mark(&x->tape);
  real CH_DEV *rows = CH_NEW(&x->tape, real, (int64_t)n * s->net.config.d_model);
  const ch_kv_cache cache = {.sequences = s->slots,
                             .positions = s->positions,
                             .begin = s->begin,
                             .past = s->length,
                             .keys = s->keys,
                             .values = s->values,
                             .bias = s->bias};
  ch_pass pass = {.B = 1, .T = n, .route.causal = s->causal, .cache = &cache};
  ch_pass_begin(x, &s->net, &pass);
  pass.route.tokens.id = ch_upload(&x->tape, s->token, (size_t)n * sizeof *s->token);
  place_tokens(s, &pass);
  ch_embed(x, &s->net, &pass, pass.route.tokens.id, rows);
  const real CH_DEV *stream = ch_layers_forward(x, &s->net, &pass, rows);
  if (all) all_logits(s, n, stream, all);
  last_logits(s, stream);
  ch_pass_end(x, &s->net, &pass);
  ch_arena_release(&x->tape, mark);
  for (int b = 0; b < s->slots && !ch_counting(x); b++) s->length[b] += s->begin[b + 1] - s->begin[b];
}
