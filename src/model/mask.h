/* Masks for models trained by masking, with bidirectional attention (docs/diffusion.md): input tokens, targets, and
 * weights of the losses. */
#ifndef CH_MODEL_MASK_H
#define CH_MODEL_MASK_H

#include <stdint.h>

#include "config/config.h"

/* The lowest masking probability in training, by which the loss is divided (Sahoo et al. 2024). */
#define CH_MASK_MIN 1e-3

/* The training sequence number `row` of a step, of accumulate * batch_sequences, and its T tokens `text`: token [T]
 * with masks, target [T] the masked ones, negative elsewhere, and weight [T] of their losses. With masked_diffusion the
 * sequence's ratio is one of as many strata of (0,1) as the step has sequences, and weights make the mean over all
 * tokens a bound of nats a token. With masked_lm 15 % of tokens are targets (80 % of targets become the mask, 10 %
 * other tokens), and *weighted is 0: the loss is their mean. Draws are functions of (train.seed, step, row, position).
 */
void ch_mask_training(const choir_config *config, int64_t step, int row, const int32_t *text, int32_t *token,
                      int32_t *target, float *weight, int *weighted);

/* One of the `count` evaluations of a model: number `draw` of sample `sample`. Masks exactly k of the tokens of `text`
 * [T] that are not negative (padding), all choices of k alike, where k is uniform over 1 .. all of them within the
 * draw's stratum; with masked_lm 15 %, at least one, 80/10/10. target as in training. Returns k; *ratio: where in (0,1)
 * the stratum's draw fell; a ratio above 0 that comes in is taken instead of one that is drawn. `index` is the
 * sequence's own number: its masks do not depend on the others. */
int ch_mask_evaluation(const choir_config *config, int64_t draw, int64_t count, int64_t index, int sample,
                       const int32_t *text, int T, int32_t *token, int32_t *target, double *ratio);

#endif
