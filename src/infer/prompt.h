/* Texts of a generation: checks options and prompts, encodes prompts as tokens, and decodes the generated text
 * incrementally. */
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

/* Calls the options' `progress` with `done` prompts. Nonzero: it requests a stop. */
int ch_generate_stopped(const choir_generate_options *o, int done, int total);

/* Encodes all prompts, calling `progress` during long texts. Refuses, by number, a prompt that is empty, not UTF-8,
 * or with tokens outside the model's vocabulary of V. */
int ch_prompts_make(const choir_tokenizer *tokenizer, int V, const choir_generate_options *options,
                    const choir_prompt *from, int count, ch_prompts *prompts);
void ch_prompts_free(ch_prompts *prompts);

/* ---- the text of a sequence while it is generated ---- */

/* The text that can be emitted so far, and whether a stop text was found. */
typedef struct ch_stream_text {
  ch_buffer bytes; /* bytes of all tokens so far */
  ch_buffer text;  /* emitted text: well-formed UTF-8 */
  size_t done;     /* number of bytes already copied to `text` */
  int stopped;
} ch_stream_text;

/* Appends a token's bytes, then to `text` all complete characters that cannot be part of a stop text (stops:
 * NULL-terminated, or NULL). Bytes that are not UTF-8 become U+FFFD, one each. At the first stop text, `stopped` is set
 * and the text ends before it. CHOIR_ERROR_MEMORY. */
int ch_stream_add(ch_stream_text *s, const char *bytes, size_t size, const char *const *stops);

/* Called after the last token: emits the text that was held back. */
int ch_stream_end(ch_stream_text *s);

void ch_stream_free(ch_stream_text *s);

#endif
