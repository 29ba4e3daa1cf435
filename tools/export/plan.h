/* The plan of an export: the architecture that represents the model, and the tensors with the format's names. */
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
extern const choir_dtype ch_export_stored[]; /* [ch_export_dtype] type of the stored elements */

typedef enum {
  CH_TRANSFORM_NONE,
  CH_TRANSFORM_TRANSPOSE,  /* each block is transposed */
  CH_TRANSFORM_INTERLEAVE, /* rows of a head: rotated pairs become adjacent, as in llama.cpp's "llama" */
  CH_TRANSFORM_THRESHOLDS, /* thresholds become a bias on scores */
  CH_TRANSFORM_BIASES      /* the router state of bias_balanced becomes a bias on scores */
} ch_export_transform;

/* A tensor to write: `blocks` matrices [rows,columns]; the first ones are copied from `from`, the others are zeros. */
typedef struct ch_export_tensor {
  char name[128];
  int dims;
  int64_t shape[3]; /* slowest dimension first */
  ch_export_dtype dtype;
  ch_export_transform transform;
  const choir_tensor *from; /* NULL: zeros */
  int64_t first;            /* first element of the first block */
  int64_t blocks, source_blocks, rows, source_rows, columns;
  int head; /* width of a head, for interleaving */
  double factor;
} ch_export_tensor;

typedef struct ch_export_plan {
  choir_config config;
  ch_export_format format;
  ch_export_dtype dtype;
  ch_kind kind;
  int moe_layers, first_moe;
  int K, nulls;  /* experts per token; number of null experts */
  int normalize; /* gates of a token are normalized to sum 1 */
  int tied; /* the exported head is tied to the embedding; architectures that cannot express this get a separate head */
  int shared; /* shared experts of the exported model: one of zeros if the architecture requires one and the model has
                 none */
  const choir_tensors *weights;
  ch_imported imported; /* files kept from an imported model */
  ch_export_tensor *tensor;
  int count;
} ch_export_plan;

/* Chooses the architecture. CHOIR_ERROR_UNSUPPORTED names fields that no architecture can express, and the values
 * that one can. */
int ch_export_choose(ch_export_plan *plan);
const char *ch_export_architecture(const ch_export_plan *plan); /* as the format calls it */

/* CHOIR_ERROR_UNSUPPORTED names a field that plan->kind cannot express and that differs from its default. */
int ch_export_check_fields(const ch_export_plan *plan, const char *architecture);

/* The exported hidden width of dense layers, or of experts if the architecture has only one field. */
int ch_export_hidden(const ch_export_plan *plan);

/* Nonzero: thresholds give a token 0 to K experts, and null experts fill the remaining places. */
int ch_export_by_thresholds(const ch_export_plan *plan);

/* Lists the tensors of plan->weights. free(plan->tensor). CHOIR_ERROR_FORMAT, CHOIR_ERROR_UNSUPPORTED. */
int ch_export_list(ch_export_plan *plan);

/* ---- cut.c: the cost of a limit of K experts per token, and of rounded weights ---- */

/* Sets plan->K and plan->nulls. With expert choice and `model` not NULL, the options' K or a chosen one is evaluated
 * on held-out text. CHOIR_ERROR_ARGUMENT: a K that the router excludes, or a K to be chosen without a measurement. */
int ch_export_cut(ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                  choir_export_result *result);

/* Sets result->loss_written. Afterwards the model has the file's rounded weights. */
int ch_export_measure_written(const ch_export_plan *plan, choir_model *model, const choir_export_options *options,
                              choir_export_result *result);

/* ---- fill.c ---- */

/* Elements of the largest block. */
int64_t ch_export_largest(const ch_export_plan *plan);

/* Computes one block of a tensor as floats. CHOIR_ERROR_NUMERIC: not finite. */
int ch_export_fill(const ch_export_tensor *tensor, int64_t block, float *out);

/* Bytes of a row of `columns` elements. */
int64_t ch_export_row_bytes(ch_export_dtype dtype, int64_t columns);
void ch_export_round(ch_export_dtype dtype, const float *row, int64_t columns, void *out);

/* Element i of an array of type `stored`, at any alignment; CHOIR_U8 stands for Q8_0. */
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

/* Write the files of the format; `tokenizer` may be NULL for hf. `checkpoint` is the directory of the plan's model. */
int ch_export_hf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options,
                 const char *checkpoint);
int ch_export_gguf(const ch_export_plan *plan, const choir_tokenizer *tokenizer, const choir_export_options *options);

/* ch_tensors_write into several files of at most `max` bytes of tensors each, with an index. The error of fetching a
 * tensor is stored in `failed`. */
int ch_export_files(const char *path, const choir_tensor *tensor, int count, int64_t max, const char *const *metadata,
                    ch_tensor_fetch fetch, void *context, const int *failed);

/* Writes tokenizer.json and tokenizer_config.json to a folder. */
int ch_export_tokenizer(const choir_tokenizer *tokenizer, int length, const char *folder);

#endif
