/* Evaluation over windows of tokens, used by training runs and for checkpoints. */
#ifndef CH_TRAIN_EVALUATE_H
#define CH_TRAIN_EVALUATE_H

#include "choir/train.h"
#include "data/encoder.h"
#include "handle/model.h"
#include "moe/prefer.h"

/* The source of windows: held-out shards or one text. */
typedef struct ch_windows {
  int64_t count;
  int length;             /* T: a window holds T+1 tokens, padded with -1 */
  int64_t stride;         /* the i-th evaluated window has the index i * stride mod count */
  int observe;            /* full batches (not a smaller last one) update the routers' state */
  const choir_data *data; /* held-out data, or NULL: a text */
  const int32_t *text;
  int64_t text_tokens;
  /* Called for every window with its targets [T] (negative: none) and their losses; for masked models the losses are
   * scaled so that they sum to the mean of the masked tokens' losses times T. Or NULL. */
  void (*seen)(void *context, int64_t index, const int32_t *target, const float *loss);
  void *context;
  double mask_at;    /* masked_diffusion: the mask ratio of every sequence; 0: ratios are sampled */
  int mask_samples;  /* masked models: mask ratios per window; 0: one */
  ch_prefer *prefer; /* [MoE layers] caches whose experts causal routing prefers; or NULL */
  int unfinished;    /* the model is in training: the served cost is not compared yet */
} ch_windows;

/* Called after an evaluation of the first `end` windows: stores the experts per token of each layer. If the same
 * windows were evaluated with batch routing and with threshold routing, emits a notice that names the layer in which
 * thresholds give a token over a tenth more or fewer experts than the router's own choice, as in training: serving then
 * costs more or less than training. */
void ch_note_served_cost(choir_model *model, const ch_windows *windows, int B, int64_t end);

/* Held-out windows in an order in which neighbors are far apart and the first ones are spread evenly over all
 * sources. So an evaluation of a few windows represents every source, and a batch is a mixture, as in training, and not
 * one part of a document. */
ch_windows ch_windows_heldout(const choir_data *data, int length);
/* The stride of that order: coprime to `count`, and any run of its multiples, modulo count, is evenly spaced over 0
 * .. count - 1. */
int64_t ch_windows_stride(int64_t count);
/* The windows of a text, in their order. */
ch_windows ch_windows_text(const int32_t *tokens, int64_t count, int length);

/* Cuts a window [T+1] into tokens [T] and targets [T]. A token without a target becomes padding, too. Returns the
 * number of targets. */
int64_t ch_window_cut(const int32_t *window, int T, int32_t *token, int32_t *target);

/* *unigram [V] = log p of each token under unigram counts with add-one smoothing. CHOIR_ERROR_MEMORY. */
int ch_unigram_log(const uint64_t *counts, int vocab_size, double **unigram);

/* Bytes of text that `tokens` held-out tokens encode, by the mean over the held-out data. */
double ch_heldout_bytes(const choir_data *data, int64_t tokens);

/* Sets bytes and bits_per_byte of a result from its loss and tokens; for a text also gzip's bits per byte. */
void ch_eval_bytes(choir_eval_result *result, double bytes);
void ch_eval_text_bytes(choir_eval_result *result, const ch_text_tokens *text);

/* Runs the first `limit` windows (0: all) in batches of B with the model's present routing; the pool is one batch, the
 * last one smaller. Fills loss, perplexity, unigram_loss, tokens, routing; the model's statistics are sums over the
 * evaluation. `unigram` may be NULL. */
int ch_evaluate(choir_model *model, const ch_windows *windows, int B, int64_t limit, const double *unigram,
                choir_progress_callback progress, void *context, choir_eval_result *result);

/* Statistics of every MoE layer over an evaluation. */
typedef struct ch_layer_stats {
  int layers;
  choir_route_stats *layer;    /* [layers] */
  ch_route_log *log;           /* [layers] experts of each token; NULL: the routing is not causal */
  choir_routing_callback also; /* called with the same routings; or NULL */
  void *context;
} ch_layer_stats;

/* Clears the statistics and updates them in every pass of the model from now on; the model's routing must be set,
 * and its sequences have `length` tokens. `also` and `context` keep their values. vocab_size 0: without the statistics
 * by token id. *w must not move until choir_model_on_routing(model, NULL, NULL). CHOIR_ERROR_MEMORY. */
int ch_layer_stats_begin(choir_model *model, int vocab_size, int length, ch_layer_stats *w);

/* *locality [layers + 1], malloc'd: the locality of each layer, then of all layers; NULL: the routing is not causal.
 * CHOIR_ERROR_MEMORY. */
int ch_layer_stats_locality(const ch_layer_stats *w, ch_locality **locality);

void ch_layer_stats_free(ch_layer_stats *w);

#endif
