/* The parameter table, used for allocation, initialization, optimizer, sharding, checkpoints and counts. */
#ifndef CH_MODEL_PARAM_H
#define CH_MODEL_PARAM_H

#include "base/memory.h"
#include "base/names.h"
#include "base/real.h"
#include "config/config.h"
#include "op/op.h"

/* Width of one head: given, or d/H. */
static inline int ch_config_d_head(const ch_model_config *c) { return c->d_head ? c->d_head : c->d_model / c->heads; }

static inline int ch_config_kv_heads(const ch_model_config *c) { return c->kv_heads ? c->kv_heads : c->heads; }
static inline int ch_config_has_bias(const ch_model_config *c) { return c->position == CH_RELATIVE; }
static inline int ch_config_bidirectional(const ch_model_config *c) { return c->attention == CH_BIDIRECTIONAL; }
static inline int ch_config_has_rope(const ch_model_config *c) { return c->position == CH_ROPE; }
/* Columns of a head that RoPE rotates. */
static inline int ch_config_rotated(const ch_model_config *c) { return (int)(c->rope_fraction * ch_config_d_head(c)); }

/* Hidden width of one expert: given, or that of the dense layers. */
static inline int ch_config_d_expert(const ch_model_config *c) { return c->d_expert ? c->d_expert : c->d_hidden; }

/* Nonzero where layer `layer` (0-based) is MoE: after the first dense_layers, layers moe_every-1, 2 moe_every-1, ...
 * The second function counts the MoE layers. */
static inline int ch_config_is_moe(const ch_model_config *c, int layer) {
  int behind = layer - c->dense_layers + 1;
  return c->moe_every > 0 && behind > 0 && behind % c->moe_every == 0;
}
static inline int ch_config_moe_layers(const ch_model_config *c) {
  return c->moe_every > 0 && c->layers > c->dense_layers ? (c->layers - c->dense_layers) / c->moe_every : 0;
}

/* The local part of a tensor, viewed as a matrix [rows,last dimension]: a range of columns of a range of rows,
 * row-major. */
typedef struct ch_part {
  int64_t row, rows, column, columns;
  int64_t width; /* columns of the whole */
} ch_part;

static inline int64_t ch_part_count(const ch_part *p) { return p->rows * p->columns; }

/* For the local element `at`: sets *whole to its index in the whole tensor, and returns the number of elements, at most
 * `count`, that are contiguous in both. */
int64_t ch_part_run(const ch_part *part, int64_t at, int64_t count, int64_t *whole);

/* Copies the local elements, `size` bytes each, to their places in the whole tensor. */
void ch_part_place(const ch_part *part, const void *elements, void *whole, int64_t size);

/* A rank's part of a tensor [experts,rows,width]: the rank's experts; if the width is the experts' hidden width
 * (`hidden`), only the columns of the rank's hidden shard. */
ch_part ch_part_of_experts(const ch_grid *grid, int rank, int64_t experts, int64_t rows, int64_t width, int hidden);

typedef enum { CH_INIT_NORMAL, CH_INIT_ONE, CH_INIT_ZERO } ch_init_kind;

typedef struct ch_param {
  char name[64]; /* as in the checkpoint */
  int layer;     /* -1: outside the layers */
  int dims;      /* 1, 2 or 3 */
  int64_t shape[3];
  int64_t whole; /* product of shape */
  ch_part part;  /* the process's part of the tensor: the whole tensor, or the local experts */
  int64_t count; /* elements of the part */
  int owner;     /* rank of the replica that owns a sharded dense matrix; -1: not sharded */
  int remote; /* owned by another rank: resident only while its layer runs, in a buffer shared by every second layer */
  ch_init_kind init;
  double init_std;    /* of CH_INIT_NORMAL: 1/sqrt(fan_in), 1 for the embedding, 0.1 for rel_bias */
  int expert;         /* first dimension counts experts: factored and sharded per expert */
  int matrix;         /* input of matrix products: gets a bf16 copy in bf16 compute */
  int inputs_first;   /* a matrix is [inputs,outputs], not [outputs,inputs] */
  int product;        /* factor of a matrix product: a token costs two operations per element it uses, and backward sets
                         its gradient by a product */
  real CH_DEV *w, *g; /* weights and gradients; w is NULL for remote matrices with w16, and for matrices with w8 except
                         the embedding */
  ch_bf16 CH_DEV *w16; /* or NULL */
  ch_q8 CH_DEV *w8;    /* the weights in 8 bits, matrix after matrix, in host memory; NULL: none */
} ch_param;

/* Trained parameters come first, then the state of routers (thresholds, centroids), which is saved and loaded like
 * parameters, but has no gradient and is not counted. */
typedef struct ch_params {
  int count;   /* trained parameters */
  int buffers; /* router states after them */
  ch_param *p; /* [count + buffers], malloc'd */
  ch_names names;
} ch_params;

/* Builds the table of a checked config, names and shapes only, in the order of the model: embed, layers 0..,
 * final_norm, and the head where it has a weight of its own. CHOIR_ERROR_ARGUMENT: more parameters than can be counted;
 * vocab_size 0 gives an empty embedding. */
int ch_params_build(const ch_model_config *config, ch_params *params);
void ch_params_free(ch_params *params);

/* Reduces every expert tensor to this rank's part; call it before memory is allocated. CHOIR_ERROR_ARGUMENT: the grid's
 * hidden shards do not divide the experts' hidden width evenly. */
int ch_params_share(ch_params *params, const ch_grid *grid);

/* The matrices that have bf16 copies for products; Q8_0: all matrices in 8 bits, for inference only. */
typedef enum { CH_COPIES_NONE, CH_COPIES_ALL, CH_COPIES_DENSE, CH_COPIES_Q8_0 } ch_copies;

/* Allocate weights with their copies, and gradients, from an arena (which may be counting). With `share` all layers use
 * the same memory for gradients, for a caller that finishes with one layer before the next begins; without it remote
 * matrices have no gradients. */
void ch_params_alloc_weights(ch_params *params, ch_arena *arena, ch_copies copies);
void ch_params_alloc_gradients(ch_params *params, ch_arena *arena, int share);

/* Quantizes values [count] in host memory to w8. Returns nonzero, without a change, if element *at has no 8-bit
 * representation. The second function dequantizes w8. */
int ch_param_pack(const ch_param *param, const real *values, int threads, int64_t *at);
void ch_param_unpack(const ch_param *param, int threads, real *values);

/* Random initial values, computed on the host: element i of tensor number t depends only on (seed, t, i). `memory` is
 * that of the weights; CHOIR_ERROR_MEMORY: no host memory for a device's values. */
int ch_params_init(ch_params *params, const ch_memory *memory, uint64_t seed, int threads);

/* Whether a parameter can be sharded: a dense matrix of a layer. */
static inline int ch_param_is_shardable(const ch_param *p) { return p->layer >= 0 && p->matrix && !p->expert; }

const ch_param *ch_params_find(const ch_params *params, const char *name); /* NULL: none */
/* Index of the first parameter of a layer; a layer's parameters are contiguous. Layer -1 (outside the layers): 0; its
 * parameters are the first and the last ones. */
int ch_params_first(const ch_params *params, int layer);
int64_t ch_params_total(const ch_params *params); /* elements of all trained parameters, on all ranks */

#endif
