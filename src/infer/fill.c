/* choir_fill: fills gaps of texts, with models that are trained by masking. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "choir/generate.h"
#include "infer/sample.h"
#include "model/config.h"

/* A gap of the current block, the token sampled for it, and its rank: higher ranks are filled first. */
typedef struct {
  int position;
  int32_t token;
  double rank;
} gap;

typedef struct {
  choir_model *model;
  const choir_fill_options *o;
  int32_t *tokens;
  int count, pieces; /* tokens that can be sampled: all but the mask */
  int gaps, filled;
  float *logits;           /* [count,pieces + 1] */
  ch_candidate *candidate; /* [pieces] */
  gap *gap;                /* [count] */
} filling;

static int check(const choir_model *model, int count, const choir_fill_options *o) {
  const choir_config *c = choir_model_config(model);
  if (!ch_config_masked(c))
    return ch_error(CHOIR_ERROR_UNSUPPORTED,
                    "train.objective is next_token: this model has no mask to fill, and writes by choir_generate");
  if (count < 1 || o->steps < 0 || o->block < 0 || o->top_k < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "count %d must be at least 1, steps %d, block %d and top_k %d at least 0",
                    count, o->steps, o->block, o->top_k);
  if (!(o->temperature >= 0 && isfinite(o->temperature) && o->top_p > 0 && o->top_p <= 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "temperature is %g and top_p %.17g; must be 0 or more, and above 0 to 1",
                    o->temperature, o->top_p);
  return CHOIR_OK;
}

/* The probability of a token by the softmax of the logits of all tokens. */
static double probability(const float *logits, int pieces, int32_t token) {
  double sum = 0;
  for (int v = 0; v < pieces; v++) sum += exp((double)logits[v] - (double)logits[token]);
  return 1 / sum;
}

/* Samples a token for each gap of the block in one pass over the text. The random number depends on the position
 * alone. */
static int draw(filling *f, int gaps) {
  choir_forward_result ignored;
  const ch_sampling how = {f->o->temperature, f->o->top_k, f->o->top_p};
  ch_rng uniform = ch_rng_make(f->o->seed, CH_STREAM_SAMPLE, 0), order = ch_rng_make(f->o->seed, CH_STREAM_SAMPLE, 1);
  CH_TRY(choir_model_forward(f->model, 1, f->count, f->tokens, f->logits, 0, &ignored));
  for (int i = 0; i < gaps; i++) {
    gap *g = &f->gap[i];
    const float *logits = f->logits + (int64_t)g->position * (f->pieces + 1);
    uint64_t at = (uint64_t)g->position;
    g->token = ch_sample(&how, logits, f->pieces, ch_rng_uniform(uniform, at), f->candidate);
    if (g->token < 0)
      return ch_error(CHOIR_ERROR_NUMERIC, "the logits of position %d are not finite: nothing can be drawn",
                      g->position);
    g->rank = f->o->random_order ? ch_rng_uniform(order, at) : probability(logits, f->pieces, g->token);
  }
  return CHOIR_OK;
}

/* Highest rank first; of equal ranks the leftmost gap. */
static int compare(const void *a, const void *b) {
  const gap *x = a, *y = b;
  if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
  return x->position - y->position;
}

/* Lists the gaps of the next block, from position *first on, and advances *first. Returns their number. */
static int block_of(filling *f, int *first) {
  int gaps = 0, max = f->o->block ? f->o->block : f->count;
  for (; *first < f->count && gaps < max; ++*first)
    if (f->tokens[*first] == f->pieces) f->gap[gaps++].position = *first;
  return gaps;
}

static int fill_block(filling *f, int gaps) {
  int steps = f->o->steps && f->o->steps < gaps ? f->o->steps : gaps;
  for (int step = 0, left = gaps; left; step++) {
    int now = (left + steps - step - 1) / (steps - step);
    CH_TRY(draw(f, left));
    qsort(f->gap, (size_t)left, sizeof *f->gap, compare);
    for (int i = 0; i < now; i++) f->tokens[f->gap[i].position] = f->gap[i].token;
    left -= now;
    for (int i = 0; i < left; i++) f->gap[i] = f->gap[i + now];
    f->filled += now;
    const choir_progress progress = {.done = f->filled, .total = f->gaps, .unit = "gaps"};
    if (ch_progress(f->o->progress, f->o->context, progress))
      return ch_error(CHOIR_ERROR_INTERRUPTED, "stopped with %d of %d gaps filled", f->filled, f->gaps);
  }
  return CHOIR_OK;
}

static int fill(filling *f) {
  int64_t n = (int64_t)f->count * (f->pieces + 1);
  CH_TRY(CH_ALLOC(&f->logits, n, "logits of a text"));
  CH_TRY(CH_ALLOC(&f->candidate, f->pieces, "candidates for a gap"));
  CH_TRY(CH_ALLOC(&f->gap, f->count, "gaps"));
  for (int t = 0; t < f->count; t++) {
    if (f->tokens[t] < 0 || f->tokens[t] > f->pieces)
      return ch_error(CHOIR_ERROR_ARGUMENT, "token %d is %d: must be 0 to %d", t, (int)f->tokens[t], f->pieces);
    f->gaps += f->tokens[t] == f->pieces;
  }
  for (int first = 0, gaps; (gaps = block_of(f, &first));) CH_TRY(fill_block(f, gaps));
  return CHOIR_OK;
}

int choir_fill(choir_model *model, int count, int32_t *tokens, const choir_fill_options *options) {
  CH_ENTER(model, tokens);
  CH_OPTIONS(choir_fill_options, o, options, CHOIR_FILL_OPTIONS_INIT);
  CH_TRY(check(model, count, &o));
  filling f = {
      .model = model, .o = &o, .tokens = tokens, .count = count, .pieces = ch_config_pieces(choir_model_config(model))};
  int code = fill(&f);
  free(f.logits);
  free(f.candidate);
  free(f.gap);
  return code;
}
