/* Where checkpoints stand: RUN/checkpoints/STEP, the step in eight digits or more; RUN/best may name one of them. And
 * what binds their files together. */
#ifndef CH_FILE_CHECKPOINTS_H
#define CH_FILE_CHECKPOINTS_H

#include <stdint.h>

#include "choir/tensors.h"

/* Lists the steps of the directories in RUN/checkpoints whose names are choir's, the newest first, without opening
 * them. The caller frees *steps. Other all-digit names get a notice. */
int ch_checkpoint_list(const char *run, int64_t **steps, int *count);

/* Whether RUN/best, as training and fine-tuning write it, names a checkpoint that is there; then `out` is its path.
 * CHOIR_ERROR_IO: it cannot be told. */
int ch_checkpoint_best(const char *run, char *out, int *there);

/* The checkpoint that a path stands for, whole or not: itself, or of a run directory the best, or the newest one. `out`
 * has PATH_MAX bytes. */
int ch_checkpoint_resolve(const char *path, char *out);

/* The error of a path that is not there; of a checkpoint of a run it says which ones the run has. */
int ch_checkpoint_absent(const char *path);

/* Directory of a step: RUN/checkpoints/00001000. `out` has PATH_MAX bytes. */
void ch_checkpoint_path(const char *run, int64_t step, char *out);

/* The step that such a name stands for, or -1. */
int64_t ch_checkpoint_step(const char *name);

/* 1 for the name of a file of a checkpoint that is a whole by itself, 0 for a part of one, -1 for anything else. */
int ch_checkpoint_file(const char *name);

/* CHOIR_ERROR_FORMAT where a file of a checkpoint is a link or no file (path_status.h); CHOIR_ERROR_IO. */
int ch_checkpoint_check_files(const char *directory);

/* ---- binding ----
 * The files beside a checkpoint's weights are bound to them: the weights' metadata has a checksum of tokenizer.model
 * and one of config.json's "model". docs/formats.md has the rule. */

#define CH_BINDING_CONFIG_KEY "choir_config"
#define CH_BINDING_TOKENIZER_KEY "choir_tokenizer"

/* Sixteen hexadecimal digits, or "": there is no such file. */
typedef struct ch_binding {
  char config[17], tokenizer[17];
} ch_binding;

/* Computes it from the files of a directory. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_binding_of(const char *directory, ch_binding *binding);

/* The keys and values for choir_tensors_write, NULL-terminated. */
void ch_binding_metadata(const ch_binding *binding, const char *metadata[5]);

/* Whether the files beside `path` are those that its weights were saved with; weights of others, and of earlier
 * versions, bind none. CHOIR_ERROR_FORMAT names the file that is not. */
int ch_binding_check(const choir_tensors *weights, const char *path);

/* The same of the checkpoint in a directory; nonzero: they are. */
int ch_binding_holds(const char *directory);

#endif
