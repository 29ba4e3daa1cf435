/* The names of architectures and of a model's parameters elsewhere: one table for both ways. */
#ifndef CH_EXPORT_NAMES_H
#define CH_EXPORT_NAMES_H

#include <stdint.h>

typedef enum { CH_EXPORT_HF, CH_EXPORT_GGUF } ch_export_format;

/* Stock architectures that compute what choir can. */
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

/* As transformers has it ("model_type" and the class), and llama.cpp, where two of ours may be one. */
typedef struct ch_kind_name {
  const char *type, *architecture[2]; /* architecture: [ch_export_format] */
  const char *experts, *shared;       /* what config.json calls their numbers; NULL: there are none */
} ch_kind_name;
extern const ch_kind_name ch_kind_names[CH_KINDS];

typedef enum { CH_ROLE_PLAIN, CH_ROLE_ROTATED, CH_ROLE_ROUTER, CH_ROLE_BIAS, CH_ROLE_EXPERTS } ch_export_role;

/* Names behind "layers.L." here, "model.layers.L." and "blk.L." there; those of experts one by one have "%d" for the
 * number. */
typedef struct ch_export_row {
  const char *from, *there[2]; /* there: [ch_export_format] */
  ch_export_role role;
  int turned; /* the last two dimensions change places */
} ch_export_row;

/* The row of a parameter, "layers.1.attn.q.weight"; NULL: unknown. */
const ch_export_row *ch_export_find(const char *parameter);

/* The row of ours that is row r of a matrix in llama.cpp's "llama": a head's rotated pairs stand side by side. */
static inline int64_t ch_export_interleaved(int64_t r, int64_t head) {
  return r - r % head + r % 2 * (head / 2) + r % head / 2;
}

/* Nonzero: something is added to the scores of experts, which are sigmoids then. */
static inline int ch_export_has_bias(ch_kind kind) { return kind >= CH_KIND_GLM4_MOE; }

/* Nonzero: rows of queries and keys stand there as llama.cpp's "llama" has them. */
int ch_export_is_interleaved(ch_kind kind, ch_export_format format);

/* Name of a row's tensor in layer `layer` (-1: not in a layer). `expert`: for formats with one tensor per expert. */
void ch_export_name(ch_kind kind, ch_export_format format, const ch_export_row *row, int layer, int expert,
                    char out[128]);

#endif
