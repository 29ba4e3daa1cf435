/* Masks for models trained by masking, with bidirectional attention (docs/diffusion.md): input tokens, targets, and
 * weights of the losses. */
#ifndef CH_MODEL_MASK_H
#define CH_MODEL_MASK_H

#include <stdint.h>

#include "config/config.h"

/* The lowest masking probability in training, by which the loss is divided (Sahoo et al. 2024). */
#define CH_MASK_MIN 1e-3

/* Masks one training sequence: number `row` of the accumulate * batch_sequences sequences of a step, with tokens `text`
 * [T]. Outputs: token [T], the masked input; target [T], the original token at masked positions, else negative; weight
 * [T] of the losses. With masked_diffusion each sequence of the step has its own stratum of (0,1) for its time, and the
 * weighted mean over all tokens is an upper bound in nats per token. With masked_lm 15 % of tokens are targets (80 % of
 * them become the mask, 10 % random tokens) and *weighted is 0: the loss is the mean over targets. Random numbers are
 * functions of (train.seed, step, row, position). */
void ch_mask_training(const choir_config *config, int64_t step, int row, const int32_t *text, int32_t *token,
                      int32_t *target, float *weight, int *weighted);

/* Evaluation number `draw` of `count`, in sample `sample`. Masks exactly k of the nonnegative tokens of `text` [T]
 * (negative: padding), each subset with equal probability. k is uniform over 1 .. number of these tokens, within the
 * stratum of `draw`; with masked_lm 15 %, at least one, masked 80/10/10 as in training. target as in training. Returns
 * k. *ratio, in (0,1): in, a positive value is used; otherwise it is sampled within the stratum; out, the value used.
 * `index` identifies the sequence: its masks do not depend on other sequences. */
int ch_mask_evaluation(const choir_config *config, int64_t draw, int64_t count, int64_t index, int sample,
                       const int32_t *text, int T, int32_t *token, int32_t *target, double *ratio);

#endif
