/* What `choir stats` and `choir inspect` share: a text through a model while somebody looks. */
#ifndef CH_STUDY_INSPECT_H
#define CH_STUDY_INSPECT_H

#include <jansson.h>

#include "choir/inspect.h"
#include "data/text_tokens.h"

/* As choir_inspect_text, of tokens that have been read; `also`, unless NULL, sees what the statistics see. */
int ch_inspect_text(choir_model *model, const ch_text_tokens *text, const choir_inspect_options *options,
                    choir_routing_callback also, void *context, choir_inspection *inspection);

/* The object of choir_inspection_json; NULL: no memory. */
json_t *ch_inspection_json(const choir_model *model, const choir_tokenizer *tokenizer,
                           const choir_inspect_options *options, const choir_inspection *inspection);

#endif
