/* Training steps on the caller's own batches. */
#ifndef CHOIR_TRAINER_H
#define CHOIR_TRAINER_H

#include "choir/model.h"

CHOIR_C_BEGIN

/* A model being trained: the optimizer's state, the number of steps, and the memory of a step. */
typedef struct choir_trainer choir_trainer;

/* The result of a step. */
typedef struct choir_trainer_result {
  int64_t step;         /* that this one was, from 1 */
  int64_t targets;      /* that the loss is a mean over; of masked_diffusion it is the bound, over all tokens */
  double loss;          /* cross-entropy in nats, of batch routing unless router.threshold_after has come */
  double aux_loss;      /* of routers that balance, weighted and summed over layers; in the gradients */
  double learning_rate; /* by the config's schedule */
  double gradient_norm; /* before clipping */
  double dropped;       /* share of choices that found their expert full */
  double unrouted;      /* share of tokens without an expert */
  double imbalance;     /* largest load over the mean, worst layer */
  double z_loss;        /* of the routers' logits, weighted and summed over layers; in the gradients */
  double fill;          /* mean load of an expert over its capacity */
  /* The fullest device's load over the mean, if 8, 16 or 32 devices held as many experts each, in their order; mean
   * over layers: how much longer a step takes than with even loads, if all devices wait for the fullest. 1 where the
   * number of devices does not divide that of experts. */
  double fullest[3];
  int64_t reserved[3];
} choir_trainer_result;

/* Makes a trainer for a model and allocates everything, so that steps allocate nothing. Batch sizes, optimizer,
 * learning rate and dropout come from the train section of `config`, which then replaces that of the model's config, or
 * if `config` is NULL from the latter. The model must outlive the trainer. Between steps it may be evaluated, saved and
 * run, though not with gradients. A step trains by the config's routing and leaves the one that is set; if they
 * differ, or after passes of other sizes, it plans its memory again. CHOIR_ERROR_BUSY: the model already has a trainer;
 * CHOIR_ERROR_ARGUMENT: the config; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_trainer_create(choir_model *model, const choir_config *config, choir_trainer **trainer);
CHOIR_API void choir_trainer_free(choir_trainer *trainer);

/* Sequences of one step, train.accumulate x train.batch_sequences, and tokens of each, train.sequence_length. */
CHOIR_API int choir_trainer_sequences(const choir_trainer *trainer);
CHOIR_API int choir_trainer_sequence_length(const choir_trainer *trainer);

/* One step: forward and backward of every micro-batch, update of the weights and of what routers keep. tokens int32
 * [sequences,length]; targets int32 [sequences,length], the token that each position must predict, negative: no target;
 * NULL: the next token of the sequence, with no target at its end, or, where train.objective masks tokens, those that
 * this step masks. choir_model_get_route_stats then has the step's routing
 * statistics. CHOIR_ERROR_ARGUMENT, with nothing done: a token or target outside the vocabulary, no target
 * at all; CHOIR_ERROR_NUMERIC, naming the tensor: a loss or gradient that is not finite, which updates nothing from
 * there on; CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_trainer_step(choir_trainer *trainer, const int32_t *tokens, const int32_t *targets,
                                 choir_trainer_result *result);

/* Writes a checkpoint directory as choir_model_save does, and in it the optimizer's state: what `choir eval` reads, and
 * choir_trainer_resume. tokenizer may be NULL. */
CHOIR_API int choir_trainer_save(const choir_trainer *trainer, const choir_tokenizer *tokenizer,
                                 const char *checkpoint);

/* Takes weights, optimizer and number of steps from a checkpoint of choir_trainer_save: the next step gives the bits
 * that it would have given there. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: also a checkpoint of `choir train`, which is
 * resumed with its data. After an error the trainer is of no use. */
CHOIR_API int choir_trainer_resume(choir_trainer *trainer, const char *checkpoint);

CHOIR_C_END
#endif
