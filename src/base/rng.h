/* One random number generator: Philox4x32-10 of Random123 (Salmon et al. 2011), counter-based.
 *
 * A value is a function of (seed, stream, index) alone, so results do not depend on the number of threads or on the
 * order of calls, and a generator's state in a checkpoint is one counter. Every use has a separate stream, listed
 * below, so that no two uses share numbers. */
#ifndef CH_BASE_RNG_H
#define CH_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  CH_STREAM_INIT = 1,      /* initial weights; sub = tensor number */
  CH_STREAM_SHUFFLE,       /* order of training windows; sub = source */
  CH_STREAM_MIXTURE,       /* source of each sample */
  CH_STREAM_HOLDOUT,       /* held-out documents */
  CH_STREAM_ROUTER_JITTER, /* switch_top1's input jitter; sub = layer */
  CH_STREAM_SECOND_EXPERT, /* gshard_top2's random second expert, random's experts; sub = layer */
  CH_STREAM_SAMPLE,        /* sampling while generating */
  CH_STREAM_TEST,
  CH_STREAM_DROPOUT,    /* sub = 0: the embedding, 2 layer + 1: attention, 2 layer + 2: feed-forward */
  CH_STREAM_EXAMPLES,   /* order of a task's examples; sub = 2 epoch: the examples, 2 epoch + 1: their batches */
  CH_STREAM_MASK_RATIO, /* masking ratio of sequences; sub = 0: training, 1 + sample: evaluation */
  CH_STREAM_MASK,       /* masked tokens; sub as above */
  CH_STREAM_MASK_TOKEN, /* masked_lm: replacements of masked tokens */
  CH_STREAM_LOCALITY,   /* the token permutation that is the baseline for locality of routing */
  CH_STREAM_PROBE = 64  /* the leak probe's replaced tokens */
} ch_stream;

typedef struct {
  uint64_t seed;
  uint32_t stream, sub;
} ch_rng;

static inline ch_rng ch_rng_make(uint64_t seed, ch_stream stream, uint32_t sub) {
  return (ch_rng){seed, (uint32_t)stream, sub};
}

uint64_t ch_rng_bits(ch_rng r, uint64_t index);              /* 64 random bits */
double ch_rng_uniform(ch_rng r, uint64_t index);             /* in the open interval (0,1) */
double ch_rng_normal(ch_rng r, uint64_t index);              /* N(0,1), Box-Muller; the same bits on every machine */
uint64_t ch_rng_below(ch_rng r, uint64_t index, uint64_t n); /* in [0,n), bias below 2^-64 n */

/* out[i] = ch_rng_normal(r, index + i), several times faster. */
void ch_rng_normals(ch_rng r, uint64_t index, size_t count, double *out);

/* The image of `index` under a pseudo-random permutation of [0,n). O(1) memory: a Feistel network with cycle
 * walking. */
uint64_t ch_rng_permute(ch_rng r, uint64_t index, uint64_t n);

#endif
