/* Where checkpoints stand: RUN/checkpoints/STEP, the step in eight digits or more; RUN/best may name one of them. */
#ifndef CH_FILE_CHECKPOINTS_H
#define CH_FILE_CHECKPOINTS_H

#include <stdint.h>

/* Steps of the directories in RUN/checkpoints that are called as choir calls checkpoints, the newest first; whether
 * they are any is for who opens them to find out. *steps: free it. Other names of digits alone get a notice. */
int ch_checkpoint_list(const char *run, int64_t **steps, int *count);

/* The newest of them, whole or not; -1: none, or the directory cannot be read. */
int64_t ch_checkpoint_newest_step(const char *run);

/* Whether RUN/best, as fine-tuning writes it, names a checkpoint that is there; then `out` is its path. */
int ch_checkpoint_best(const char *run, char *out);

/* The checkpoint that a path stands for, whole or not: itself, or of a run directory the best, or the newest one. `out`
 * has PATH_MAX bytes. */
int ch_checkpoint_resolve(const char *path, char *out);

/* Directory of a step: RUN/checkpoints/00001000. `out` has PATH_MAX bytes. */
void ch_checkpoint_path(const char *run, int64_t step, char *out);

/* The step that such a name stands for, or -1. */
int64_t ch_checkpoint_step(const char *name);

#endif
