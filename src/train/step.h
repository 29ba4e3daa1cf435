/* One training step on the caller's batch, and all memory that it needs: a run passes data, the benchmark random
 * tokens. */
#ifndef CH_TRAIN_STEP_H
#define CH_TRAIN_STEP_H

#include "choir/trainer.h"
#include "handle/model.h"
#include "train/optimizer.h"

/* A micro-batch: batch_sequences sequences of T tokens, and the targets at their positions. */
typedef struct ch_batch {
  int T;
  const int32_t *token; /* [batch_sequences,T]; negative: padding */
  const int32_t *row;   /* [rows] ascending positions with a target; NULL: all */
  int rows;
  const int32_t *target; /* [rows or batch_sequences,T]; negative: none */
  const float *weight;   /* [batch_sequences,T] weights of targets, with which the loss is a mean over all tokens; or
                            NULL: 1 each */
} ch_batch;

typedef struct ch_trainer {
  choir_model *model; /* owned; its config defines the step */
  ch_optimizer optimizer;
  ch_arena state;  /* optimizer state */
  ch_batch *batch; /* [accumulate] micro-batches of a step on whole windows */
  int32_t *paired; /* tokens, targets and rows of a micro-batch with every sequence twice; NULL: not paired */
  int32_t *picked; /* rows, targets and weights of the positions with a target, for training by masking in one gradient
                      chunk; NULL: the head runs on all positions */
  int64_t max_tokens; /* tokens of the longest pass */
  int64_t step;       /* steps done */
} ch_trainer;

/* Tokens of a step on all ranks: accumulate x batch_sequences x sequence_length. */
int64_t ch_step_tokens(const ch_train_config *config);

/* Sequences of one pass: batch_sequences, or twice as many if two samples of the router are trained to agree. */
int ch_pass_sequences(const choir_config *config);

/* Nonzero if layers can be updated within the backward pass: gradients then need the memory of one layer only.
 * Clipping needs the norm of all gradients, and micro-batches need their sum. */
int ch_update_in_backward(const ch_train_config *config);

/* Takes over a model, whose weights may not have memory yet, and counts all further memory of training. Free it in
 * any case, and do not move it. model->x.comm has the ranks that share the steps. CHOIR_ERROR_ARGUMENT: settings that
 * the router refuses, or ranks that do not divide train.grad_chunks. */
int ch_trainer_plan(choir_model *model, ch_trainer *t);

/* Replaces the plan for the config's batch size by one for micro-batches of `step`, 2 `step`, ... up to `longest`
 * tokens, each with `rows` positions that have a target, and for `more` passes without gradients. Called after
 * ch_trainer_plan. */
int ch_trainer_plan_batches(ch_trainer *t, int step, int longest, int rows, const ch_pass *more, int count);

/* The memory that the plan counted. */
void ch_trainer_memory(const ch_trainer *t, choir_memory *memory);

/* Allocates that memory; weights and state are still to be set. CHOIR_ERROR_MEMORY, with figures by purpose, if this
 * machine has less. */
int ch_trainer_commit(ch_trainer *t);
void ch_trainer_free(ch_trainer *t);

/* One step on `accumulate` micro-batches, of any length up to the config's (ch_trainer_plan_batches): forward and
 * backward of each, then the update. The loss is the mean over all their targets. The routers' state is updated, too.
 * Collective. CHOIR_ERROR_NUMERIC: the loss or a gradient is not finite; the tensors that are not updated yet keep
 * their values. An error of a plug-in: nothing is updated. An error of a plug-in's `observe`: the weights are updated,
 * and the routers' state is not. */
int ch_trainer_step_on(ch_trainer *t, const ch_batch *batches, choir_trainer_result *result);

/* Cuts token and target [ch_step_tokens] into micro-batches [accumulate] of the config's size; weights of targets
 * [ch_step_tokens], or NULL. The trainer owns the result, which is valid until the next call. */
const ch_batch *ch_trainer_cut(ch_trainer *t, const int32_t *token, const int32_t *target, const float *weight);

/* A training step on these tokens. */
int ch_trainer_step(ch_trainer *t, const int32_t *token, const int32_t *target, choir_trainer_result *result);

/* Nonzero after every `every`-th step (0: never), and after the last step. */
int ch_trainer_is_due(const ch_trainer *t, int64_t every);

/* CHOIR_ERROR_INTERRUPTED: the run was requested to stop and has saved. */
int ch_trainer_stopped(const ch_trainer *t);

/* The error for a loss or gradient that is not finite: names the first weight or gradient that is not. */
int ch_trainer_not_finite(const ch_trainer *t, int64_t step, double loss);

/* Called before a save: that error if a weight is not finite, or an error that the device or a router has reported
 * since the last call; CHOIR_OK otherwise. */
int ch_trainer_check(const ch_trainer *t, double loss);

/* ---- FLOPs of a config, by part ---- */

typedef enum {
  CH_FLOPS_ATTENTION, /* four projections, scores, and the weighted sum over the visible positions */
  CH_FLOPS_DENSE,     /* dense feed-forward layers */
  CH_FLOPS_ROUTER,    /* X Wg */
  CH_FLOPS_EXPERTS,
  CH_FLOPS_HEAD, /* output head */
  CH_FLOPS_PARTS
} ch_flops_part;

/* The part to which a weight that is a factor of products (p->product) belongs. */
ch_flops_part ch_flops_part_of(const ch_param *p);

/* Counts multiplications and additions of one token in the forward pass. Training needs three times as many, or six
 * times if each sequence occurs twice in a pass (ch_pass_sequences). */
void ch_count_flops(const choir_config *config, const ch_params *params, double flops[CH_FLOPS_PARTS]);

#endif
