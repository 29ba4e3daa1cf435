#include "model/mask.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "model/config.h"

static const double lm_share = 0.15, lm_masked = 0.8, lm_random = 0.9; /* Devlin et al. 2019 */

/* The replacement of a selected token: the mask; with masked_lm sometimes a random token, or the token itself. */
static int32_t hide(const choir_config *config, ch_rng rng, uint64_t at, int32_t token) {
  int32_t mask = ch_config_pieces(config);
  if (ch_config_diffusion(config)) return mask;
  double kind = ch_rng_uniform(rng, 2 * at);
  if (kind < lm_masked) return mask;
  return kind < lm_random ? (int32_t)ch_rng_below(rng, 2 * at + 1, (uint64_t)mask) : token;
}

/* The probability p of a mask at time t in (0,1), and the weight of a masked token's loss, p'(t) / p. */
static double probability(const choir_config *config, double t, double *weight) {
  const double half_pi = 1.5707963267948966;
  t = CH_MASK_MIN + (1 - CH_MASK_MIN) * t;
  int cosine = config->train.mask_schedule == CH_MASK_COSINE;
  double p = cosine ? sin(half_pi * t) : t;
  *weight = (cosine ? half_pi * cos(half_pi * t) : 1) / p;
  return p;
}

void ch_mask_training(const choir_config *config, int64_t step, int row, const int32_t *text, int32_t *token,
                      int32_t *target, float *weight, int *weighted) {
  const ch_train_config *c = &config->train;
  int T = c->sequence_length, rows = c->accumulate * c->batch_sequences;
  uint64_t sequence = (uint64_t)step * (uint64_t)rows + (uint64_t)row;
  ch_rng ratio = ch_rng_make(c->seed, CH_STREAM_MASK_RATIO, 0), mask = ch_rng_make(c->seed, CH_STREAM_MASK, 0),
         other = ch_rng_make(c->seed, CH_STREAM_MASK_TOKEN, 0);
  int stratum = row % c->batch_sequences * c->accumulate + row / c->batch_sequences; /* spread over micro-batches */
  double factor = 1, p = lm_share;
  *weighted = ch_config_diffusion(config);
  if (*weighted) p = probability(config, (stratum + ch_rng_uniform(ratio, sequence)) / rows, &factor);
  for (int t = 0; t < T; t++) {
    uint64_t at = sequence * (uint64_t)T + (uint64_t)t;
    int chosen = ch_rng_uniform(mask, at) < p;
    token[t] = chosen ? hide(config, other, at, text[t]) : text[t];
    target[t] = chosen ? text[t] : -1;
    weight[t] = (float)factor;
  }
}

int ch_mask_evaluation(const choir_config *config, int64_t draw, int64_t count, int64_t index, int sample,
                       const int32_t *text, int T, int32_t *token, int32_t *target, double *ratio) {
  uint32_t sub = 1 + (uint32_t)sample;
  uint64_t seed = config->train.seed;
  ch_rng mask = ch_rng_make(seed, CH_STREAM_MASK, sub), other = ch_rng_make(seed, CH_STREAM_MASK_TOKEN, sub);
  int n = 0, left, k;
  for (int t = 0; t < T; t++) n += text[t] >= 0;
  if (!(*ratio > 0))
    *ratio =
        ((double)draw + ch_rng_uniform(ch_rng_make(seed, CH_STREAM_MASK_RATIO, sub), (uint64_t)index)) / (double)count;
  k = (int)ceil((ch_config_diffusion(config) ? *ratio : lm_share) * n);
  if (k > n) k = n;
  left = n;
  for (int t = 0, missing = k; t < T; t++) { /* selection sampling: probability missing / remaining */
    uint64_t at = (uint64_t)index * (uint64_t)T + (uint64_t)t;
    token[t] = text[t];
    target[t] = -1;
    if (text[t] < 0) continue;
    if (ch_rng_uniform(mask, at) * left-- >= missing) continue;
    missing--;
    target[t] = text[t];
    token[t] = hide(config, other, at, text[t]);
  }
  return k;
}
