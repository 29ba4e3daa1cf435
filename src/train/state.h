/* The part of a checkpoint other than weights that makes resuming bit-identical: the optimizer's state, and
 * counters. */
#ifndef CH_TRAIN_STATE_H
#define CH_TRAIN_STATE_H

#include "choir/tokenizer.h"
#include "train/step.h"

/* A number of a run, stored as an int64 in state.safetensors. A hash that binds the checkpoint to something else has
 * `of`; all other counters are not negative. */
typedef struct ch_counter {
  const char *name;
  int64_t *value; /* written on save, set on load */
  const char *of; /* a hash: what it is of, "the data"; NULL: a count */
  int optional;   /* checkpoints of earlier versions lack it: read as -1 */
} ch_counter;
enum { CH_COUNTERS = 12 }; /* maximum */

/* Writes OUT/checkpoints/STEP (model, config, tokenizer, state.safetensors) and removes the oldest beyond the
 * `keep_checkpoints` of the config; that of step `best` is kept (-1: none). `path` [PATH_MAX] gets its name. With
 * several ranks the first one creates the directory, each writes its shards of the weights and state, and the counters
 * are the first one's. Collective; all ranks return the same code, except for an error in the first rank's final
 * removal of old checkpoints. */
int ch_state_save(const char *out, const ch_trainer *trainer, const choir_tokenizer *tokenizer,
                  const ch_counter *counters, int count, int64_t best, char *path);

/* Removes old checkpoints, as a save does, in case the last save was killed before it did so. Called by the first
 * rank on resuming. */
void ch_state_rotate(const char *out, const ch_trainer *trainer, int64_t best);

/* Loads weights and state of a checkpoint directory into a trainer that has its memory, and the counters. A hash
 * that differs from the one in `counters` is refused. */
int ch_state_load(const char *path, ch_trainer *trainer, const ch_counter *counters, int count);

/* Write and read state.safetensors (reading from an open file); `path` names it in messages. */
int ch_state_write(const ch_trainer *trainer, const ch_counter *counters, int count, const char *path);
int ch_state_read(ch_trainer *trainer, const ch_counter *counters, int count, const choir_tensors *file,
                  const char *path);

#endif
