/* The plan of an export: which architecture stands for the model, and its tensors under the names of the format. */
#ifndef CH_EXPORT_PLAN_H
#define CH_EXPORT_PLAN_H

#include "base/q8.h"
#include "base/real.h"
#include "choir/model.h"
#include "choir/tokenizer.h"
#include "export/export.h"
#include "export/imported.h"
#include "export/names.h"
#include "file/tensors.h"
#include "model/config.h"

typedef enum { CH_EXPORT_F32, CH_EXPORT_BF16, CH_EXPORT_Q8_0 } ch_export_dtype;
extern const char *const ch_export_formats[], *const ch_export_dtypes[];
extern const choir_dtype ch_export_stored[]; /* [ch_export_dtype] what its bytes are in a file */

typedef enum {
  CH_TRANSFORM_NONE,
  CH_TRANSFORM_TRANSPOSE,  /* every block */
  CH_TRANSFORM_INTERLEAVE, /* rows of a head: rotated pairs side by side, as llama.cpp's "llama" has them */
  CH_TRANSFORM_THRESHOLDS, /* cut-off scores to what is added to scores */
  CH_TRANSFORM_BIASES      /* the same of prices */
} ch_export_transform;

/* A tensor to write: `blocks` matrices [rows,columns], of which the first ones are copied and the others are zeros. */
typedef struct ch_export_tensor {
  char name[128];
  int dims;
  int64_t shape[3]; /* the slowest dimension first */
  ch_export_dtype dtype;
  ch_export_transform transform;
  const choir_tensor *from; /* NULL: zeros */
  int64_t first;            /* element of it that begins the first block */
  int64_t blocks, source_blocks, rows, source_rows, columns;
  int head; /* width of a head, to interleave */
  double factor;
} ch_export_tensor;

typedef struct ch_export_plan {
  choir_config config;
  ch_export_format format;
  ch_export_dtype dtype;
  ch_kind kind;
  int moe_layers, first_moe;
  int K, nulls;  /* experts that a token has; null experts */
  int normalize; /* gates of a token are divided by their sum */
  int tied;      /* the head is the embedding there; what some stock programs do not know gets a head of its own */
  int shared;    /* shared experts of the exported model: one of zeros where choir's has none and it must */
  const choir_tensors *weights;
  ch_imported imported; /* what the checkpoint kept of another program's model */
  ch_export_tensor *tensor;
  int count;
} ch_export_plan;

/* Chooses the architecture. CHOIR_ERROR_UNSUPPORTED names the fields without counterpart and values with one. */
int ch_export_choose(ch_export_plan *plan);
const char *ch_export_architecture(const ch_export_plan *plan); /* as the format calls it */

/* CHOIR_ERROR_UNSUPPORTED names a field that plan->kind cannot express and that differs from its default. */
int ch_export_check_fields(const ch_export_plan *plan, const char *architecture);

/* The hidden width of dense layers there, or of experts where an architecture has no other field for that. */
int ch_export_hidden(const ch_export_plan *plan);

/* Nonzero: tokens take experts by thresholds, 0 to K, and null experts stand for those that they lack. */
int ch_export_by_thresholds(const ch_export_plan *plan);

/* Lists the tensors of plan->weights. free(plan->tensor). CHOIR_ERROR_FORMAT, CHOIR_ERROR_UNSUPPORTED. */
int ch_export_list(ch_export_plan *plan);

/* ---- cut.c: what it costs to have at most K experts a token, and weights of fewer bits ---- */

/* plan->K and plan->nulls. Where experts choose and `model` is not NULL the options' K, or one chosen, is measured on
 * held-out text. CHOIR_ERROR_ARGUMENT: a K that the router rules out, or none where nothing is measured. */
int ch_export_cut(ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                  choir_export_result *result);

/* result->loss_written. The model's weights are then those of the file. */
int ch_export_measure_written(const ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                              choir_export_result *result);

/* ---- fill.c ---- */

/* Elements of the largest block. */
int64_t ch_export_largest(const ch_export_plan *plan);

/* One block of a tensor as floats. CHOIR_ERROR_NUMERIC: not finite. */
int ch_export_fill(const ch_export_tensor *tensor, int64_t block, float *out);

/* Rows of so many elements as bytes of a dtype. */
int64_t ch_export_row_bytes(ch_export_dtype dtype, int64_t columns);
void ch_export_round(ch_export_dtype dtype, const float *row, int64_t columns, void *out);

/* Value i of an array of type `stored` in file format, at any byte; CHOIR_U8 stands for Q8_0. */
static inline float ch_export_value(choir_dtype stored, const void *in, int64_t i) {
  const char *block = (const char *)in + i / CH_Q8_VALUES * CH_Q8_BYTES;
  uint16_t half;
  float single;
  double wide;
  if (stored == CHOIR_F32) return memcpy(&single, (const char *)in + i * 4, sizeof single), single;
  if (stored == CHOIR_F64) return memcpy(&wide, (const char *)in + i * 8, sizeof wide), (float)wide;
  if (stored != CHOIR_U8) block = (const char *)in + i * 2;
  memcpy(&half, block, sizeof half);
  if (stored == CHOIR_BF16) return ch_bf16_value(half);
  if (stored == CHOIR_F16) return ch_half_value(half);
  return ch_half_value(half) * (float)(int8_t)block[2 + i % CH_Q8_VALUES];
}

/* Writes all; `tokenizer` may be NULL for hf. `checkpoint` is where the plan's model comes from. */
int ch_export_hf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options,
                 const char *checkpoint);
int ch_export_gguf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options);

/* ch_tensors_write into as many files as tensors of at most `most` bytes take, with their index. What fails while a
 * tensor is fetched is left at `failed`. */
int ch_export_files(const char *path, const choir_tensor *tensor, int count, int64_t max, const char *const *metadata,
                    ch_tensor_fetch fetch, void *context, const int *failed);

/* tokenizer.json and tokenizer_config.json into a folder. */
int ch_export_tokenizer(const choir_tokenizer *tokenizer, int length, const char *folder);

#endif
