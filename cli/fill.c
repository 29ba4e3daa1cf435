/* choir generate for models that are trained by masking: fills a gap after a prompt, or the gaps of a text. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { LENGTH = 64, GAP = 4 }; /* default tokens after a prompt, and of a gap */

typedef struct {
  int32_t *tokens;
  size_t count;
  size_t prompt; /* tokens of the prompt */
} text;

static int append(text *t, const int32_t *ids, size_t count) {
  int32_t *more = reallocarray(t->tokens, t->count + count + 1, sizeof *more);
  if (!more) return cli_fail_with("out of memory");
  t->tokens = more;
  memcpy(more + t->count, ids, count * sizeof *ids);
  t->count += count;
  return 0;
}

static int append_text(text *t, const choir_tokenizer *tokenizer, const char *from, size_t size) {
  int32_t *ids = NULL;
  size_t count = 0;
  if (!size) return 0;
  if (choir_tokenizer_encode(tokenizer, from, size, &ids, &count)) return cli_fail();
  int status = append(t, ids, count);
  free(ids);
  return status;
}

static int append_gap(text *t, int32_t mask, int count) {
  int status = 0;
  for (int i = 0; i < count && !status; i++) status = append(t, &mask, 1);
  return status;
}

/* Parses a text in which three underscores are a gap. */
static int read_gaps(text *t, const choir_tokenizer *tokenizer, const char *from, int32_t mask, int length) {
  int status = 0, gaps = 0;
  for (const char *gap; !status && (gap = strstr(from, "___")); from = gap + 3, gaps++) {
    status = append_text(t, tokenizer, from, (size_t)(gap - from));
    if (!status) status = append_gap(t, mask, length);
  }
  if (!status && !gaps) return cli_usage("--infill: the text has no gap; write ___ where the model is to fill one");
  return status ? status : append_text(t, tokenizer, from, strlen(from));
}

static int show(void *context, const choir_progress *p) {
  cli_progress *progress = context;
  if (cli_progress_due(progress))
    cli_progress_line(progress, "%lld of %lld tokens", (long long)p->done, (long long)p->total);
  return cli_stop_requested();
}

static int print(const text *t, const choir_tokenizer *tokenizer, const cli_fill_request *o) {
  char *whole, *prompt;
  size_t size, prompt_size, count = t->count;
  int32_t eos = choir_tokenizer_eos(tokenizer);
  for (size_t i = t->prompt; i < count && !o->infill; i++) /* text after the end-of-text token is another document */
    if (t->tokens[i] == eos) count = i;
  if (choir_tokenizer_decode(tokenizer, t->tokens, t->prompt, &prompt, &prompt_size)) return cli_fail();
  if (choir_tokenizer_decode(tokenizer, t->tokens, count, &whole, &size)) {
    free(prompt);
    return cli_fail();
  }
  int status = 0;
  if (o->json) {
    status = cli_json_line(json_pack("{s:s%, s:i, s:i}", "text", whole, size, "prompt_tokens", (int)t->prompt, "tokens",
                                     (int)(count - t->prompt)));
  } else {
    cli_put_text(stdout, whole, size);
    putchar('\n');
  }
  free(whole);
  free(prompt);
  return status;
}

int cli_fill(choir_model *model, const choir_tokenizer *tokenizer, const cli_fill_request *o) {
  const choir_config *config = choir_model_config(model);
  int32_t mask = choir_config_mask_token(config);
  int length = o->length ? o->length : o->infill ? GAP : LENGTH;
  text t = {0};
  cli_progress progress;
  choir_fill_options fill = o->fill;
  int32_t eos = choir_tokenizer_eos(tokenizer);
  int status = o->infill ? read_gaps(&t, tokenizer, o->infill, mask, length) : 0;
  if (!status && !o->infill) {
    status = o->prompt && *o->prompt ? append_text(&t, tokenizer, o->prompt, strlen(o->prompt)) : append(&t, &eos, 1);
    t.prompt = t.count;
    if (!status) status = append_gap(&t, mask, length);
  }
  cli_progress_begin(&progress, stderr);
  fill.progress = show;
  fill.context = &progress;
  int code = status ? 0 : choir_fill(model, (int)t.count, t.tokens, &fill);
  cli_progress_clear(&progress);
  if (code) status = cli_fail();
  if (!status) status = print(&t, tokenizer, o);
  free(t.tokens);
  return status;
}
