#include "model/param.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "comm/collective.h"
#include "moe/router.h"

/* ---- the table ---- */

static const int64_t max_parameters = INT64_C(1) << 56; /* small multiples of their bytes fit in 64 bits */

/* Kinds of parameters; each kind except the first has the properties of the kinds before it. */
typedef enum {
  KEPT,     /* router state: no gradient */
  PLAIN,    /* norms and biases */
  PRODUCT,  /* router matrices, multiplied in fp32 always */
  MATRIX,   /* matrices multiplied in the compute type */
  EXPERT,   /* one matrix per expert, [outputs,inputs] */
  EXPERT_IN /* one matrix per expert, [inputs,outputs] */
} role;

typedef struct row {
  const char *name; /* after "layers.L." in a layer */
  int dims;
  int64_t shape[3];
  double init_std; /* 0: all ones, or zeros if KEPT */
  role role;
  int there; /* present in this config */
} row;

/* Adds a row to the table. Rows beyond `max` are only counted: the first walk sizes the table, the second fills it. */
static void add_row(ch_params *params, int max, int layer, const row *r) {
  if (!r->there || params->count++ >= max) return;
  ch_param *p = &params->p[params->count - 1];
  *p = (ch_param){.layer = layer,
                  .dims = r->dims,
                  .whole = 1,
                  .init = r->init_std > 0   ? CH_INIT_NORMAL
                          : r->role == KEPT ? CH_INIT_ZERO
                                            : CH_INIT_ONE,
                  .init_std = r->init_std,
                  .owner = -1,
                  .expert = r->role >= EXPERT,
                  .inputs_first = r->role == EXPERT_IN,
                  .matrix = r->role >= MATRIX,
                  .product = r->role >= PRODUCT};
  if (layer < 0)
    snprintf(p->name, sizeof p->name, "%s", r->name);
  else
    snprintf(p->name, sizeof p->name, "layers.%d.%s", layer, r->name);
  for (int i = 0; i < r->dims; i++) {
    p->shape[i] = r->shape[i];
    p->whole *= r->shape[i]; /* cannot overflow: the config's limits allow at most 2^16 * 2^17 * 2^20 */
  }
  int64_t width = r->shape[r->dims - 1];
  p->part = (ch_part){.rows = p->whole / width, .columns = width, .width = width};
  p->count = p->whole;
}

#define ADD(params, max, layer, rows) \
  for (size_t i = 0; i < sizeof(rows) / sizeof *(rows); i++) add_row(params, max, layer, &(rows)[i])

/* Every matrix is initialized from N(0, 1/fan_in), where fan_in is its input width. */
static void add_attention(ch_params *params, int max, int layer, const ch_model_config *c) {
  int64_t d = c->d_model, d_head = ch_config_d_head(c), inner = c->heads * d_head,
          shared = ch_config_kv_heads(c) * d_head;
  double in = 1 / sqrt((double)d), out = 1 / sqrt((double)inner);
  const row rows[] = {{"attn_norm.weight", 1, {d}, 0, PLAIN, 1},
                      {"attn.q.weight", 2, {inner, d}, in, MATRIX, 1},
                      {"attn.k.weight", 2, {shared, d}, in, MATRIX, 1},
                      {"attn.v.weight", 2, {shared, d}, in, MATRIX, 1},
                      {"attn.o.weight", 2, {d, inner}, out, MATRIX, 1},
                      {"attn.q_norm.weight", 1, {c->qk_norm_whole ? inner : d_head}, 0, PLAIN, c->qk_norm},
                      {"attn.k_norm.weight", 1, {c->qk_norm_whole ? shared : d_head}, 0, PLAIN, c->qk_norm},
                      {"attn.rel_bias", 2, {c->rel_buckets, c->heads}, 0.1, PLAIN, ch_config_has_bias(c)},
                      {"ffn_norm.weight", 1, {d}, 0, PLAIN, 1}};
  ADD(params, max, layer, rows);
}

/* A dense layer's matrices, or those of shared experts: hidden width h. Without a gate there is only the up
 * projection. */
static void add_ffn(ch_params *params, int max, int layer, const ch_model_config *c, const char *prefix, int64_t h,
                    int activation) {
  int64_t d = c->d_model;
  char gate[32], up[32], down[32];
  snprintf(gate, sizeof gate, "%s.gate.weight", prefix);
  snprintf(up, sizeof up, "%s.up.weight", prefix);
  snprintf(down, sizeof down, "%s.down.weight", prefix);
  const row rows[] = {{gate, 2, {h, d}, 1 / sqrt((double)d), MATRIX, ch_gated(activation)},
                      {up, 2, {h, d}, 1 / sqrt((double)d), MATRIX, 1},
                      {down, 2, {d, h}, 1 / sqrt((double)h), MATRIX, 1}};
  ADD(params, max, layer, rows);
}

/* A router weight that is not trained by gradients is router state (KEPT). */
static void add_moe(ch_params *params, int max, int layer, const ch_model_config *c, const ch_router *router) {
  int64_t d = c->d_model, h = ch_config_d_expert(c), e = c->experts;
  int trained = ch_router_learned(router) && !ch_router_has_centroids(router);
  int gated = ch_gated((ch_activation)c->expert_activation);
  const row rows[] = {{"moe.router.weight", 2, {d, e}, 1 / sqrt((double)d), PRODUCT, trained},
                      {"moe.experts.w1", 3, {e, d, h}, 1 / sqrt((double)d), EXPERT_IN, 1},
                      {"moe.experts.w2", 3, {e, d, h}, 1 / sqrt((double)h), EXPERT, 1},         /* maps h to d */
                      {"moe.experts.w3", 3, {e, d, h}, 1 / sqrt((double)d), EXPERT_IN, gated}}; /* what w1 gates */
  ADD(params, max, layer, rows);
  if (c->shared_experts) add_ffn(params, max, layer, c, "moe.shared", c->shared_experts * h, c->expert_activation);
}

static void add_buffers(ch_params *params, int max, int layer, const ch_model_config *c, const ch_router *router) {
  int64_t d = c->d_model, e = c->experts;
  const row rows[] = {{"moe.thresholds", 1, {e}, 0, KEPT, ch_router_has_thresholds(router)},
                      {"moe.router.weight", 2, {d, e}, 1 / sqrt((double)d), KEPT, ch_router_has_centroids(router)}};
  ADD(params, max, layer, rows);
}

static void add_model(ch_params *params, int max, const ch_model_config *c, const ch_router *router) {
  int64_t d = c->d_model;
  const row embed = {"embed.weight", 2, {c->vocab_size, d}, 1, c->tied ? MATRIX : PLAIN, 1},
            norm = {"final_norm.weight", 1, {d}, 0, PLAIN, 1},
            head = {"head.weight", 2, {c->vocab_size, d}, 1 / sqrt((double)d), MATRIX, !c->tied};
  params->count = 0;
  add_row(params, max, -1, &embed);
  for (int layer = 0; layer < c->layers; layer++) {
    add_attention(params, max, layer, c);
    if (ch_config_is_moe(c, layer))
      add_moe(params, max, layer, c, router);
    else
      add_ffn(params, max, layer, c, "ffn", c->d_hidden, c->activation);
  }
  add_row(params, max, -1, &norm);
  add_row(params, max, -1, &head);
  int trained = params->count;
  for (int layer = 0; layer < c->layers; layer++)
    if (ch_config_is_moe(c, layer)) add_buffers(params, max, layer, c, router);
  params->buffers = params->count - trained;
  params->count = trained;
}

int ch_params_build(const ch_model_config *config, ch_params *params) {
  const ch_router *router = config->router.kind;
  *params = (ch_params){0};
  add_model(params, 0, config, router);
  int rows = params->count + params->buffers;
  CH_TRY(CH_ALLOC(&params->p, rows, "a table of parameters"));
  add_model(params, rows, config, router);
  double total = 0;
  for (int i = 0; i < params->count; i++) total += (double)params->p[i].count;
  if (total <= (double)max_parameters) {
    int code = ch_names_build(&params->names, rows, params->p->name, sizeof *params->p);
    if (code) ch_params_free(params);
    return code;
  }
  ch_params_free(params);
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "model: layers %d, d_model %d, d_hidden %d, experts %d of %d make %.3g parameters: at most %.3g",
                  config->layers, config->d_model, config->d_hidden, config->experts, ch_config_d_expert(config), total,
                  (double)max_parameters);
}

int64_t ch_part_run(const ch_part *part, int64_t at, int64_t count, int64_t *whole) {
  int64_t row = at / part->columns, column = at % part->columns, run = part->columns - column;
  *whole = (part->row + row) * part->width + part->column + column;
  return part->columns == part->width || count < run ? count : run;
}

void ch_part_place(const ch_part *part, const void *elements, void *whole, int64_t size) {
  const char *from = elements;
  for (int64_t done = 0, count = ch_part_count(part), run, at; done < count; done += run) {
    run = ch_part_run(part, done, count - done, &at);
    memcpy((char *)whole + at * size, from + done * size, (size_t)(run * size));
  }
}

ch_part ch_part_of_experts(const ch_grid *grid, int rank, int64_t experts, int64_t rows, int64_t width, int hidden) {
  int shards = grid->tp_group.size, groups = grid->ep_group.size;
  const ch_range local = ch_share_range(experts, rank / shards, groups);
  ch_part part = {
      .row = local.first * rows, .rows = (local.last - local.first) * rows, .columns = width, .width = width};
  if (!hidden) return part;
  part.columns = width / shards;
  part.column = rank % shards * part.columns;
  return part;
}

int ch_params_share(ch_params *params, const ch_grid *grid) {
  int shards = grid->tp_group.size, groups = grid->ep_group.size;
  for (int i = 0; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (!p->expert) continue;
    if (shards > 1 && p->shape[0] % groups)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "%d hidden shards leave %d groups of ranks for %d experts (model.experts), which they must "
                      "divide: take another number of processes, or of shards",
                      shards, groups, (int)p->shape[0]);
    if (p->shape[2] % shards)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "%d hidden shards must divide the hidden width of an expert (model.d_expert), %d: take another "
                      "number of shards",
                      shards, (int)p->shape[2]);
    p->part = ch_part_of_experts(grid, grid->replica.rank, p->shape[0], p->shape[1], p->shape[2], 1);
    p->count = ch_part_count(&p->part);
  }
  return CHOIR_OK;
}

void ch_params_free(ch_params *params) {
  free(params->p);
  ch_names_free(&params->names);
  *params = (ch_params){0};
}

const ch_param *ch_params_find(const ch_params *params, const char *name) {
  int row = ch_names_find(&params->names, name);
  return row < 0 ? NULL : &params->p[row];
}

int ch_params_first(const ch_params *params, int layer) {
  int low = 1, high = params->count - 1; /* the rows between belong to layers, in order */
  if (layer < 0) return 0;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (params->p[middle].layer < layer)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int64_t ch_params_total(const ch_params *params) {
  int64_t total = 0;
  for (int i = 0; i < params->count; i++) total += params->p[i].whole;
  return total;
}

/* ---- memory and initial values ---- */

/* The table lists parameters layer by layer. Remote matrices have no gradient here, but with `share` their memory is
 * reserved too, so that all ranks need equal memory. */
void ch_params_alloc_gradients(ch_params *params, ch_arena *arena, int share) {
  for (int i = 0; i < params->count; i++)
    if (params->p[i].layer < 0) params->p[i].g = CH_NEW(arena, real, params->p[i].count);
  size_t mark = ch_arena_mark(arena);
  for (int i = 0, layer = 0; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (p->layer < 0 || (p->remote && !share)) continue;
    if (share && p->layer != layer) ch_arena_release(arena, mark);
    layer = p->layer;
    p->g = CH_NEW(arena, real, p->count);
  }
}

/* A weight as 8-bit matrices: returns their number and describes the first. */
static int64_t as_matrices(const ch_param *p, ch_q8_values *one) {
  int64_t rows = p->shape[p->dims - 2], columns = p->shape[p->dims - 1];
  *one = (ch_q8_values){.outputs = rows, .depth = columns, .output = columns, .input = 1};
  if (p->inputs_first) *one = (ch_q8_values){.outputs = columns, .depth = rows, .output = 1, .input = columns};
  return p->dims == 3 ? p->shape[0] : 1;
}

static void alloc_8_bits(ch_param *p, ch_arena *arena) {
  ch_q8_values one;
  int64_t matrices = as_matrices(p, &one);
  p->w8 = CH_NEW(arena, ch_q8, matrices * ch_q8_matrix_bytes(one.outputs, one.depth));
  if (!strcmp(p->name, "embed.weight")) p->w = CH_NEW(arena, real, p->count); /* the embedding op reads fp32 rows */
}

int ch_param_pack(const ch_param *p, const real *values, int threads, int64_t *at) {
  ch_q8_values one;
  int64_t matrices = as_matrices(p, &one), panels = ch_q8_panels(one.outputs), bad = p->count;
  int64_t size = one.outputs * one.depth, bytes = ch_q8_panel_bytes(one.depth);
#pragma omp parallel for num_threads(threads) reduction(min : bad)
  for (int64_t row = 0; row < p->count; row += one.depth) {
    int64_t place = ch_q8_first_unfit(values + row, one.depth);
    if (place < one.depth && row + place < bad) bad = row + place;
  }
  *at = bad;
  if (bad < p->count) return 1;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
  for (int64_t i = 0; i < matrices * panels; i++) {
    ch_q8_values matrix = one;
    matrix.x = (real *)values + i / panels * size;
    ch_q8_pack(&matrix, i % panels, CH_AS_HOST(ch_q8, p->w8) + i * bytes);
  }
  return 0;
}

void ch_param_unpack(const ch_param *p, int threads, real *values) {
  ch_q8_values one;
  int64_t matrices = as_matrices(p, &one), panels = ch_q8_panels(one.outputs);
  int64_t size = one.outputs * one.depth, bytes = ch_q8_panel_bytes(one.depth);
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
  for (int64_t i = 0; i < matrices * panels; i++) {
    ch_q8_values matrix = one;
    matrix.x = values + i / panels * size;
    ch_q8_unpack(CH_AS_HOST(const ch_q8, p->w8) + i * bytes, i % panels, &matrix);
  }
}

/* A remote matrix needs only its rounded copy, which products read. */
static void alloc_weight(ch_param *p, ch_arena *arena, ch_copies copies) {
  if (copies == CH_COPIES_Q8_0 && p->matrix) {
    alloc_8_bits(p, arena);
    return;
  }
  int rounded = p->matrix && copies != CH_COPIES_NONE && (copies == CH_COPIES_ALL || !p->expert);
  p->w = rounded && p->remote ? NULL : CH_NEW(arena, real, p->count);
  p->w16 = rounded ? CH_NEW(arena, ch_bf16, p->count) : NULL;
}

/* Remote matrices of all even (odd) layers share one buffer, because at most two layers are resident at a time. */
static void alloc_remote(ch_params *params, ch_arena *arena, ch_copies copies, int odd) {
  size_t mark = ch_arena_mark(arena), max = mark;
  for (int i = 0, layer = odd; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (!p->remote || p->layer % 2 != odd) continue;
    if (p->layer != layer) ch_arena_release(arena, mark);
    layer = p->layer;
    alloc_weight(p, arena, copies);
    if (ch_arena_mark(arena) > max) max = ch_arena_mark(arena);
  }
  ch_arena_release(arena, mark);
  ch_arena_alloc(arena, max - mark);
}

/* Remote matrices come last. While a layer runs, the next layer's matrices are received. */
void ch_params_alloc_weights(ch_params *params, ch_arena *arena, ch_copies copies) {
  for (int i = 0; i < params->count + params->buffers; i++)
    if (!params->p[i].remote) alloc_weight(&params->p[i], arena, copies);
  for (int odd = 0; odd < 2; odd++) alloc_remote(params, arena, copies, odd);
}

enum { PIECE = 4096, BLOCK = 256 * PIECE }; /* elements per task, and per parallel loop */

/* Samples elements begin .. begin+count-1 of the rank's shard, in double precision in every build, then rounds. */
static void fill_param(const ch_param *p, ch_rng rng, int64_t begin, int64_t count, real *to) {
  double normal[PIECE];
  for (int64_t done = 0, run, at; p->init == CH_INIT_NORMAL && done < count; done += run) {
    run = ch_part_run(&p->part, begin + done, count - done, &at);
    ch_rng_normals(rng, (uint64_t)at, (size_t)run, normal + done);
  }
  for (int64_t i = 0; i < count; i++)
    to[i] = p->init == CH_INIT_NORMAL ? (real)(normal[i] * p->init_std) : (real)(p->init == CH_INIT_ONE);
}

/* Initializes 8-bit weights: samples the whole tensor in fp32, then quantizes it. */
static int init_packed(const ch_param *p, ch_rng rng, int threads) {
  real *values;
  int64_t at;
  CH_TRY(CH_ALLOC(&values, p->count, "initial values of '%s'", p->name));
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t begin = 0; begin < p->count; begin += PIECE)
    fill_param(p, rng, begin, p->count - begin < PIECE ? p->count - begin : PIECE, values + begin);
  ch_param_pack(p, values, threads, &at);
  if (p->w) memcpy(CH_AS_HOST(real, p->w), values, (size_t)p->count * sizeof *values);
  free(values);
  return CHOIR_OK;
}

/* Initializes blocks in place if memory is the host's, otherwise on the host, then uploads them. */
static void init_one(const ch_param *p, const ch_memory *memory, ch_rng rng, int threads, real *block) {
  for (int64_t first = 0; first < p->count; first += BLOCK) {
    int64_t count = p->count - first < BLOCK ? p->count - first : BLOCK;
    real *to = block ? block : CH_AS_HOST(real, p->w + first);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t begin = 0; begin < count; begin += PIECE)
      fill_param(p, rng, first + begin, count - begin < PIECE ? count - begin : PIECE, to + begin);
    if (block) memory->upload(p->w + first, block, (size_t)count * sizeof *block);
  }
}

int ch_params_init(ch_params *params, const ch_memory *memory, uint64_t seed, int threads) {
  real *block = NULL;
  int code = CHOIR_OK;
  if (!memory->host) CH_TRY(CH_ALLOC(&block, BLOCK, "initial weights, on their way to the device"));
  for (int t = 0; t < params->count + params->buffers && !code; t++) {
    ch_rng rng = ch_rng_make(seed, CH_STREAM_INIT, (uint32_t)t);
    if (params->p[t].w8)
      code = init_packed(&params->p[t], rng, threads);
    else if (!params->p[t].remote)
      init_one(&params->p[t], memory, rng, threads, block);
  }
  free(block);
  return code;
}
