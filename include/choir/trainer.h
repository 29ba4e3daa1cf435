/* Training steps on the caller's own batches. */
#ifndef CHOIR_TRAINER_H
#define CHOIR_TRAINER_H

#include "choir/model.h"

CHOIR_C_BEGIN

/* The training state of a model: optimizer state, number of steps, and the memory of a step. */
typedef struct choir_trainer choir_trainer;

/* The result of a step. */
typedef struct choir_trainer_result {
  int64_t step;    /* number of this step, from 1 */
  int64_t targets; /* number of targets, over which the loss is a mean (masked_diffusion: the loss is the bound, a mean
                      over all tokens) */
  double loss;     /* cross-entropy in nats, with batch routing, or threshold routing after router.threshold_after */
  double aux_loss; /* load-balancing loss, weighted and summed over layers; included in the gradients */
  double learning_rate; /* learning rate of this step */
  double gradient_norm; /* before clipping */
  double dropped;       /* share of choices dropped because the expert was full */
  double unrouted;      /* share of tokens without an expert */
  double imbalance;     /* max load divided by mean load, in the layer where this is largest */
  double z_loss;        /* z-loss of the routers' logits, weighted and summed over layers; included in the gradients */
  double fill;          /* mean load of an expert divided by its capacity */
  /* Simulated imbalance of expert parallelism: if the experts were distributed in order over 8, 16 or 32 devices, the
   * max load of a device divided by the mean load, averaged over layers. The time of the experts grows by this factor
   * if all devices wait for the slowest. 1 if the number of devices does not divide the number of experts. */
  double fullest[3];
  int64_t reserved[3];
} choir_trainer_result;

/* Creates a trainer for a model and allocates all memory; steps allocate nothing. Batch sizes, optimizer, learning rate
 * and dropout are read from the train section of `config`, which replaces that of the model's config; if `config` is
 * NULL, from the model's config. The model must outlive the trainer. Between steps the model may be evaluated, saved
 * and run, but not with gradients. A step uses the routing of the config, and does not change the routing set by
 * choir_model_set_routing; if the two differ, or after passes of other sizes, the step plans its memory again.
 * CHOIR_ERROR_BUSY: the model already has a trainer; CHOIR_ERROR_ARGUMENT: the config; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_trainer_create(choir_model *model, const choir_config *config, choir_trainer **trainer);
CHOIR_API void choir_trainer_free(choir_trainer *trainer);

/* Sequences per step (train.accumulate x train.batch_sequences), and tokens per sequence (train.sequence_length). */
CHOIR_API int choir_trainer_sequences(const choir_trainer *trainer);
CHOIR_API int choir_trainer_sequence_length(const choir_trainer *trainer);

/* One step: forward and backward of every micro-batch, update of the weights and of the routers' state. tokens int32
 * [sequences,length]; targets int32 [sequences,length], the token that each position must predict, negative: no target;
 * targets NULL: each position predicts the next token of its sequence, and the last position has no target; if
 * train.objective masks tokens, the targets are the tokens that this step masks. choir_model_get_route_stats then has
 * the step's routing statistics. CHOIR_ERROR_ARGUMENT, with no effect: a token or target outside the vocabulary, or no
 * target at all. CHOIR_ERROR_NUMERIC, naming the tensor: a loss or gradient that is not finite; tensors from this one
 * on are not updated. CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_trainer_step(choir_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                 choir_trainer_result *result);

/* Writes a checkpoint directory as choir_model_save does, with the optimizer's state, for choir_trainer_resume and
 * `choir eval`. tokenizer may be NULL. */
CHOIR_API int choir_trainer_save(const choir_trainer *trainer, const choir_tokenizer *tokenizer,
                                 const char *checkpoint);

/* Loads weights, optimizer state and number of steps from a checkpoint of choir_trainer_save; training continues bit
 * for bit. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: also a checkpoint of `choir train`, which choir_train resumes. After an
 * error, free the trainer. */
CHOIR_API int choir_trainer_resume(choir_trainer *trainer, const char *checkpoint);

CHOIR_C_END
#endif
