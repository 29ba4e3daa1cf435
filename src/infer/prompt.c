#include "infer/prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/text.h"
#include "data/encoder.h"
#include "infer/score.h"
#include "model/config.h"

static int check_numbers(const choir_generate_options *o) {
  if (o->max_tokens < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "max_tokens is %d; must be at least 1", o->max_tokens);
  if (!(o->temperature >= 0 && isfinite(o->temperature)))
    return ch_error(CHOIR_ERROR_ARGUMENT, "temperature is %g; must be 0 (the likeliest token) or more", o->temperature);
  if (o->top_k < 0) return ch_error(CHOIR_ERROR_ARGUMENT, "top_k is %d; must be 0 (all tokens) or more", o->top_k);
  if (!(o->top_p > 0 && o->top_p <= 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "top_p is %.17g; must be above 0, and 1 (all tokens) at most", o->top_p);
  if (o->batch < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "batch is %d; must be at least 1", o->batch);
  return CHOIR_OK;
}

int ch_generate_check(const choir_model *model, const choir_tokenizer *tokenizer, const choir_generate_options *o) {
  CH_TRY(ch_config_check_next_token(choir_model_config(model), "generation"));
  CH_TRY(check_numbers(o));
  for (const char *const *stop = o->stops; stop && *stop; stop++) {
    if (!**stop) return ch_error(CHOIR_ERROR_ARGUMENT, "a stop text is empty: it would end every sequence at once");
    if (!tokenizer) return ch_error(CHOIR_ERROR_ARGUMENT, "stop texts need a tokenizer");
  }
  return ch_check_tokenizer(tokenizer, choir_model_config(model)->model.vocab_size);
}

int ch_generate_stopped(const choir_generate_options *o, int done, int total) {
  return ch_progress(o->progress, o->context, (choir_progress){.done = done, .total = total, .unit = "prompts"});
}

/* Progress while a prompt is encoded. */
static int report_encoding(void *options) { return ch_generate_stopped(options, 0, 0); }

static int encode_prompt(const choir_tokenizer *tokenizer, const choir_generate_options *o, const choir_prompt *from,
                         ch_prompt *to) {
  size_t count, size = from->size;
  if (!tokenizer) return ch_error(CHOIR_ERROR_ARGUMENT, "a text, but no tokenizer: give tokens");
  if (!size) size = strlen(from->text);
  CH_TRY(ch_encode_text(tokenizer, from->text, size, o->progress ? report_encoding : NULL, (void *)o, &to->tokens,
                        &count));
  if (count > INT32_MAX / 2) return ch_error(CHOIR_ERROR_ARGUMENT, "%zu tokens are too many", count);
  to->count = (int)count;
  if (!count) { /* an empty prompt starts with the end-of-text token; tokens[0] is not NULL but has no space */
    CH_TRY(CH_RESIZE(&to->tokens, 1, "a token"));
    *to->tokens = choir_tokenizer_eos(tokenizer);
    to->count = 1;
  }
  return CHOIR_OK;
}

static int copy_prompt(const choir_prompt *from, ch_prompt *to) {
  if (from->count <= 0 || !from->tokens) return CHOIR_OK;
  CH_TRY(CH_ALLOC(&to->tokens, from->count, "tokens of a prompt"));
  memcpy(to->tokens, from->tokens, (size_t)from->count * sizeof *to->tokens);
  to->count = from->count;
  return CHOIR_OK;
}

static int make_prompts(const choir_tokenizer *tokenizer, int V, const choir_generate_options *o,
                        const choir_prompt *from, ch_prompt *to) {
  CH_CHECK_RESERVED(from, "choir_prompt");
  CH_TRY(from->text ? encode_prompt(tokenizer, o, from, to) : copy_prompt(from, to));
  if (!to->count) return ch_error(CHOIR_ERROR_ARGUMENT, "empty: there is nothing to go on from");
  return ch_check_tokens(to->tokens, to->count, V);
}

int ch_prompts_make(const choir_tokenizer *tokenizer, int V, const choir_generate_options *options,
                    const choir_prompt *from, int count, ch_prompts *prompts) {
  *prompts = (ch_prompts){.count = count};
  if (count < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "no prompts: there is nothing to go on from");
  CH_TRY(CH_ALLOC(&prompts->prompt, count, "prompts"));
  for (int i = 0; i < count; i++) {
    int code = make_prompts(tokenizer, V, options, &from[i], &prompts->prompt[i]);
    if (code) return ch_error_in(code, "prompt %d of %d", i + 1, count);
    if (prompts->prompt[i].count > prompts->longest) prompts->longest = prompts->prompt[i].count;
  }
  return CHOIR_OK;
}

void ch_prompts_free(ch_prompts *prompts) {
  for (int i = 0; prompts->prompt && i < prompts->count; i++) free(prompts->prompt[i].tokens);
  free(prompts->prompt);
  *prompts = (ch_prompts){0};
}

/* Nonzero if `bytes`, cut off by the end of the text, may be the start of a character. */
static int may_go_on(const char *bytes, size_t size) {
  static const char *const tails[] = {"\x80\x80\x80", "\xA0\x80", "\x90\x80\x80"};
  if (size < 1 || size > 3) return 0;
  for (int i = 0; i < 3; i++) /* a valid start of a character can be completed with one of these */
    for (size_t add = 1; add <= strlen(tails[i]); add++) {
      char whole[8];
      memcpy(whole, bytes, size);
      memcpy(whole + size, tails[i], add);
      if (ch_utf8_valid(whole, size + add) == size + add) return 1;
    }
  return 0;
}

/* Emits the bytes before `end`; an incomplete character at the end of all bytes is held back unless it is the last. */
static int show_text(ch_stream_text *s, size_t end, int last) {
  while (s->done < end) {
    const char *at = s->bytes.data + s->done;
    size_t left = end - s->done, valid = ch_utf8_valid(at, left);
    CH_TRY(ch_buffer_append(&s->text, at, valid));
    s->done += valid;
    if (s->done == end || (!last && may_go_on(at + valid, left - valid))) break;
    CH_TRY(ch_buffer_append(&s->text, "\xEF\xBF\xBD", 3));
    s->done++;
  }
  return CHOIR_OK;
}

/* Position of the first stop text that ends after byte `from`; the text's size if it contains none. */
static size_t find_stop(const ch_stream_text *s, size_t from, const char *const *stops) {
  size_t first = s->bytes.size;
  for (; stops && *stops; stops++) {
    size_t length = strlen(*stops), at = from + 1 > length ? from + 1 - length : 0;
    if (at < s->done) at = s->done;
    for (; length && at + length <= s->bytes.size && at < first; at++)
      if (!memcmp(s->bytes.data + at, *stops, length)) first = at;
  }
  return first;
}

/* Position of the first byte to hold back because it may begin a stop text; the text's size if there is no such
 * byte. */
static size_t held_back(const ch_stream_text *s, const char *const *stops) {
  size_t first = s->bytes.size;
  for (; stops && *stops; stops++) {
    size_t length = strlen(*stops), max = length ? length - 1 : 0;
    if (max > s->bytes.size - s->done) max = s->bytes.size - s->done;
    for (size_t size = max; size > 0 && s->bytes.size - size < first; size--)
      if (!memcmp(s->bytes.data + s->bytes.size - size, *stops, size)) first = s->bytes.size - size;
  }
  return first;
}

int ch_stream_add(ch_stream_text *s, const char *bytes, size_t size, const char *const *stops) {
  size_t before = s->bytes.size;
  if (s->stopped) return CHOIR_OK;
  CH_TRY(ch_buffer_append(&s->bytes, bytes, size));
  size_t stop = find_stop(s, before, stops);
  s->stopped = stop < s->bytes.size;
  return s->stopped ? show_text(s, stop, 1) : show_text(s, held_back(s, stops), 0);
}

int ch_stream_end(ch_stream_text *s) { return s->stopped ? CHOIR_OK : show_text(s, s->bytes.size, 1); }

void ch_stream_free(ch_stream_text *s) {
  free(s->bytes.data);
  free(s->text.data);
  *s = (ch_stream_text){0};
}
