/* CHECKPOINT/imported.NAME: files that a model's authors published with its weights and that choir itself does not
 * use. An export of an imported model restores them, so that other programs tokenize texts as its authors' do. A
 * checkpoint trained by choir has none of them: its tokens are choir's. */
#ifndef CH_EXPORT_IMPORTED_H
#define CH_EXPORT_IMPORTED_H

#include <stdint.h>

#include "file/json.h"

/* Copies these files from a Hugging Face folder to a checkpoint; `tokenizer`: the tokenizer's files, too. */
int ch_imported_keep(const char *folder, int tokenizer, const char *checkpoint);
/* Does the same for a GGUF file, from its keys. */
int ch_imported_keep_keys(const json_t *keys, const char *checkpoint);

typedef struct ch_imported {
  json_t *config;         /* the authors' config.json; NULL: the model was not imported */
  int tokenizer;          /* the tokenizer's files exist */
  int64_t bos, eos;       /* token ids; -1: not specified */
  int add_bos, add_space; /* whether other programs insert this at the beginning of a text by default */
} ch_imported;

/* Loads the copied files of a checkpoint. json_decref(imported->config). CHOIR_ERROR_FORMAT, CHOIR_ERROR_IO. */
int ch_imported_load(const char *checkpoint, ch_imported *imported);

/* Copies the tokenizer's files and generation_config.json from a checkpoint to an exported folder. */
int ch_imported_restore(const char *checkpoint, const char *folder);

#endif
