/* Paths of checkpoints: RUN/checkpoints/STEP, the step with at least eight digits; RUN/best may name one of them.
 * And the checksums that bind a checkpoint's files to each other. */
#ifndef CH_FILE_CHECKPOINTS_H
#define CH_FILE_CHECKPOINTS_H

#include <stdint.h>

#include "choir/tensors.h"

/* Lists the steps of all directories in RUN/checkpoints with a name that choir makes, the newest first, without
 * opening them. The caller frees *steps. Other names of digits only get a notice. */
int ch_checkpoint_list(const char *run, int64_t **steps, int *count);

/* Whether RUN/best, as training and fine-tuning write it, names an existing checkpoint; then `out` is its path.
 * CHOIR_ERROR_IO: this cannot be determined. */
int ch_checkpoint_best(const char *run, char *out, int *there);

/* The checkpoint of a path, intact or not: the path itself, or for a run directory its best or newest checkpoint.
 * `out` has PATH_MAX bytes. */
int ch_checkpoint_resolve(const char *path, char *out);

/* The error for a missing path; for a checkpoint of a run it lists the existing ones. */
int ch_checkpoint_absent(const char *path);

/* Directory of a step: RUN/checkpoints/00001000. `out` has PATH_MAX bytes. */
void ch_checkpoint_path(const char *run, int64_t step, char *out);

/* The step in a directory's name, or -1. */
int64_t ch_checkpoint_step(const char *name);

/* 1: a checkpoint file that is complete by itself; 0: one part of several; -1: any other name. */
int ch_checkpoint_file(const char *name);

/* CHOIR_ERROR_FORMAT if a file of a checkpoint is a link or not a regular file (path_status.h); CHOIR_ERROR_IO. */
int ch_checkpoint_check_files(const char *directory);

/* ---- binding ----
 * The files next to a checkpoint's weights are bound to them: the weights' metadata has a checksum of tokenizer.model
 * and one of config.json's "model". docs/formats.md has the rule. */

#define CH_BINDING_CONFIG_KEY "choir_config"
#define CH_BINDING_TOKENIZER_KEY "choir_tokenizer"

/* Checksums of sixteen hexadecimal digits, or "": there is no such file. */
typedef struct ch_binding {
  char config[17], tokenizer[17];
} ch_binding;

/* Computes the checksums of a directory's files. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_binding_of(const char *directory, ch_binding *binding);

/* The metadata's keys and values for choir_tensors_write, NULL-terminated. */
void ch_binding_metadata(const ch_binding *binding, const char *metadata[5]);

/* Checks that the files next to `path` are those that its weights were saved with; weights of other programs and of
 * earlier versions have no checksums and pass. CHOIR_ERROR_FORMAT names the file that differs. */
int ch_binding_check(const choir_tensors *weights, const char *path);

/* The same check of the checkpoint in a directory; nonzero: it passes. */
int ch_binding_holds(const char *directory);

#endif
