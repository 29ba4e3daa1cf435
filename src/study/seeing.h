/* What `choir stats` and `choir inspect` share: a text through a model while somebody looks. */
#ifndef CH_STUDY_SEEING_H
#define CH_STUDY_SEEING_H

#include <jansson.h>

#include "choir/seeing.h"
#include "data/text_tokens.h"

/* As choir_see, of tokens that have been read; `also`, unless NULL, sees what the statistics see. */
int ch_see(choir_model *model, const ch_text_tokens *text, const choir_seeing_options *options, choir_look also,
           void *context, choir_seen *seen);

/* The object of choir_seen_json; NULL: no memory. */
json_t *ch_seen_json(const choir_model *model, const choir_tokenizer *tokenizer, const choir_seeing_options *options,
                     const choir_seen *seen);

#endif
