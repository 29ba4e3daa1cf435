/* Computes the values of tensors to write, block by block, rounds them, and writes them to files. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "export/plan.h"
#include "file/tensors_set.h"

enum { BLOCK = CH_Q8_VALUES };

int64_t ch_export_largest(const ch_export_plan *plan) {
  int64_t max = 1;
  for (int i = 0; i < plan->count; i++) {
    int64_t count = plan->tensor[i].rows * plan->tensor[i].columns;
    if (count > max) max = count;
  }
  return max;
}

/* Computes the bias that stock code adds to a score before top-K. For a threshold beta the test is S >= beta:
 * subtracting the float just below beta leaves such a score positive, above the null experts, whose score is sigmoid(0)
 * = 1/2. */
static void add_bias(const ch_export_tensor *t, const float *from, float *out) {
  for (int64_t i = 0; i < t->columns; i++) out[i] = t->transform == CH_TRANSFORM_THRESHOLDS ? -0.5f : 0;
  if (!t->source_blocks) return;
  for (int64_t i = 0; i < t->from->shape[0]; i++)
    out[i] = t->transform == CH_TRANSFORM_THRESHOLDS ? -nextafterf(from[i], -INFINITY) : -from[i];
}

/* Copies row r from the source, [own_rows,columns] or its transpose. */
static void copy_row(const ch_export_tensor *t, const float *from, int64_t r, float *out) {
  int64_t source = t->transform == CH_TRANSFORM_INTERLEAVE ? ch_export_interleaved(r, t->head) : r;
  for (int64_t i = 0; i < t->columns; i++)
    out[i] = t->transform == CH_TRANSFORM_TRANSPOSE ? from[i * t->source_rows + r] : from[source * t->columns + i];
  if (t->factor != 1)
    for (int64_t i = 0; i < t->columns; i++) out[i] = (float)(t->factor * out[i]);
}

/* The largest value of a dtype: Q8_0's scale has half precision. */
static float largest_of(ch_export_dtype dtype) {
  return dtype == CH_EXPORT_Q8_0 ? CH_Q8_MAX : dtype == CH_EXPORT_BF16 ? 0x1.FEp127f : INFINITY;
}

static int check_values(const ch_export_tensor *t, const float *value, int64_t count) {
  const float max = largest_of(t->dtype);
  for (int64_t i = 0; i < count; i++) {
    if (!isfinite(value[i]))
      return ch_error(CHOIR_ERROR_NUMERIC, "tensor '%s' has a value that is not finite", t->name);
    if (fabsf(value[i]) > max)
      return ch_error(CHOIR_ERROR_NUMERIC,
                      "tensor '%s' has the value %g, and the largest of dtype %s is %g: export f32", t->name,
                      (double)value[i], ch_export_dtypes[t->dtype], (double)max);
  }
  return CHOIR_OK;
}

int ch_export_fill(const ch_export_tensor *t, int64_t block, float *out) {
  const float *from = t->from ? (const float *)t->from->data + t->first + block * t->source_rows * t->columns : NULL;
  int64_t own = block < t->source_blocks ? t->source_rows : 0, count = t->rows * t->columns;
  if (t->transform == CH_TRANSFORM_THRESHOLDS || t->transform == CH_TRANSFORM_BIASES) {
    add_bias(t, from, out);
  } else {
    for (int64_t r = 0; r < own; r++) copy_row(t, from, r, out + r * t->columns);
    memset(out + own * t->columns, 0, (size_t)(count - own * t->columns) * sizeof *out);
  }
  return check_values(t, out, count);
}

int64_t ch_export_row_bytes(ch_export_dtype dtype, int64_t columns) {
  if (dtype == CH_EXPORT_Q8_0) return columns / BLOCK * CH_Q8_BYTES;
  return columns * (dtype == CH_EXPORT_BF16 ? 2 : 4);
}

static void round_q8_0(const float *x, int64_t columns, char *out) {
  for (int64_t begin = 0; begin < columns; begin += BLOCK, out += CH_Q8_BYTES) {
    uint16_t scale = ch_q8_round(x + begin, (int8_t *)out + sizeof scale);
    memcpy(out, &scale, sizeof scale);
  }
}

void ch_export_round(ch_export_dtype dtype, const float *row, int64_t columns, void *out) {
  if (dtype == CH_EXPORT_Q8_0) round_q8_0(row, columns, out);
  if (dtype == CH_EXPORT_F32) memcpy(out, row, (size_t)columns * sizeof *row);
  if (dtype == CH_EXPORT_BF16)
    for (int64_t i = 0; i < columns; i++) ((ch_bf16 *)out)[i] = ch_bf16_round(row[i]);
}

int ch_export_files(const char *path, const choir_tensor *tensor, int count, int64_t max, const char *const *metadata,
                    ch_tensor_fetch fetch, void *context, const int *failed) {
  int *first, code = CHOIR_OK;
  CH_TRY(CH_ALLOC(&first, count + 1, "a list of tensors"));
  int files = ch_tensors_cut(tensor, count, max, first);
  for (int f = 0; f < files && !code; f++) {
    char name[PATH_MAX];
    ch_tensors_file_path(path, f, files, name);
    code = ch_tensors_write(name, tensor + first[f], first[f + 1] - first[f], metadata, fetch, context);
    if (*failed) code = *failed;
  }
  if (!code && files > 1) code = ch_tensors_index_write(path, tensor, first, files);
  free(first);
  return code;
}
