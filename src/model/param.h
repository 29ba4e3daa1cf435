/* One parameter table: drives allocation, initialisation, optimizer, sharding, checkpoint and counts. */
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
/* Columns of a head that rope turns. */
static inline int ch_config_rotated(const ch_model_config *c) { return (int)(c->rope_fraction * ch_config_d_head(c)); }

/* Hidden width of one expert: given, or that of the dense layers. */
static inline int ch_config_d_expert(const ch_model_config *c) { return c->d_expert ? c->d_expert : c->d_hidden; }

/* Nonzero where layer `layer` (0-based) is MoE: behind the first dense_layers, layers moe_every-1, 2 moe_every-1, ...
 * And how many are. */
static inline int ch_config_is_moe(const ch_model_config *c, int layer) {
  int behind = layer - c->dense_layers + 1;
  return c->moe_every > 0 && behind > 0 && behind % c->moe_every == 0;
}
static inline int ch_config_moe_layers(const ch_model_config *c) {
  return c->moe_every > 0 && c->layers > c->dense_layers ? (c->layers - c->dense_layers) / c->moe_every : 0;
}

/* The part of a tensor that a process has, as a matrix of its last dimension: these columns of these rows, one row
 * behind the other. */
typedef struct ch_part {
  int64_t row, rows, column, columns;
  int64_t width; /* columns of the whole */
} ch_part;

static inline int64_t ch_part_count(const ch_part *p) { return p->rows * p->columns; }

/* Elements from `at` on of those that a process has: where the first stands in the whole tensor, and how many of at
 * most `count` stand there in a row. */
int64_t ch_part_run(const ch_part *part, int64_t at, int64_t count, int64_t *whole);

/* Puts them, `size` bytes each, in their places in the whole tensor. */
void ch_part_place(const ch_part *part, const void *elements, void *whole, int64_t size);

/* A rank's part of a tensor of experts, each of `rows` rows: its own experts, and where a row has their hidden width
 * (`hidden`) its shard's columns. */
ch_part ch_part_of_experts(const ch_grid *grid, int rank, int64_t experts, int64_t rows, int64_t width, int hidden);

typedef enum { CH_INIT_NORMAL, CH_INIT_ONE, CH_INIT_ZERO } ch_init_kind;

typedef struct ch_param {
  char name[64]; /* as in the checkpoint */
  int layer;     /* -1: outside the layers */
  int dims;      /* 1, 2 or 3 */
  int64_t shape[3];
  int64_t whole; /* product of shape */
  ch_part part;  /* the process's part of the tensor: everything, or its own experts */
  int64_t count; /* elements of the part */
  int owner;     /* rank of the replica that owns a sharded dense matrix; -1: not sharded */
  int remote; /* owned by another rank: resident only while its layer runs, in a buffer shared by every second layer */
  ch_init_kind init;
  double init_std;  /* of CH_INIT_NORMAL: 1/sqrt(fan_in), 1 for the embedding, 0.1 for rel_bias */
  int expert;       /* first dimension counts experts: factored and sharded per expert */
  int matrix;       /* input of matrix products: gets a bf16 copy in bf16 compute */
  int inputs_first; /* a matrix is [inputs,outputs], not [outputs,inputs] */
  int product;      /* factor of a matrix product: a token costs two operations per element it uses, and backward sets
                       its gradient by a product */
  real CH_DEV *w,
      *g; /* weights and gradients; remote matrices with w16 have no w, nor those with w8 that are no table */
  ch_bf16 CH_DEV *w16; /* or NULL */
  ch_q8 CH_DEV *w8;    /* in 8 bits, matrix after matrix, or NULL; in the host's memory */
} ch_param;

/* Trained parameters stand first; behind them the state that routers keep by themselves (thresholds, centroids), which
 * is saved and loaded like the rest but has no gradient and no part in the counts. */
typedef struct ch_params {
  int count;   /* trained by gradients */
  int buffers; /* and these behind them */
  ch_param *p; /* [count + buffers], malloc'd */
  ch_names names;
} ch_params;

/* Builds the table of a checked config, names and shapes only, in the order of the model: embed, layers 0..,
 * final_norm, and the head where it has a weight of its own. CHOIR_ERROR_ARGUMENT: more parameters than can be counted;
 * vocab_size 0 gives an empty embedding. */
int ch_params_build(const ch_model_config *config, ch_params *params);
void ch_params_free(ch_params *params);

/* Reduces every expert tensor to this rank's part; to be called before memory is allocated. CHOIR_ERROR_ARGUMENT: the
 * grid's hidden shards do not divide the experts' hidden width evenly. */
int ch_params_share(ch_params *params, const ch_grid *grid);

/* Which matrices have rounded copies for bf16 products; or all are in 8 bits, and for inference only. */
typedef enum { CH_COPIES_NONE, CH_COPIES_ALL, CH_COPIES_DENSE, CH_COPIES_Q8_0 } ch_copies;

/* Allocate weights with their copies, and gradients, from an arena (which may be counting). With `share` all layers use
 * the same memory for gradients, for a caller that finishes with one layer before the next begins; without it remote
 * matrices have no gradients. */
void ch_params_alloc_weights(ch_params *params, ch_arena *arena, ch_copies copies);
void ch_params_alloc_gradients(ch_params *params, ch_arena *arena, int share);

/* Fills w8 from the weight's values [count], which are in the host's memory. Returns 0, or nonzero, with w8 as it was,
 * where 8 bits cannot hold element *at. And the values of w8. */
int ch_param_pack(const ch_param *param, const real *values, int threads, int64_t *at);
void ch_param_unpack(const ch_param *param, int threads, real *values);

/* Initial values from a seed, drawn on the host: element i of tensor number t is a function of (seed, t, i) alone.
 * `memory` is that of the weights; CHOIR_ERROR_MEMORY where it is not the host's and there is none to draw in. */
int ch_params_init(ch_params *params, const ch_memory *memory, uint64_t seed, int threads);

/* Whether a parameter can be sharded: a dense matrix of a layer. */
static inline int ch_param_is_shardable(const ch_param *p) { return p->layer >= 0 && p->matrix && !p->expert; }

const ch_param *ch_params_find(const ch_params *params, const char *name); /* NULL: none */
/* The first row of a layer; its rows stand one behind the other. 0 for -1, whose rows are the first and the last. */
int ch_params_first(const ch_params *params, int layer);
int64_t ch_params_total(const ch_params *params); /* elements of those trained by gradients, of all ranks */

#endif
