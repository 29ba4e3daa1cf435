/* Public scoring requests: checks them, encodes texts as tokens, and allocates every result. */
#include "infer/score.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "data/encoder.h"
#include "model/config.h"

typedef struct {
  ch_score_item *item; /* [count] in the order of processing */
  int32_t **owned;     /* [2 count] owned tokens of encoded texts */
  int64_t count, next; /* number of items; number of arrays in `owned` */
} score_work;

static int check_score_options(const choir_model *model, const choir_tokenizer *tokenizer,
                               const choir_score_options *o) {
  if (o->batch < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "batch is %d; must be at least 1", o->batch);
  if (o->chunk < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "chunk is %d; must be at least 1", o->chunk);
  CH_TRY(ch_check_mask_samples(model, o));
  return ch_check_tokenizer(tokenizer, ch_config_pieces(choir_model_config(model)));
}

int ch_check_mask_samples(const choir_model *model, const choir_score_options *o) {
  const choir_config *config = choir_model_config(model);
  if (o->mask_samples < 0 || o->mask_samples > 1 << 20)
    return ch_error(CHOIR_ERROR_ARGUMENT, "mask_samples is %d: must be 1 to %d, or 0 for 32", o->mask_samples, 1 << 20);
  if (!o->mask_samples || ch_config_diffusion(config)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "mask_samples is %d, and train.objective is %s, whose scores draw nothing: set mask_samples to 0",
                  o->mask_samples, ch_objectives[config->train.objective]);
}

int ch_check_tokenizer(const choir_tokenizer *tokenizer, int V) {
  int pieces = tokenizer ? choir_tokenizer_vocab_size(tokenizer) : V;
  if (pieces == V) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_FORMAT, "the tokenizer has %d pieces and the model %d: they do not belong together",
                  pieces, V);
}

int ch_check_tokens(const int32_t *tokens, int count, int V) {
  if (count && !tokens) return ch_error(CHOIR_ERROR_ARGUMENT, "%d tokens, but tokens is NULL", count);
  for (int i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= V)
      return ch_error(CHOIR_ERROR_ARGUMENT, "token %d is %d, outside the vocabulary of %d", i, tokens[i], V);
  return CHOIR_OK;
}

static size_t text_size(const choir_prompt *p) { return p->text ? p->size ? p->size : strlen(p->text) : 0; }

/* Encodes a text; the work owns the tokens. */
static int encode_text(score_work *w, const choir_tokenizer *tokenizer, const char *text, size_t size,
                       const int32_t **tokens, int *count) {
  enum { MAX = 1 << 26 };
  size_t found;
  int32_t *ids;
  if (!tokenizer) return ch_error(CHOIR_ERROR_ARGUMENT, "a text, but no tokenizer: give tokens");
  CH_TRY(choir_tokenizer_encode(tokenizer, text, size, &ids, &found));
  w->owned[w->next++] = ids;
  if (found > MAX) return ch_error(CHOIR_ERROR_ARGUMENT, "%zu tokens are too many: at most %d", found, MAX);
  *tokens = ids;
  *count = (int)found;
  return CHOIR_OK;
}

/* Encodes a context without the spaces at its end, which belong to the continuation's first word. */
static int encode_context(score_work *w, const choir_tokenizer *t, const choir_prompt *context, size_t *spaces,
                          ch_score_item *item) {
  size_t size = text_size(context), kept = size;
  while (kept && context->text[kept - 1] == ' ') kept--;
  *spaces = size - kept;
  return encode_text(w, t, context->text, kept, &item->context, &item->contexts);
}

static int encode_continuation(score_work *w, const choir_tokenizer *t, const choir_prompt *continuation, size_t spaces,
                               ch_score_item *item) {
  size_t size = text_size(continuation);
  char *text;
  CH_TRY(CH_ALLOC(&text, spaces + size + 1, "a continuation"));
  memset(text, ' ', spaces);
  memcpy(text + spaces, continuation->text, size);
  int code = encode_text(w, t, text, size ? spaces + size : 0, &item->continuation, &item->continuations);
  free(text);
  return code;
}

static int make_item(score_work *w, const choir_tokenizer *t, int V, const choir_score_request *r,
                     ch_score_item *item) {
  size_t spaces = 0;
  CH_CHECK_RESERVED(r, "choir_score_request");
  *item = (ch_score_item){.context = r->context.tokens,
                          .continuation = r->continuation.tokens,
                          .contexts = r->context.count,
                          .continuations = r->continuation.count};
  if (r->context.text) CH_TRY(encode_context(w, t, &r->context, &spaces, item));
  if (r->continuation.text) CH_TRY(encode_continuation(w, t, &r->continuation, spaces, item));
  if (item->contexts < 0 || item->continuations < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "the continuation is empty: there is nothing to score");
  if (!item->contexts && !t)
    return ch_error(CHOIR_ERROR_ARGUMENT, "an empty context needs a tokenizer, whose end of text begins a document");
  if (!item->contexts) {
    item->context = &t->eos;
    item->contexts = 1;
  }
  CH_TRY(ch_check_tokens(item->context, item->contexts, V));
  return ch_check_tokens(item->continuation, item->continuations, V);
}

static int make_score(const ch_score_item *item, choir_scored *score) {
  size_t count = (size_t)item->continuations;
  CH_TRY(CH_ALLOC(&score->tokens, count, "scored tokens"));
  CH_TRY(CH_ALLOC(&score->log_probability, count, "scores of tokens"));
  score->count = item->continuations;
  memcpy(score->tokens, item->continuation, count * sizeof *score->tokens);
  return CHOIR_OK;
}

static int make_work(const choir_tokenizer *tokenizer, int V, const choir_score_request *requests, score_work *w,
                     choir_score_result *result) {
  size_t count = (size_t)w->count;
  CH_TRY(CH_ALLOC(&w->item, count, "requests"));
  CH_TRY(CH_ALLOC(&w->owned, 2 * count, "texts of requests"));
  CH_TRY(CH_ALLOC(&result->score, count, "scores of requests"));
  result->count = w->count;
  for (int64_t i = 0; i < w->count; i++) {
    int code = make_item(w, tokenizer, V, &requests[i], &w->item[i]);
    if (!code) code = make_score(&w->item[i], &result->score[i]);
    if (code) return ch_error_in(code, "request %lld of %lld", (long long)i + 1, (long long)w->count);
    w->item[i].score = &result->score[i];
  }
  return CHOIR_OK;
}

int choir_score(choir_model *model, const choir_tokenizer *tokenizer, const choir_score_request *requests,
                int64_t count, const choir_score_options *options, choir_score_result *result) {
  CH_ENTER(model, requests, result);
  score_work w = {.count = count};
  *result = (choir_score_result){0};
  CH_OPTIONS(choir_score_options, o, options, CHOIR_SCORE_OPTIONS_INIT);
  if (count < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "no requests: there is nothing to score");
  CH_TRY(check_score_options(model, tokenizer, &o));
  int code = make_work(tokenizer, ch_config_pieces(choir_model_config(model)), requests, &w, result);
  if (!code) code = ch_score_run(model, w.item, count, &o, result);
  for (int64_t i = 0; i < w.next; i++) free(w.owned[i]);
  free(w.owned);
  free(w.item);
  if (code) choir_score_result_clear(result);
  return code;
}

void choir_score_result_clear(choir_score_result *result) {
  if (!result) return;
  for (int64_t i = 0; i < result->count; i++) {
    free(result->score[i].tokens);
    free(result->score[i].log_probability);
  }
  free(result->score);
  *result = (choir_score_result){0};
}
