/* Shows what the routers of a model do with a text: numbers, and a page to look at. */
#ifndef CH_PAGES_INSPECT_H
#define CH_PAGES_INSPECT_H

#include <jansson.h>

#include "choir/train.h"
#include "data/encoder.h"
#include "moe/locality.h"

typedef struct ch_inspect_options {
  const char *text;    /* a UTF-8 file, encoded with the checkpoint's tokenizer */
  int64_t tokens;      /* from its beginning, at most; 0: all */
  const char *routing; /* as choir_model_set_routing; NULL: the model's present one, or "threshold" where the text
                          is too short for it */
  int batch_sequences, sequence_length; /* routed together, and tokens of each; 0: the config's */
  double mask_ratio; /* of models of masked_diffusion: the share of tokens that is masked; 0: drawn for each window */
  int top;           /* favourite tokens of each expert */
  int cache, among;  /* also measures what it costs to prefer cached experts: experts in the LRU cache of a layer, and
                        the most candidates of a token (moe/prefer.h); both 0: not */
  const char *checkpoint;           /* its name, for people; or NULL */
  choir_progress_callback progress; /* or NULL; total 0: a long text is being encoded;
                                                                  nonzero: CHOIR_ERROR_INTERRUPTED */
  void *context;
} ch_inspect_options;
#define CH_INSPECT_OPTIONS_INIT \
  { .top = 8 }

/* Loss and hit rate where a token has so many candidates, on average where experts choose (moe/prefer.h). */
typedef struct ch_trade_point {
  int among; /* 0: the router's own choice */
  double loss, perplexity;
  ch_ratio *hits;  /* [layers + 1] the last one: of all layers */
  double *lowered; /* [layers] by how much thresholds are lower for candidates; NULL: tokens choose */
} ch_trade_point;

/* The model's account of a text. The last token of the text has nothing to predict: it is not counted. */
typedef struct ch_inspection {
  choir_eval_result eval;
  int batch_sequences, sequence_length; /* as used: no more than the text has */
  int cut;                              /* the text goes on */
  int layers;                           /* MoE layers */
  choir_route_stats *layer;             /* [layers] */
  ch_locality *locality;                /* [layers + 1] the last one: of all layers; NULL: the routing is not causal */
  ch_ratio *expert_reuse;               /* [layers,experts] of each expert; NULL: the routing is not causal */
  ch_trade_point *trade;                /* [trade_points] for ever more experts to choose among; or NULL */
  int trade_points;
  int predicts_next; /* a loss is that of the token one place later; of masked models of the token itself */
  float *token_loss; /* [tokens of the text] how badly each was predicted; NaN: the first */
} ch_inspection;

/* Evaluates the text and counts how it was routed; ch_inspection_free in any case. The model has its own routing,
 * and nobody looking, after. CHOIR_ERROR_ARGUMENT: also a model without MoE layers; CHOIR_ERROR_UNSUPPORTED: thresholds
 * that no training has set; CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY, CHOIR_ERROR_INTERRUPTED. */
int ch_inspect_text(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options,
                    ch_inspection *inspection);
void ch_inspection_free(ch_inspection *inspection);

enum { CH_INSPECT_MAX = 64 }; /* checkpoints on a page */

/* Adds a checkpoint to the data of a page, at first an empty object. views: how many there will be; they share the
 * tokens that a browser can show. After an error the page is to be dropped. Errors as ch_inspect_text, and
 * CHOIR_ERROR_ARGUMENT: a checkpoint that the slider cannot lead to, with other tokens, layers or experts. */
int ch_inspect_add(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options, int views,
                   json_t *page);

/* Writes one HTML file: the text, each token shaded by how many experts took it, with experts and gates; load,
 * histogram and favourite tokens; of several checkpoints a slider over them. It holds everything it shows and needs no
 * network. Takes the reference. CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY. */
int ch_inspect_save(json_t *page, const char *output);

/* What ch_inspect_tokens does where options->cache or options->among is set. Check, before the routing is set:
 * CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_UNSUPPORTED: the router, or the routing asked for. Then, with the routing set, the
 * curve of the inspection. */
int ch_trade_check(const choir_model *model, const ch_inspect_options *options);
int ch_trade_measure(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *options,
                     ch_inspection *inspection);
void ch_trade_free(ch_inspection *inspection);
/* {"cache", "curve"}. */
json_t *ch_trade_json(const ch_inspection *inspection, int cache);

/* Like ch_inspect_text, for tokens already read. `also`, unless NULL, is called for the same routings. */
int ch_inspect_tokens(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *options,
                      choir_routing_callback also, void *context, ch_inspection *inspection);

/* The inspection as a JSON object (docs/inspecting.md); NULL: no memory. */
json_t *ch_inspection_json(const choir_model *model, const choir_tokenizer *tokenizer,
                           const ch_inspect_options *options, const ch_inspection *inspection);

#endif
