/* One training step on the caller's batch, and all memory that it takes: a run drives it with data, the bench with
 * random tokens. */
#ifndef CH_TRAIN_STEP_H
#define CH_TRAIN_STEP_H

#include "api/model.h"
#include "comm/comm.h"
#include "train/optimizer.h"

typedef struct ch_trainer {
  choir_model *model; /* owned; its config says what a step is */
  ch_optimizer optimizer;
  const ch_comm *comm;
  ch_arena state; /* of the optimizer */
  int32_t *twice; /* tokens and targets of a micro-batch, every sequence two times; NULL where it is drawn once */
  int64_t step;   /* done */
} ch_trainer;

typedef struct ch_step_result {
  double loss;     /* mean over the targets, in nats */
  double aux_loss; /* weighted, summed over layers */
  double rate, gradient_norm;
  ch_route_summary routing; /* of all MoE layers */
} ch_step_result;

/* Tokens of a step, of one process: accumulate x batch_sequences x sequence_length. */
int64_t ch_step_tokens(const choir_train_config *config);

/* Sequences of one pass: batch_sequences, twice over where two draws of the router are to agree. */
int ch_pass_sequences(const choir_config *config);

/* Takes over a model, which may have memory for its weights or not yet, and counts all that training asks for besides.
 * To be freed in any case, and not moved. CHOIR_ERROR_ARGUMENT: what the router refuses. */
int ch_trainer_plan(choir_model *model, const ch_comm *comm, ch_trainer *t);

/* The memory that the plan counted. */
void ch_trainer_memory(const ch_trainer *t, choir_memory *memory);

/* That memory; weights and state are still to be set. CHOIR_ERROR_MEMORY. */
int ch_trainer_commit(ch_trainer *t);
void ch_trainer_free(ch_trainer *t);

/* One step on token and target [ch_step_tokens]: forward and backward of every micro-batch, sums over ranks, update.
 * What the routers keep takes part. Collective. CHOIR_ERROR_NUMERIC, with nothing updated from there on, when the loss
 * or a gradient is not finite. */
int ch_trainer_step(ch_trainer *t, const int32_t *token, const int32_t *target, ch_step_result *result);

/* The error for a loss or gradient that is not finite: names the first weight or gradient that is not. */
int ch_trainer_not_finite(const ch_trainer *t, int64_t step, double loss);

/* That error when a weight is not finite; CHOIR_OK otherwise. */
int ch_trainer_check_weights(const ch_trainer *t, double loss);

#endif
