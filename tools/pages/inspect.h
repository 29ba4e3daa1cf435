/* Statistics of a model's routing of a text, and a page that shows them. */
#ifndef CH_PAGES_INSPECT_H
#define CH_PAGES_INSPECT_H

#include <jansson.h>

#include "choir/train.h"
#include "data/encoder.h"
#include "moe/locality.h"

typedef struct ch_inspect_options {
  const char *text;    /* a UTF-8 file, encoded with the checkpoint's tokenizer */
  int64_t tokens;      /* maximum number of tokens, from the beginning; 0: all */
  const char *routing; /* as in choir_model_set_routing; NULL: the model's present one, or "threshold" if the text is
                          too short for it */
  int batch_sequences, sequence_length; /* sequences per batch, and tokens of each; 0: the config's */
  double mask_ratio; /* for models of masked_diffusion: the share of masked tokens; 0: sampled for each window */
  int top;           /* number of top tokens to list for each expert */
  int cache, among; /* if not 0, also measures the cost of preferring cached experts: number of experts in the LRU cache
                       of a layer, and maximum number of candidates of a token (moe/prefer.h) */
  const char *checkpoint; /* its displayed name; or NULL */
  choir_progress_callback
      progress; /* or NULL; total 0: a long text is being encoded; nonzero return: CHOIR_ERROR_INTERRUPTED */
  void *context;
} ch_inspect_options;
#define CH_INSPECT_OPTIONS_INIT \
  { .top = 8 }

/* Loss and hit rate for a number of candidates per token; with expert choice, a mean number (moe/prefer.h). */
typedef struct ch_trade_point {
  int among; /* 0: the router's own choice */
  double loss, perplexity;
  ch_ratio *hits;  /* [layers + 1] the last one: over all layers */
  double *lowered; /* [layers] how far thresholds are lowered for candidates; NULL: token choice */
} ch_trade_point;

/* Statistics of a text. The last token of the text has no target and is not counted. */
typedef struct ch_inspection {
  choir_eval_result eval;
  int batch_sequences, sequence_length; /* as used: limited by the text */
  int cut;                              /* the text has more tokens */
  int layers;                           /* MoE layers */
  choir_route_stats *layer;             /* [layers] */
  ch_locality *locality;  /* [layers + 1] the last one: over all layers; NULL: the routing is not causal */
  ch_ratio *expert_reuse; /* [layers,experts] reuse of each expert; NULL: the routing is not causal */
  ch_trade_point *trade;  /* [trade_points] by increasing number of candidates; or NULL */
  int trade_points;
  int predicts_next; /* losses are those of the next token; for masked models of the token itself */
  float *token_loss; /* [tokens of the text] loss of each token; NaN: the first */
} ch_inspection;

/* Evaluates the text and collects statistics of its routing; call ch_inspection_free in any case. Afterwards the
 * model has its previous routing and no routing callback. CHOIR_ERROR_ARGUMENT: also a model without MoE layers;
 * CHOIR_ERROR_UNSUPPORTED: thresholds that training has not set; CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY, CHOIR_ERROR_INTERRUPTED. */
int ch_inspect_text(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options,
                    ch_inspection *inspection);
void ch_inspection_free(ch_inspection *inspection);

enum { CH_INSPECT_MAX = 64 }; /* maximum number of checkpoints on a page */

/* Adds a checkpoint to a page's data, initially an empty object. views: the final number of checkpoints, which share
 * the number of tokens that a browser can show. After an error discard the page. Errors as in ch_inspect_text, and
 * CHOIR_ERROR_ARGUMENT: a checkpoint with other tokens, layers or experts than the page's. */
int ch_inspect_add(choir_model *model, const choir_tokenizer *tokenizer, const ch_inspect_options *options, int views,
                   json_t *page);

/* Writes one HTML file: the text, each token shaded by its number of experts, with experts and gates; load,
 * histogram and top tokens; for several checkpoints a slider. The file is self-contained and needs no network. Takes
 * over the reference. CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY. */
int ch_inspect_save(json_t *page, const char *output);

/* A curve of loss and hit rate (inspection->trade), which ch_inspect_tokens measures if options->cache or
 * options->among is set. */
typedef struct ch_trade {
  struct ch_prefer *prefer; /* [layers] caches for the next evaluation, with their hits after it */
  int64_t *margins; /* [layers,CH_MARGIN_BINS] histogram under the router's own choice, for expert choice; or NULL */
} ch_trade;

/* Before the routing is set. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_UNSUPPORTED: the router or the requested routing. */
int ch_trade_check(const choir_model *model, const ch_inspect_options *options);
/* Sets trade->prefer, initially zero, for an evaluation of the router's own choice; call ch_trade_end in any case. */
int ch_trade_begin(const choir_model *model, const ch_inspect_options *options, ch_trade *trade);
void ch_trade_end(ch_trade *trade);
/* After that evaluation, whose result is inspection->eval: the first point, and an evaluation for each further one. */
int ch_trade_measure(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *options,
                     const ch_trade *trade, ch_inspection *inspection);
void ch_trade_free(ch_inspection *inspection);
/* The curve as {"cache", "curve"}. */
json_t *ch_trade_json(const ch_inspection *inspection, int cache);

/* Like ch_inspect_text, for tokens already read. `also`, unless NULL, is called with the same routings. */
int ch_inspect_tokens(choir_model *model, const ch_text_tokens *text, const ch_inspect_options *options,
                      choir_routing_callback also, void *context, ch_inspection *inspection);

/* The inspection as a JSON object (docs/inspecting.md); NULL: no memory. */
json_t *ch_inspection_json(const choir_model *model, const choir_tokenizer *tokenizer,
                           const ch_inspect_options *options, const ch_inspection *inspection);

#endif
