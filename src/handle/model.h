/* The struct behind the public handle: a config, a Transformer, its memory, and a planned executor. */
#ifndef CH_HANDLE_MODEL_H
#define CH_HANDLE_MODEL_H

#include "choir/model.h"
#include "choir/routing.h"
#include "model/transformer.h"
#include "moe/route.h"

struct choir_model {
  choir_config config;
  ch_transformer net;
  ch_exec x;
  int grad_chunks; /* gradient chunks per batch: train.grad_chunks, unless choir_model_options.shards is set */
  ch_arena weights, gradients; /* gradients: in counting mode until the first use */
  int share_gradients;         /* 1: all layers use the same memory for gradients, which ch_pass.ready consumes */
  int planned_B, planned_T, planned_gradients; /* sizes that x is planned for */
  int causal;                                  /* a ch_causal: how passes route */
  const uint8_t *forced;                       /* [MoE layers,forced_B*forced_T,e] the caller's, or NULL */
  int forced_B, forced_T;
  uint64_t forced_plan;            /* forced_memory of the pass that x is planned for; 0: not a forced pass */
  ch_copies copies;                /* which matrices have copies rounded to bf16 */
  int stale;                       /* the rounded copies are older than the weights */
  choir_routing_callback callback; /* the caller's, or NULL */
  void *callback_context;
  int in_callback;         /* 1: a callback is running, which must not use the model */
  ch_routing_hook hook;    /* the hook that calls `callback` */
  size_t reserved_scratch; /* scratch for the optimizer, between passes */
  /* The last evaluations with batch and with threshold routing, for ch_note_served_cost: experts per token of each MoE
   * layer, and a hash of the evaluated data; 0: none. */
  double *experts_per_token[2];
  uint64_t evaluated[2];
  int64_t half_step; /* number of a step that updated the weights but not the routers' state; 0: none */
};

/* The first function creates a model and counts its memory; the second allocates the weights, with undefined values,
 * unless they are allocated, with bf16 copies by config.train.expert_copies, for training. ch_model_create does both
 * with bf16 copies of all matrices, because generation would otherwise round the experts for every token. Results are
 * equal. */
int ch_model_prepare(const choir_config *config, const choir_model_options *options, choir_model **model);
int ch_model_commit_weights(choir_model *model);
int ch_model_create(const choir_config *config, const choir_model_options *options, choir_model **model);

/* CHOIR_ERROR_ARGUMENT on all ranks, naming the first rank whose version of choir, config, compute type, backend,
 * instruction set or weights differ from rank 0. Collective. */
int ch_model_same(const choir_model *model);

/* Refuses an operation `what` that is not available if several ranks share the model. The second function refuses
 * batches that cannot be divided among the ranks. */
int ch_model_alone(const choir_model *model, const char *what);
int ch_model_check_ranks(const choir_model *model, int B);

/* Refuses an operation `what` that requires weights that are not quantized to 8 bits. */
int ch_model_check_unrounded(const choir_model *model, const char *what);

/* The dependencies of a token's experts with the current routing; none without MoE layers. */
choir_routing_properties ch_model_properties(const choir_model *model);

/* CHOIR_ERROR_BUSY if called from a callback of another call with the model. Every function that runs or changes the
 * model calls it first. */
int ch_model_check_idle(const choir_model *model);

/* Calls the caller's progress, if it is not NULL. During the callback the model is busy, so that the plan of the passes
 * stays valid. CHOIR_ERROR_INTERRUPTED: the callback returned nonzero. */
int ch_model_check_cancelled(choir_model *model, choir_progress_callback progress, void *context, int64_t done,
                             int64_t total, const char *unit);

/* Runs (or counts) a pass on the model's executor or a separate one; used by all passes except training steps. The
 * callback of choir_model_on_routing receives the pass's routing; plans include memory for it even if none is set
 * yet. */
void ch_model_measure(choir_model *model, ch_exec *x, ch_pass *pass);

/* A separate batch-invariant executor, which does not change the model's plan. After `separate_exec`, count passes on
 * it; `commit` then allocates their memory. Free it also after an error. */
int ch_model_separate_exec(const choir_model *model, ch_exec *x);
int ch_model_commit_exec(choir_model *model, ch_exec *x);

/* To be called when weights have changed other than by the optimizer: refreshes their bf16 copies. */
void ch_model_weights_changed(choir_model *model);

/* Rounds weights to their bf16 copies again, on an executor whose memory is committed. */
void ch_model_round_weights(choir_model *model, ch_exec *x);

/* The first weight that is not finite, in the order of the table, on any rank; NULL: all are. The model must have a
 * plan. Collective. */
const char *ch_model_bad_weight(choir_model *model);

/* CHOIR_ERROR_ARGUMENT if half_step is set: the model cannot be saved or trained until a checkpoint is loaded. */
int ch_model_check_whole(const choir_model *model);

/* CHOIR_ERROR_NUMERIC if the loss is not finite, naming the first weight that is not finite. Collective. */
int ch_model_check_loss(choir_model *model, double loss);

/* Plans or allocates memory for gradients, if the model has none yet. It is not zeroed: the first backward of a step
 * writes gradients instead of adding. */
void ch_model_count_gradients(choir_model *model);
int ch_model_make_gradients(choir_model *model);

/* Releases the memory of a trainer: gradients, if layers share them, and scratch for the optimizer. */
void ch_model_end_training(choir_model *model);

/* Gradient chunks of a pass over B sequences: model->grad_chunks if it divides B, else 1. */
int ch_model_grad_chunks(const choir_model *model, int B);

/* Whether training on B sequences computes the head only at masked tokens. With several gradient chunks it computes all
 * positions, because all chunks must have the same number of rows. */
int ch_model_picks_rows(const choir_model *model, int B);

/* Plans memory for passes of B x T tokens; does nothing if the plan suffices. Refuses sizes that the router does not
 * accept. */
int ch_model_plan(choir_model *model, int B, int T, int gradients);

/* ch_model_plan in steps, for callers that count further memory: drop the plan, count passes with ch_model_size, and
 * allocate with ch_model_commit. */
void ch_model_drop_plan(choir_model *model);
int ch_model_size(choir_model *model, int B, int T, int gradients);
int ch_model_commit(choir_model *model);

/* Plans memory for several kinds of passes, which may run in any order. Only sizes, gradients, rows, and whether
 * pointers such as logits are NULL are read from them. */
int ch_model_plan_passes(choir_model *model, const ch_pass *passes, int count);
int ch_model_size_passes(choir_model *model, const ch_pass *passes, int count);

/* Writes config.json, model.safetensors and, unless NULL, tokenizer.model to an existing directory of the first rank.
 * Collective; returns the first rank's code. */
int ch_model_save_into(const choir_model *model, const choir_tokenizer *tokenizer, const char *directory);

/* Refuses untrained thresholds, because routing "threshold" requires them. */
int ch_model_check_thresholds(const choir_model *model);

/* The public view of a routing, as callbacks get it. Device arrays are copied to scratch of the host; host arrays are
 * used directly. The layer numbers are 0. */
choir_routing ch_routing_view(ch_exec *x, const ch_route_args *a, const ch_routing *routing);

#endif
