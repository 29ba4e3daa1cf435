/* The model after the public handle: a config, a Transformer, its memory, and a planned executor. */
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
  int grad_chunks;             /* that batches are cut into: the config's, unless who loaded it has said otherwise */
  ch_arena weights, gradients; /* gradients: counting until asked for */
  int share_gradients;         /* between layers: ch_pass.ready takes them */
  int planned_B, planned_T, planned_gradients; /* what x has room for */
  int causal;                                  /* a ch_causal: how passes route */
  const uint8_t *forced;                       /* [MoE layers,forced_B*forced_T,e] the caller's, or NULL */
  int forced_B, forced_T;
  uint64_t forced_plan;            /* forced_memory of the pass that x is planned for; 0: not a forced pass */
  ch_copies copies;                /* which matrices have copies rounded to bf16 */
  int stale;                       /* the rounded copies are older than the weights */
  choir_routing_callback callback; /* the caller's, or NULL */
  void *callback_context;
  int in_callback;         /* which must not use the model: a pass is under way */
  ch_routing_hook hook;    /* what passes it on */
  size_t reserved_scratch; /* that others need between passes: the optimizer */
  /* Of the last evaluation by batch, and by thresholds, that may be compared (ch_note_served_cost): experts per token
   * of each MoE layer, and a hash of what was evaluated; 0: none. */
  double *experts_per_token[2];
  uint64_t evaluated[2];
  int64_t half_step; /* a step whose update the weights have, and the router's state has not; 0: none */
};

/* A model that has counted its weights, and then the memory for them, values undefined, unless it is there: for
 * training, as config.train.expert_copies says. ch_model_create is both, with rounded copies of all matrices, without
 * which a token that is generated would wait for the experts' rounding. Results are the same. */
int ch_model_prepare(const choir_config *config, const choir_model_options *options, choir_model **model);
int ch_model_commit_weights(choir_model *model);
int ch_model_create(const choir_config *config, const choir_model_options *options, choir_model **model);

/* CHOIR_ERROR_ARGUMENT on all ranks, naming the first one that has another version of choir, config, compute type,
 * backend, instruction set or weights than rank 0. Collective. */
int ch_model_same(const choir_model *model);

/* Refuses, by its name, what one process alone does with a model, where several share it; and batches that these cannot
 * share. */
int ch_model_alone(const choir_model *model, const char *what);
int ch_model_check_ranks(const choir_model *model, int B);

/* Refuses, by its name, what needs weights that are not rounded to 8 bits. */
int ch_model_check_unrounded(const choir_model *model, const char *what);

/* What a token's experts depend on under the present routing; nothing without MoE layers. */
choir_routing_properties ch_model_properties(const choir_model *model);

/* CHOIR_ERROR_BUSY within a callback of a call that is under way with the model. Whatever runs or changes it asks. */
int ch_model_check_idle(const choir_model *model);

/* Calls the caller's progress, if it is not NULL. Until it returns the model is in use: passes go on with the memory
 * that they have planned. CHOIR_ERROR_INTERRUPTED: the caller's answer. */
int ch_model_check_cancelled(choir_model *model, choir_progress_callback progress, void *context, int64_t done,
                             int64_t total, const char *unit);

/* Runs a pass that measures, or counts it, on the model's executor or one of a measure's own: all but a step of
 * training go this way. choir_model_on_routing's callback sees the pass, and plans reckon with one that is set later.
 */
void ch_model_measure(choir_model *model, ch_exec *x, ch_pass *pass);

/* An executor of its own, which leaves the model's plan as it is and gives every row the same bits whatever is beside
 * it: begun, passes are counted on it; committed, it has their memory. Free it after an error, too. */
int ch_model_separate_exec(const choir_model *model, ch_exec *x);
int ch_model_commit_exec(choir_model *model, ch_exec *x);

/* To be called when weights have changed other than by the optimizer: refreshes their bf16 copies. */
void ch_model_weights_changed(choir_model *model);

/* Rounds weights to their bf16 copies again, on an executor whose memory is committed. */
void ch_model_round_weights(choir_model *model, ch_exec *x);

/* The first weight that is not finite, in the order of the table, on any rank; NULL: all are. The model must have a
 * plan. Collective. */
const char *ch_model_bad_weight(choir_model *model);

/* CHOIR_ERROR_ARGUMENT when the model has half a step (half_step): neither saved nor trained, until a checkpoint is
 * loaded into it. */
int ch_model_check_whole(const choir_model *model);

/* CHOIR_ERROR_NUMERIC, naming that weight, when a loss is not finite: such a number is no result. Collective. */
int ch_model_check_loss(choir_model *model, double loss);

/* Plans or allocates memory for gradients, if the model has none yet. It is not zeroed: the first backward of a step
 * writes gradients instead of adding. */
void ch_model_count_gradients(choir_model *model);
int ch_model_make_gradients(choir_model *model);

/* Undoes what planning a trainer did: memory for gradients, where layers shared it, and room for the optimizer. */
void ch_model_end_training(choir_model *model);

/* Shards of a pass over B sequences: model->shards where they divide B, else 1. */
int ch_model_grad_chunks(const choir_model *model, int B);

/* Whether training on B sequences computes the head at the masked tokens alone. With several shards it computes all
 * positions, since each shard has as many rows. */
int ch_model_picks_rows(const choir_model *model, int B);

/* Makes room for passes of B x T; does nothing when there is. Refuses sizes that the router cannot take. */
int ch_model_plan(choir_model *model, int B, int T, int gradients);

/* The same in steps, for who has more to count: an executor without plan counts, ch_model_size counts passes on it,
 * ch_model_commit gives it the memory. */
void ch_model_drop_plan(choir_model *model);
int ch_model_size(choir_model *model, int B, int T, int gradients);
int ch_model_commit(choir_model *model);

/* The same for passes like these, in any order, whatever their sizes: in them only what is there or not counts, and how
 * much of it (sizes, gradients, logits, rows). */
int ch_model_plan_passes(choir_model *model, const ch_pass *passes, int count);
int ch_model_size_passes(choir_model *model, const ch_pass *passes, int count);

/* config.json, model.safetensors and, unless NULL, tokenizer.model into an existing directory: the first rank's.
 * Collective; the first rank's code counts. */
int ch_model_save_into(const choir_model *model, const choir_tokenizer *tokenizer, const char *directory);

/* Refuses thresholds that nothing has set yet: routing 'threshold' needs them. */
int ch_model_check_thresholds(const choir_model *model);

/* The public view of a routing, as callbacks get it. Device arrays are copied to scratch of the host; host arrays are
 * used directly. The layer numbers are 0. */
choir_routing ch_routing_view(ch_exec *x, const ch_route_args *a, const ch_routing *routing);

#endif
