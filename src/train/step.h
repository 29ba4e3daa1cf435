/* One training step on the caller's batch, and all memory that it takes: a run drives it with data, the bench with
 * random tokens. */
#ifndef CH_TRAIN_STEP_H
#define CH_TRAIN_STEP_H

#include "choir/trainer.h"
#include "handle/model.h"
#include "train/optimizer.h"

/* A micro-batch: batch_sequences sequences of T tokens, and what is to be predicted at which positions. */
typedef struct ch_batch {
  int T;
  const int32_t *token; /* [batch_sequences,T]; negative: padding */
  const int32_t *row;   /* [rows] positions with a target, ascending; NULL: all */
  int rows;
  const int32_t *target; /* [rows or batch_sequences,T]; negative: none */
  const float *weight;   /* [batch_sequences,T] of targets, which then make a mean over all tokens; or NULL: 1 each */
} ch_batch;

typedef struct ch_trainer {
  choir_model *model; /* owned; its config says what a step is */
  ch_optimizer optimizer;
  ch_arena state;     /* of the optimizer */
  ch_batch *batch;    /* [accumulate] of a step on whole windows */
  int32_t *paired;    /* tokens, targets and rows of a micro-batch with every sequence twice; NULL: not paired */
  int32_t *picked;    /* rows, targets and weights of the positions that have a target, of training by masking in one
                         shard; NULL: the head runs on all positions */
  int64_t max_tokens; /* tokens of the longest pass */
  int64_t step;       /* done */
} ch_trainer;

/* Tokens of a step, of all ranks: accumulate x batch_sequences x sequence_length. */
int64_t ch_step_tokens(const ch_train_config *config);

/* Sequences of one pass: batch_sequences, twice over where two draws of the router are to agree. */
int ch_pass_sequences(const choir_config *config);

/* Nonzero when layers may be updated within the backward pass: their gradients then need the memory of one layer only.
 * Clipping needs the norm of all, micro-batches need their sum. */
int ch_update_in_backward(const ch_train_config *config);

/* Takes over a model, which may have memory for its weights or not yet, and counts all that training asks for besides.
 * To be freed in any case, and not moved. model->x.comm says who shares the steps. CHOIR_ERROR_ARGUMENT: what the
 * router refuses, or ranks that do not divide train.grad_chunks. */
int ch_trainer_plan(choir_model *model, ch_trainer *t);

/* The plan for micro-batches of `step`, 2 `step`, ... up to `longest` tokens, each with `rows` positions that have a
 * target, and for `more` passes without gradients: instead of that for the config's. Behind ch_trainer_plan. */
int ch_trainer_plan_batches(ch_trainer *t, int step, int longest, int rows, const ch_pass *more, int count);

/* The memory that the plan counted. */
void ch_trainer_memory(const ch_trainer *t, choir_memory *memory);

/* That memory; weights and state are still to be set. CHOIR_ERROR_MEMORY, by purpose, when this machine has less. */
int ch_trainer_commit(ch_trainer *t);
void ch_trainer_free(ch_trainer *t);

/* One step on `accumulate` micro-batches, of any length up to the config's (ch_trainer_plan_batches): forward and
 * backward of each, update. The loss is the mean over all their targets. What the routers keep takes part. Collective.
 * CHOIR_ERROR_NUMERIC, with nothing updated from there on, when the loss or a gradient is not finite; the error of a
 * plug-in, with nothing updated, or of its `observe`, after which the model has half a step. */
int ch_trainer_step_on(ch_trainer *t, const ch_batch *batches, choir_trainer_result *result);

/* The micro-batches [accumulate] of the config's size that token and target [ch_step_tokens] make, with weights of as
 * many targets or NULL. They are the trainer's until it cuts the next ones. */
const ch_batch *ch_trainer_cut(ch_trainer *t, const int32_t *token, const int32_t *target, const float *weight);

/* A training step on these tokens. */
int ch_trainer_step(ch_trainer *t, const int32_t *token, const int32_t *target, choir_trainer_result *result);

/* Nonzero after every `every`-th step (0: never), and after the last step. */
int ch_trainer_is_due(const ch_trainer *t, int64_t every);

/* CHOIR_ERROR_INTERRUPTED, for a run that was asked to stop and has saved. */
int ch_trainer_stopped(const ch_trainer *t);

/* The error for a loss or gradient that is not finite: names the first weight or gradient that is not. */
int ch_trainer_not_finite(const ch_trainer *t, int64_t step, double loss);

/* What must not be saved: that error when a weight is not finite, or what the device or a router has reported since it
 * was last asked; CHOIR_OK otherwise. */
int ch_trainer_check(const ch_trainer *t, double loss);

/* ---- FLOPs of a config, by part ---- */

typedef enum {
  CH_FLOPS_ATTENTION, /* its four products, scores, and their weighted sum over the positions seen */
  CH_FLOPS_DENSE,     /* feed-forward layers that are not MoE */
  CH_FLOPS_ROUTER,    /* X Wg */
  CH_FLOPS_EXPERTS,
  CH_FLOPS_HEAD, /* logits */
  CH_FLOPS_PARTS
} ch_flops_part;

/* Which part a weight that is a factor of products (p->product) belongs to. */
ch_flops_part ch_flops_part_of(const ch_param *p);

/* Counts multiplications and additions of one token, forward. Training is three times that for every draw
 * (ch_pass_sequences). */
void ch_count_flops(const choir_config *config, const ch_params *params, double flops[CH_FLOPS_PARTS]);

#endif
