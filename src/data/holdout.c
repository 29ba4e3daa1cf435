#include <math.h>

#include "base/rng.h"
#include "data/text.h"

/* Counts documents, up to `enough`, and the bytes read for that. */
static int count(const ch_text_options *options, uint64_t enough, int (*goes_on)(void *context), void *context,
                 uint64_t *documents, uint64_t *bytes) {
  ch_text_options o = *options;
  ch_text *text;
  ch_block block;
  int more = 1, code;
  o.block_bytes = CH_HOLDOUT_BLOCK;
  *documents = *bytes = 0;
  CH_TRY(ch_text_open(&o, &text));
  while (!(code = ch_text_next(text, &block, &more)) && more && *documents < enough && !(code = goes_on(context))) {
    *documents += (uint64_t)block.last;
    *bytes += block.size;
  }
  ch_text_close(text);
  return code;
}

int ch_holdout_plan(const ch_text_options *text, uint64_t seed, int source, double share, int (*goes_on)(void *context),
                    void *context, ch_holdout *h) {
  uint64_t documents, bytes, enough = CH_HOLDOUT_DOCUMENTS;
  *h = (ch_holdout){.seed = seed, .source = (uint32_t)source, .share = share, .block_bytes = CH_HOLDOUT_BLOCK};
  if (share > 0 && 2 / share > (double)enough) enough = (uint64_t)ceil(2 / share);
  CH_TRY(count(text, share > 0 ? enough : 1, goes_on, context, &documents, &bytes));
  if (!bytes)
    return ch_error(CHOIR_ERROR_FORMAT, "no text in its inputs (%s%s)", text->inputs[0],
                    text->inputs[1] ? ", ..." : "");
  if (documents >= enough || !(share > 0)) return CHOIR_OK;
  /* The block size that gives at least two runs of 1/share blocks, but at least 64 bytes. */
  h->by_blocks = 1;
  h->share = fmax(share, fmin(0.5, 128.0 / (double)bytes));
  h->block_bytes = (size_t)fmin(CH_HOLDOUT_BLOCK, fmax(64, (double)bytes * h->share / 2));
  return CHOIR_OK;
}

/* The first unit of run `n`. */
static uint64_t run_begin(double share, uint64_t n) { return (uint64_t)ceil((double)n / share); }

int ch_held_out(const ch_holdout *h, uint64_t unit) {
  if (!(h->share > 0)) return 0;
  uint64_t run = (uint64_t)((double)unit * h->share);
  while (run && run_begin(h->share, run) > unit) run--; /* corrects rounding */
  while (run_begin(h->share, run + 1) <= unit) run++;
  uint64_t begin = run_begin(h->share, run), length = run_begin(h->share, run + 1) - begin;
  return unit == begin + ch_rng_below(ch_rng_make(h->seed, CH_STREAM_HOLDOUT, h->source), run, length);
}
