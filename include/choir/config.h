/* Every hyperparameter of a model and its training, in one handle and one JSON file.
 *
 *   choir_config *c;
 *   if (choir_config_load("configs/nano.json", &c)) puts(choir_error_message());
 *   if (choir_config_set(c, "router.capacity_factor", "1")) puts(choir_error_message());
 *
 * Unknown keys, wrong types and impossible sizes are errors that name the file, key and value. */
#ifndef CHOIR_CONFIG_H
#define CHOIR_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

enum { CHOIR_NAME_BYTES = 32 };

/* The config of a model, its router, and its training. Fields have dotted names, as in the JSON file; "model." and
 * "train." may be omitted if the rest is unambiguous. docs/formats.md lists them. */
typedef struct choir_config choir_config;

/* The defaults of every field: design values for optimizer, norms and buckets, 0 for sizes that must be given.
 * CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_config_create(choir_config **config);

/* Reads and checks a JSON file, or the built-in config of that name if there is no such file. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT (message: file, key, value, nearest known key), CHOIR_ERROR_UNSUPPORTED: a router that this
 * process does not know. */
CHOIR_API int choir_config_load(const char *path, choir_config **config);
/* The names of the built-in configs (configs/), NULL-terminated. */
CHOIR_API const char *const *choir_config_names(void);

/* An independent copy. */
CHOIR_API int choir_config_copy(const choir_config *from, choir_config **config);
CHOIR_API void choir_config_free(choir_config *config); /* NULL: does nothing */

/* Checks the config, then writes all fields, including those that have their default value. CHOIR_ERROR_ARGUMENT,
 * CHOIR_ERROR_IO. */
CHOIR_API int choir_config_save(const choir_config *config, const char *path);

/* Sets one field, as `--set router.capacity_factor=1`. Setting the router's name resets all router options to that
 * router's defaults. CHOIR_ERROR_ARGUMENT: unknown or ambiguous key, value out of range. Combinations of values are
 * checked by choir_config_check. */
CHOIR_API int choir_config_set(choir_config *config, const char *key, const char *value);

/* Sets several fields as one operation, as the --set options of one command: a router's name is set before its options,
 * so that the order of the keys has no effect. If a key occurs twice, the last value is used. On an error no field is
 * changed. CHOIR_ERROR_ARGUMENT as choir_config_set, or keys[i] or values[i] is NULL. */
CHOIR_API int choir_config_update(choir_config *config, const char *const *keys, const char *const *values, int count);

/* Writes the value of a field in the format of choir_config_set, NUL-terminated, to value [size]; CHOIR_VALUE_BYTES are
 * enough for every field. CHOIR_ERROR_ARGUMENT: unknown or ambiguous key, or `size` is too small. */
enum { CHOIR_VALUE_BYTES = 256, CHOIR_KEY_BYTES = 64 };
CHOIR_API int choir_config_get(const choir_config *config, const char *key, char *value, size_t size);

/* Returns the value of a field as a number; flags are 0 or 1. NaN, with a message: an unknown or ambiguous key, or a
 * field whose value is a word or a text. */
CHOIR_API double choir_config_number(const choir_config *config, const char *key);

/* The kind of a field's value. */
typedef enum {
  CHOIR_FIELD_INTEGER,
  CHOIR_FIELD_NUMBER,
  CHOIR_FIELD_STEPS, /* number of steps, or, if below 1, a fraction of train.steps */
  CHOIR_FIELD_FLAG,  /* true or false */
  CHOIR_FIELD_WORD,  /* one of `words` */
  CHOIR_FIELD_TEXT   /* of at most `high` bytes */
} choir_field_kind;
typedef struct choir_field {
  char key[CHOIR_KEY_BYTES]; /* dotted: "model.router.cap" */
  choir_field_kind kind;
  double low, high; /* range of numbers, both ends included; `above` excludes low */
  int above;
  const char *const *words;      /* NULL-terminated; NULL: not a CHOIR_FIELD_WORD */
  const char *help;              /* starts in lower case, without a full stop */
  char value[CHOIR_VALUE_BYTES]; /* the default; for a router's option, the router's own default */
} choir_field;

/* Describes a field by its key. CHOIR_ERROR_ARGUMENT: unknown or ambiguous. */
CHOIR_API int choir_config_describe(const char *key, choir_field *field);

/* All fields by number, 0 <= index < count. CHOIR_ERROR_ARGUMENT: no such field. */
CHOIR_API int choir_config_field_count(void);
CHOIR_API int choir_config_field_at(int index, choir_field *field);

/* Checks all values and their combinations. CHOIR_ERROR_ARGUMENT names an invalid value (d not divisible by H, k of 0,
 * e > n, ...), or an option that the chosen router or optimizer does not accept. vocab_size 0 is valid: training sets
 * it from the data. */
CHOIR_API int choir_config_check(const choir_config *config);

/* The mask token: the last of the vocabulary, which the tokenizer never produces. -1: the objective has no masks, or
 * vocab_size is not known yet. */
CHOIR_API int choir_config_mask_token(const choir_config *config);

/* Memory of a training process in bytes, by purpose. Only `process` is an estimate; the rest is counted by a dry run of
 * the step. */
typedef struct choir_memory {
  int64_t weights, gradients, optimizer, activations;
  int64_t scratch; /* temporary memory of the running op */
  int64_t process; /* the program, its libraries, and their allocations */
  int64_t data;    /* mapped token files, whose pages the system can drop; 0 if the data is not known */
  int64_t total;
  int64_t reserved[8];
} choir_memory;

/* The costs of a config. FLOPs count multiplications and additions of matrix products, attention over unmasked
 * positions, and logits; training costs three times the forward pass. active_parameters: mean number of parameters per
 * token (c expert FFNs). Bytes are counted by a dry run of the step itself. Errors as choir_config_check. */
typedef struct choir_config_costs {
  int64_t parameters, active_parameters, embedding_parameters, expert_parameters;
  double forward_flops_per_token, train_flops_per_token;
  choir_memory train_memory; /* per process, without data */
  int64_t train_bytes;       /* = train_memory.total */
  int64_t serve_bytes;       /* fp32 weights and one sequence's KV cache */
  int64_t serve_q8_0_bytes;  /* serve_bytes with compute "q8_0" */
  int64_t reserved[7];
} choir_config_costs;
CHOIR_API int choir_config_get_costs(const choir_config *config, choir_config_costs *costs);

CHOIR_C_END
#endif
