/* Checks options and prompts of a generation, and makes tokens of texts. */
#ifndef CH_INFER_PROMPT_H
#define CH_INFER_PROMPT_H

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

/* Asks the options' `stop` on its way through a long text. Refuses, by number, a prompt that is empty, not UTF-8, or
 * with tokens outside the model's vocabulary of V. */
int ch_prompts_make(const choir_tokenizer *tokenizer, int V, const choir_generate_options *options,
                    const choir_prompt *from, int count, ch_prompts *prompts);
void ch_prompts_free(ch_prompts *prompts);

#endif
