/* Batches of a training set: every epoch goes through all examples, in an order of its own. */
#ifndef CH_TASK_SAMPLER_H
#define CH_TASK_SAMPLER_H

#include "task/examples.h"
#include "train/step.h"

typedef struct ch_sampler {
  const ch_examples *examples;
  uint64_t seed;
  int B;
  int64_t batches;               /* of an epoch */
  int64_t epoch;                 /* that `order` is of; -1: none yet */
  int64_t *order;                /* [count] examples, B after B */
  ch_batch *batch;               /* [micros] what ch_sampler_get fills */
  int32_t *token, *row, *target; /* of all of them */
  int micros;
  int64_t tokens, rows; /* that one of them has room for */
} ch_sampler;

/* Makes micro-batches of B examples each, `micros` of them at a time. CHOIR_ERROR_MEMORY. To be freed in any case. */
int ch_sampler_make(const ch_examples *examples, uint64_t seed, int B, int micros, ch_sampler *s);
void ch_sampler_free(ch_sampler *s);

/* Batch number `number` of all epochs, a function of (examples, seed, B, number) alone, as s->batch[micro]. An
 * epoch is shuffled and cut into pieces of many batches; within a piece batches are made of examples of like length, so
 * that there is little padding, and come in any order. The last batch of an epoch may have fewer examples. Returns how
 * many; *used counts the tokens. */
int ch_sampler_get(ch_sampler *s, int64_t number, int micro, int64_t *used);

#endif
