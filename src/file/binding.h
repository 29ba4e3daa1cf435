/* Binds the files beside a checkpoint's weights to them: the weights' metadata has a checksum of tokenizer.model and
 * one of config.json's "model". docs/formats.md has the rule. */
#ifndef CH_BASE_BINDING_H
#define CH_BASE_BINDING_H

#include "choir/tensors.h"

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
