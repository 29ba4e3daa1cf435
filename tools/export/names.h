/* Names of architectures and parameters in other programs: one table for export and import. */
#ifndef CH_EXPORT_NAMES_H
#define CH_EXPORT_NAMES_H

#include <stdint.h>

typedef enum { CH_EXPORT_HF, CH_EXPORT_GGUF } ch_export_format;

/* Stock architectures that compute models that choir has, too. */
typedef enum {
  CH_KIND_LLAMA,
  CH_KIND_MISTRAL,
  CH_KIND_QWEN3,
  CH_KIND_MIXTRAL,
  CH_KIND_OLMOE,
  CH_KIND_QWEN3_MOE,
  CH_KIND_GLM4_MOE,
  CH_KIND_EXAONE_MOE,
  CH_KINDS
} ch_kind;

/* Names in transformers ("model_type" and the class) and in llama.cpp, which has one name for some pairs of kinds. */
typedef struct ch_kind_name {
  const char *type, *architecture[2]; /* architecture: by ch_export_format */
  const char *experts, *shared;       /* config.json's fields with their numbers; NULL: the architecture has none */
} ch_kind_name;
extern const ch_kind_name ch_kind_names[CH_KINDS];

typedef enum { CH_ROLE_PLAIN, CH_ROLE_ROTATED, CH_ROLE_ROUTER, CH_ROLE_BIAS, CH_ROLE_EXPERTS } ch_export_role;

/* Names after "layers.L." in choir and after "model.layers.L." and "blk.L." in the formats; names with one tensor
 * per expert have "%d" for the expert. */
typedef struct ch_export_row {
  const char *from, *there[2]; /* there: by ch_export_format */
  ch_export_role role;
  int turned; /* the last two dimensions are transposed */
} ch_export_row;

/* The row of a parameter, "layers.1.attn.q.weight"; NULL: unknown. */
const ch_export_row *ch_export_find(const char *parameter);

/* The row of choir's matrix that is row r in llama.cpp's "llama", where rotated pairs of a head are adjacent. */
static inline int64_t ch_export_interleaved(int64_t r, int64_t head) {
  return r - r % head + r % 2 * (head / 2) + r % head / 2;
}

/* Nonzero: a bias is added to the scores of experts, which are sigmoids. */
static inline int ch_export_has_bias(ch_kind kind) { return kind >= CH_KIND_GLM4_MOE; }

/* Nonzero: rows of queries and keys are interleaved as in llama.cpp's "llama". */
int ch_export_is_interleaved(ch_kind kind, ch_export_format format);

/* Name of a row's tensor in layer `layer` (-1: not in a layer). `expert`: for formats with one tensor per expert. */
void ch_export_name(ch_kind kind, ch_export_format format, const ch_export_row *row, int layer, int expert,
                    char out[128]);

#endif
