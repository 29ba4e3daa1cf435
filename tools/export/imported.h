/* CHECKPOINT/imported.NAME: files that a model's makers put beside its weights and choir itself has no use for. A model
 * that is exported as it was imported gets them back, so that other programs read texts as its makers' do. A checkpoint
 * that choir has trained has none of them: its tokens are choir's. */
#ifndef CH_EXPORT_IMPORTED_H
#define CH_EXPORT_IMPORTED_H

#include <stdint.h>

#include "file/json.h"

/* Copies them from a folder of Hugging Face's into a checkpoint; `tokenizer`: those of its tokenizer, too. */
int ch_imported_keep(const char *folder, int tokenizer, const char *checkpoint);
/* The same of a GGUF file, whose keys they are. */
int ch_imported_keep_keys(const json_t *keys, const char *checkpoint);

typedef struct ch_imported {
  json_t *config;         /* the makers' config.json; NULL: this model was not imported */
  int tokenizer;          /* its tokenizer's files are there */
  int64_t bos, eos;       /* tokens; -1: none is said */
  int add_bos, add_space; /* by default other programs put that in front of a text */
} ch_imported;

/* What a checkpoint kept. json_decref(imported->config). CHOIR_ERROR_FORMAT, CHOIR_ERROR_IO. */
int ch_imported_load(const char *checkpoint, ch_imported *imported);

/* Copies the files of the tokenizer, and generation_config.json, from a checkpoint into a folder that is exported. */
int ch_imported_restore(const char *checkpoint, const char *folder);

#endif
