/* Evaluation over windows of tokens, for training runs and for checkpoints alike. */
#ifndef CH_TRAIN_EVALUATE_H
#define CH_TRAIN_EVALUATE_H

#include "choir/train.h"
#include "data/encoder.h"
#include "handle/model.h"
#include "moe/prefer.h"

/* Where windows come from: held-out shards or one text. */
typedef struct ch_windows {
  int64_t count;
  int length;             /* T: a window holds T+1 tokens, padded with -1 */
  int64_t stride;         /* the i-th one evaluated is number i * stride mod count */
  int observe;            /* batches, but for a smaller last one, set what the router keeps */
  const choir_data *data; /* or NULL: */
  const int32_t *text;
  int64_t text_tokens;
  /* Sees every window: its targets [T], negative: none, and their losses, which of masked models make the mean of the
   * masked ones; or NULL. */
  void (*seen)(void *context, int64_t index, const int32_t *target, const float *loss);
  void *context;
  double mask_at;    /* masked_diffusion: the mask ratio of every sequence; 0: ratios are drawn */
  int mask_samples;  /* of masked models: mask ratios a window; 0: one */
  ch_prefer *prefer; /* [MoE layers] caches whose experts causal routing prefers; or NULL */
  int unfinished;    /* the model is in training: what thresholds cost is not compared yet */
} ch_windows;

/* After an evaluation of the first `end` windows: keeps how many experts a token had in each layer. A notice, where the
 * same windows were evaluated by batch and by thresholds, names the layer whose thresholds give a token over a tenth
 * more or fewer experts than the router's own choice, as in training: then the model is served at another cost. */
void ch_note_served_cost(choir_model *model, const ch_windows *windows, int B, int64_t end);

/* Held-out windows: neighbours come far apart, and the first ones are spread evenly over all sources. So an evaluation
 * of a few is fair to every source, and a batch is a mixture, as in training, and not a piece of one document. */
ch_windows ch_windows_heldout(const choir_data *data, int length);
/* Its stride: prime to `count`, and any run of multiples of it, modulo count, lies evenly over 0 .. count - 1. */
int64_t ch_windows_stride(int64_t count);
/* A text's, in their order. */
ch_windows ch_windows_text(const int32_t *tokens, int64_t count, int length);

/* Cuts a window [T+1] into tokens and targets; a token without a target has nothing to predict and is padding, too.
 * Gives how many targets. */
int64_t ch_window_cut(const int32_t *window, int T, int32_t *token, int32_t *target);

/* *unigram = log p of each token under unigram counts with add-one smoothing: [V]. CHOIR_ERROR_MEMORY. */
int ch_unigram_log(const uint64_t *counts, int vocab_size, double **unigram);

/* Bytes of text that so many held-out tokens stand for, on average over the held-out share. */
double ch_heldout_bytes(const choir_data *data, int64_t tokens);

/* Sets bytes and bits_per_byte of a result from its loss and tokens; for a text also gzip's bits per byte. */
void ch_eval_bytes(choir_eval_result *result, double bytes);
void ch_eval_text_bytes(choir_eval_result *result, const ch_text_tokens *text);

/* Runs the first `limit` windows (0: all) in batches of B with the model's present routing; the pool is one batch, the
 * last one smaller. Fills loss, perplexity, unigram_loss, tokens, routing; the model's statistics are sums over the
 * evaluation. `unigram` may be NULL. */
int ch_evaluate(choir_model *model, const ch_windows *windows, int B, int64_t limit, const double *unigram,
                choir_progress_callback progress, void *context, choir_eval_result *result);

/* Statistics of every MoE layer while a model is evaluated. */
typedef struct ch_layer_stats {
  int layers;
  choir_route_stats *layer;    /* [layers] */
  ch_route_log *log;           /* [layers] experts of each token; NULL: the routing is not causal */
  choir_routing_callback also; /* sees what the statistics see; or NULL */
  void *context;
} ch_layer_stats;

/* Empty statistics, and from now on they grow with every pass of the model, whose routing is set and whose sequences
 * have `length` tokens; `also` and `context` stay. vocab_size 0: the cheap ones. *w must stay in its place until
 * choir_model_on_routing(model, NULL, NULL). CHOIR_ERROR_MEMORY. */
int ch_layer_stats_begin(choir_model *model, int vocab_size, int length, ch_layer_stats *w);

/* *locality = of each layer, and of all layers: [layers + 1], malloc'd; NULL: the routing is not causal.
 * CHOIR_ERROR_MEMORY. */
int ch_layer_stats_locality(const ch_layer_stats *w, ch_locality **locality);

void ch_layer_stats_free(ch_layer_stats *w);

#endif
