/* Tokenizers: train and load SentencePiece models, load byte-level BPE of other programs (tokenizer.json); encode,
 * decode. */
#ifndef CHOIR_TOKENIZER_H
#define CHOIR_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"
#include "choir/event.h"

CHOIR_C_BEGIN

typedef struct choir_tokenizer choir_tokenizer;

typedef struct choir_tokenizer_train_options {
  size_t size;               /* sizeof this struct: set by INIT */
  const char *const *inputs; /* text files, compressed or not, as for choir_data_build; NULL-terminated */
  const char *field;         /* JSON-lines field, or NULL: plain text */
  const char *separator;     /* line between documents, or NULL: one document */
  const char *type;          /* "bpe", "unigram" or "char"; NULL: "bpe" */
  int vocab_size;            /* up to 256,000; for "char" an upper bound, since the text may have fewer characters */
  const char *output;        /* the .model file to write */
  size_t sample_bytes;       /* max bytes of text, sampled evenly from all inputs; 0: 16 MiB */
  int threads;               /* max CPUs; 0: all; the result does not depend on it */
  int replace_invalid;       /* bytes that are not UTF-8 become U+FFFD, one each; 0: they are an error */
  choir_progress_callback
      progress; /* or NULL; in lines of text. After a stop, the training of SentencePiece, which cannot be interrupted,
                   continues in a background thread without effect until it ends */
  void *context;
} choir_tokenizer_train_options;
#define CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT \
  { .size = sizeof(choir_tokenizer_train_options), .vocab_size = 8192 }
CHOIR_API void choir_tokenizer_train_options_default(choir_tokenizer_train_options *options,
                                                     size_t size); /* the same, as a function */

/* Trains a SentencePiece model with byte fallback: every text round-trips exactly, white space and line ends included.
 * "bpe": byte-pair encoding (Sennrich et al. 2016); "unigram": a unigram language model (Kudo 2018); "char": one token
 * per character. CHOIR_ERROR_ARGUMENT: also a vocabulary too large or too small for the text; CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT, CHOIR_ERROR_INTERRUPTED. */
CHOIR_API int choir_tokenizer_train(const choir_tokenizer_train_options *options);

/* Loads a .model file, a tokenizer.json of byte-level BPE, or the tokenizer.model of a directory: a checkpoint, a run
 * (choir_checkpoint_find), or built data. CHOIR_ERROR_IO; CHOIR_ERROR_FORMAT: no tokenizer file, or a tokenizer that
 * normalizes text; CHOIR_ERROR_UNSUPPORTED names an unsupported field of a tokenizer.json. */
CHOIR_API int choir_tokenizer_load(const char *path, choir_tokenizer **tokenizer);
CHOIR_API void choir_tokenizer_free(choir_tokenizer *tokenizer);
CHOIR_API int choir_tokenizer_vocab_size(const choir_tokenizer *tokenizer);
CHOIR_API int choir_tokenizer_eos(const choir_tokenizer *tokenizer);       /* ends every document */
CHOIR_API uint64_t choir_tokenizer_hash(const choir_tokenizer *tokenizer); /* of the model file's bytes */
/* One token as readable text; owned by the tokenizer. NULL: out of range. */
CHOIR_API const char *choir_tokenizer_piece(const choir_tokenizer *tokenizer, int32_t id);
/* The content of the model file, as stored in checkpoints. */
CHOIR_API const void *choir_tokenizer_bytes(const choir_tokenizer *tokenizer, size_t *size);

/* Encodes UTF-8 text (length in bytes; may hold NUL). *ids is malloc'd, *count set. CHOIR_ERROR_FORMAT: not UTF-8, with
 * the offset. Thread-safe. */
CHOIR_API int choir_tokenizer_encode(const choir_tokenizer *tokenizer, const char *text, size_t length, int32_t **ids,
                                     size_t *count);
/* Decodes; *text is malloc'd and NUL-terminated. The result may not be valid UTF-8, for example if a model generated
 * the tokens. CHOIR_ERROR_ARGUMENT: an id out of range. */
CHOIR_API int choir_tokenizer_decode(const choir_tokenizer *tokenizer, const int32_t *ids, size_t count, char **text,
                                     size_t *length);

CHOIR_C_END
#endif
