/* The part of a checkpoint beside weights, so that resuming goes on bit for bit: the optimizer's state, and counters.
 */
#ifndef CH_TRAIN_STATE_H
#define CH_TRAIN_STATE_H

#include "choir/tokenizer.h"
#include "train/step.h"

/* A number of a run, an int64 in state.safetensors. One that ties the checkpoint to something else, a hash, says of
 * what; any other is not negative. */
typedef struct ch_counter {
  const char *name;
  int64_t *value; /* saved, and read */
  const char *of; /* "the data"; NULL: a count */
  int optional;   /* checkpoints of earlier versions lack it: read as -1 */
} ch_counter;
enum { CH_COUNTERS = 12 }; /* at most */

/* Writes OUT/checkpoints/STEP (model, config, tokenizer, state.safetensors) and removes the oldest beyond the
 * `keep_checkpoints` of the config; that of step `best` stays (-1: none). `path` (PATH_MAX) gets its name. Of several
 * ranks the first one makes the directory, each writes its share of the files, and the counters are the first one's.
 * Collective; all ranks get the code, but for what the first one does last. */
int ch_state_save(const char *out, const ch_trainer *trainer, const choir_tokenizer *tokenizer,
                  const ch_counter *counters, int count, int64_t best, char *path);

/* Removes old checkpoints, as a save does, in case the last save was killed before it did so. Called by the first rank
 * on resuming. */
void ch_state_rotate(const char *out, const ch_trainer *trainer, int64_t best);

/* Loads weights and state of a checkpoint directory into a trainer that has its memory, and the values of counts. A
 * hash that is not the one in `counters` is refused. */
int ch_state_load(const char *path, ch_trainer *trainer, const ch_counter *counters, int count);

/* The part that is state.safetensors: writes it, and reads it, opened; `path` names it in messages. */
int ch_state_write(const ch_trainer *trainer, const ch_counter *counters, int count, const char *path);
int ch_state_read(ch_trainer *trainer, const ch_counter *counters, int count, const choir_tensors *file,
                  const char *path);

#endif
