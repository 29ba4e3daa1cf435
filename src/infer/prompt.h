/* Texts of a generation: options and prompts, checked and as tokens; what was written, as it comes. */
#ifndef CH_INFER_PROMPT_H
#define CH_INFER_PROMPT_H

#include "base/buffer.h"
#include "choir/generate.h"

typedef struct ch_prompt {
  int32_t *tokens; /* malloc'd */
  int count;
} ch_prompt;

typedef struct ch_prompts {
  ch_prompt *prompt; /* [count] */
  int count, longest;
} ch_prompts;

int ch_generate_check(const choir_model *model, const choir_tokenizer *tokenizer, const choir_generate_options *o);

/* Asks the options' `progress`, which is told of so many prompts, whether to end it all. */
int ch_generate_stopped(const choir_generate_options *o, int done, int total);

/* Asks the same on its way through a long text. Refuses, by number, a prompt that is empty, not UTF-8, or
 * with tokens outside the model's vocabulary of V. */
int ch_prompts_make(const choir_tokenizer *tokenizer, int V, const choir_generate_options *options,
                    const choir_prompt *from, int count, ch_prompts *prompts);
void ch_prompts_free(ch_prompts *prompts);

/* ---- the text of a sequence in the making ---- */

/* What of it may be shown already, and whether it has come to a stop. */
typedef struct ch_stream_text {
  ch_buffer bytes; /* of all tokens so far */
  ch_buffer text;  /* what was shown: well-formed UTF-8 */
  size_t done;     /* bytes that are in `text` */
  int stopped;
} ch_stream_text;

/* Appends a token's bytes, then to `text` whatever is certain: whole characters that can be no part of a stop text
 * (stops: NULL-terminated, or NULL). Bytes that are no characters become U+FFFD, one each. At the first stop text,
 * `stopped` is set and the text ends before it. CHOIR_ERROR_MEMORY. */
int ch_stream_add(ch_stream_text *s, const char *bytes, size_t size, const char *const *stops);

/* No more tokens will come: shows what was held back. */
int ch_stream_end(ch_stream_text *s);

void ch_stream_free(ch_stream_text *s);

#endif
