/* Imports a Hugging Face folder or a GGUF file as a checkpoint of choir. */
#ifndef CH_EXPORT_IMPORT_H
#define CH_EXPORT_IMPORT_H

#include "choir/tokenizer.h"
#include "config/config.h"
#include "export/names.h"
#include "file/json.h"

typedef struct choir_import_options {
  const char *from; /* a folder: config.json and model.safetensors, or its index and several files; or a GGUF file */
  const char *out;  /* the checkpoint to create */
  const char *tokenizer; /* a tokenizer file; NULL: the model's own, if it has one */
  int (*progress)(void *context, const char *what, double share); /* or NULL; nonzero: CHOIR_ERROR_INTERRUPTED */
  void *context;
} choir_import_options;

typedef struct choir_import_result {
  const char *architecture; /* "LlamaForCausalLM"; for a GGUF file "llama" */
  int64_t parameters;
  int tokenizer; /* nonzero: the checkpoint has a tokenizer */
} choir_import_result;

/* Supports the architectures llama, mistral, qwen3, mixtral, olmoe, qwen3_moe, glm4_moe and exaone_moe, as far as a
 * config of choir can express them; GGUF files of types F32, F16, BF16 and Q8_0. CHOIR_ERROR_UNSUPPORTED names a field
 * and its value that choir cannot express; CHOIR_ERROR_FORMAT a field that is unknown, missing or contradictory, and
 * tensors that do not fit; CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY, CHOIR_ERROR_NUMERIC. */
int choir_import(const choir_import_options *options, choir_import_result *result);

/* Converts config.json to a config of choir; every message starts with `name`. *gate_scale is a factor of the
 * experts' outputs. */
int ch_import_config(const json_t *root, const char *name, choir_config *config, double *gate_scale, ch_kind *kind);

/* Whether a field of a config.json is read, or known to have no effect on the computation. */
int ch_import_knows(const char *field);

/* Adds fields that a config.json lacks and whose default in transformers differs from ch_import_config's, such as
 * the window of mistral. null means absent, except for a window, where it means that there is none. */
int ch_import_defaults(json_t *root);

/* CHOIR_ERROR_UNSUPPORTED, with the command that converts to safetensors: `from` is a pickle, by its name, or the
 * folder has a pickle and no file `weights`. CHOIR_ERROR_IO: this cannot be determined. */
int ch_import_refuse_pickle(const char *from);
int ch_import_refuse_pickled_folder(const char *folder, const char *weights);

/* Where a checkpoint's tokenizer comes from. */
typedef struct ch_tokenizer_source {
  const char *from;              /* the imported folder or file */
  const struct ch_gguf_in *gguf; /* the GGUF file; NULL: a folder */
  const char *named;             /* a tokenizer file that the user names, used instead; or NULL */
  int64_t eos;                   /* the token that ends a text; -1: config.json does not say */
  int vocab;                     /* number of tokens of the model */
} ch_tokenizer_source;

/* Writes CHECKPOINT/tokenizer.model. A tokenizer that the user names must be usable. The model's own is left out, with
 * a notice, if it would change texts or belongs to another model. *added: the checkpoint has a tokenizer. */
int ch_import_add_tokenizer(const ch_tokenizer_source *source, const char *checkpoint, int *added);

/* Reads tokenizer.json of Hugging Face's tokenizers: byte-level BPE is kept, other BPE is converted to an equivalent
 * SentencePiece model. eos: id of the token that ends a text; -1: found by its usual name. tokens: the model's number
 * of tokens, which may be larger than the file's with byte-level BPE. CHOIR_ERROR_UNSUPPORTED names a field that cannot
 * be converted; CHOIR_ERROR_FORMAT, CHOIR_ERROR_MEMORY. */
int ch_import_tokenizer(const char *bytes, size_t size, const char *name, int64_t eos, int64_t tokens,
                        choir_tokenizer **tokenizer);

/* Does the same from file to file; *pieces: number of pieces. */
int choir_tokenizer_import(const char *from, int64_t eos, int64_t tokens, const char *out, int *pieces);

#endif
