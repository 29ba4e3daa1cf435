/* A folder of Hugging Face's, or a GGUF file, as a checkpoint of choir. */
#ifndef CH_EXPORT_IMPORT_H
#define CH_EXPORT_IMPORT_H

#include "choir/tokenizer.h"
#include "config/config.h"
#include "export/names.h"
#include "file/json.h"

typedef struct choir_import_options {
  const char *from; /* a folder: config.json and model.safetensors, or its index and several files; or a GGUF file */
  const char *out;  /* the checkpoint that is made */
  const char *tokenizer; /* the file of one for it; NULL: what comes with the model, if anything does */
  int (*progress)(void *context, const char *what, double share); /* or NULL; nonzero: CHOIR_ERROR_INTERRUPTED */
  void *context;
} choir_import_options;

typedef struct choir_import_result {
  const char *architecture; /* "LlamaForCausalLM"; of a GGUF file "llama" */
  int64_t parameters;
  int tokenizer; /* nonzero: the checkpoint has one */
} choir_import_result;

/* Kinds llama, mistral, qwen3, mixtral, olmoe, qwen3_moe, glm4_moe and exaone_moe, as far as a config of choir can say
 * what they compute; of GGUF files those of F32, F16, BF16 and Q8_0. CHOIR_ERROR_UNSUPPORTED names a field, and its
 * value, that it cannot; CHOIR_ERROR_FORMAT one that is unknown, missing or contradictory, and tensors that do not fit;
 * CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY, CHOIR_ERROR_NUMERIC. */
int choir_import(const choir_import_options *options, choir_import_result *result);

/* Reads config.json as a config of choir; `name` starts every message. *gate_scale is a factor of the experts'
 * results. */
int ch_import_config(const json_t *root, const char *name, choir_config *config, double *gate_scale, ch_kind *kind);

/* Whether a field of a config.json is read, or known to have no effect on what the model computes. */
int ch_import_knows(const char *field);

/* Fields that a config.json lacks, where transformers then takes what the reader above would not: a window of mistral
 * say. null is no value, but for a window, where it says that there is none. */
int ch_import_defaults(json_t *root);

/* CHOIR_ERROR_UNSUPPORTED, with the command that makes safetensors: the file `from` is a pickle, by its name; or the
 * folder has a pickle and no file `weights`. CHOIR_ERROR_IO: it cannot be told. */
int ch_import_refuse_pickle(const char *from);
int ch_import_refuse_pickled_folder(const char *folder, const char *weights);

/* tokenizer.json of Hugging Face's tokenizers: byte-level BPE as it is, or a SentencePiece model that has the same
 * rule. eos: number of the token that ends a text; -1: by its usual name. tokens: how many the model has, which may be
 * more than byte-level BPE names. CHOIR_ERROR_UNSUPPORTED names the field that has no counterpart; CHOIR_ERROR_FORMAT,
 * CHOIR_ERROR_MEMORY. */
int ch_import_tokenizer(const char *bytes, size_t size, const char *name, int64_t eos, int64_t tokens,
                        choir_tokenizer **tokenizer);

/* The same from file to file; *pieces: how many it has. */
int choir_tokenizer_import(const char *from, int64_t eos, int64_t tokens, const char *out, int *pieces);

#endif
