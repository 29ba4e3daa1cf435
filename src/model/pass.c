#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/block.h"
#include "model/capacity.h"
#include "model/ranks.h"
#include "model/transformer.h"
#include "moe/route_stats.h"

/* The layer's parameter of that name; NULL if the layer has none. */
static ch_param *layer_param(ch_params *params, int layer, const char *suffix) {
  char name[64];
  snprintf(name, sizeof name, "layers.%d.%s", layer, suffix);
  return (ch_param *)ch_params_find(params, name);
}

static void bind_block(ch_transformer *m, ch_layer *b, int layer) {
  ch_params *p = &m->params;
  b->number = layer;
  b->attn_norm = layer_param(p, layer, "attn_norm.weight");
  b->q = layer_param(p, layer, "attn.q.weight");
  b->k = layer_param(p, layer, "attn.k.weight");
  b->v = layer_param(p, layer, "attn.v.weight");
  b->o = layer_param(p, layer, "attn.o.weight");
  b->q_norm = layer_param(p, layer, "attn.q_norm.weight");
  b->k_norm = layer_param(p, layer, "attn.k_norm.weight");
  b->rel_bias = layer_param(p, layer, "attn.rel_bias");
  b->ffn_norm = layer_param(p, layer, "ffn_norm.weight");
  b->router = layer_param(p, layer, "moe.router.weight");
  b->w1 = layer_param(p, layer, "moe.experts.w1");
  b->w2 = layer_param(p, layer, "moe.experts.w2");
  b->w3 = layer_param(p, layer, "moe.experts.w3");
  b->thresholds = layer_param(p, layer, "moe.thresholds");
  b->moe = b->w1 ? m->moe_layers++ : -1;
  b->dense.activation = (ch_activation)(b->w1 ? m->config.expert_activation : m->config.activation);
  b->dense.gate = layer_param(p, layer, b->w1 ? "moe.shared.gate.weight" : "ffn.gate.weight");
  b->dense.up = layer_param(p, layer, b->w1 ? "moe.shared.up.weight" : "ffn.up.weight");
  b->dense.down = layer_param(p, layer, b->w1 ? "moe.shared.down.weight" : "ffn.down.weight");
}

/* Derives the routing of every MoE layer from the config. */
static void resolve_routing(ch_transformer *m) {
  for (int l = 0; l < m->config.layers; l++)
    if (m->block[l].moe >= 0) m->block[l].routing = ch_config_layer_router(&m->config, m->block[l].moe);
}

void ch_transformer_set_pool(ch_transformer *m, ch_pool_kind pool) {
  m->config.router.pool = pool;
  resolve_routing(m);
}

void ch_transformer_set_eval_capacity(ch_transformer *m, double factor) {
  m->config.router.eval_capacity_factor = factor;
  resolve_routing(m);
}

void ch_transformer_set_cap(ch_transformer *m, int cap) {
  m->config.router.cap = cap;
  resolve_routing(m);
}

int ch_transformer_create(const ch_model_config *config, ch_transformer *m) {
  *m = (ch_transformer){.config = *config};
  m->router = config->router.kind;
  m->d_head = ch_config_d_head(config);
  m->width = m->d_head * config->heads;
  m->kv_heads = ch_config_kv_heads(config);
  m->kv_width = m->d_head * m->kv_heads;
  m->rotated = ch_config_has_rope(config) ? ch_config_rotated(config) : 0;
  CH_TRY(ch_params_build(config, &m->params));
  int code = CH_ALLOC(&m->block, config->layers, "the layers of a model");
  if (!code) code = CH_ALLOC(&m->stats, config->layers, "statistics of layers");
  if (code) return ch_transformer_free(m), code;
  m->embed = (ch_param *)ch_params_find(&m->params, "embed.weight");
  m->final_norm = (ch_param *)ch_params_find(&m->params, "final_norm.weight");
  m->head = config->tied ? m->embed : (ch_param *)ch_params_find(&m->params, "head.weight");
  for (int l = 0; l < config->layers; l++) bind_block(m, &m->block[l], l);
  resolve_routing(m);
  for (int i = 0; i < m->moe_layers; i++)
    if (ch_route_stats_alloc(config->experts, &m->stats[i])) {
      ch_transformer_free(m);
      return CHOIR_ERROR_MEMORY;
    }
  return CHOIR_OK;
}

void ch_transformer_free(ch_transformer *m) {
  for (int i = 0; m->stats && i < m->moe_layers; i++) choir_route_stats_clear(&m->stats[i]);
  free(m->stats);
  free(m->block);
  ch_params_free(&m->params);
  *m = (ch_transformer){0};
}

void ch_transformer_clear_stats(ch_transformer *m) {
  for (int i = 0; i < m->moe_layers; i++) ch_route_stats_clear(&m->stats[i]);
}

void ch_transformer_end_step(ch_exec *x, ch_transformer *m) {
  int e = m->config.experts;
  if (!m->moe_layers || !m->router->update_per_step) return;
  for (int l = 0; l < m->config.layers; l++) {
    const ch_layer *b = &m->block[l];
    if (!b->thresholds || ch_exec_refused(x)) continue;
    CH_SCRATCH(x);
    int *demand = CH_NEW_HOST(&ch_host(x)->scratch, int, e);
    for (int i = 0; i < e; i++) demand[i] = (int)m->stats[b->moe].demand[i];
    ch_routing seen = {.counts.demand = (int CH_DEV *)ch_upload(&x->scratch, demand, (size_t)e * sizeof *demand)};
    ch_router_observe(x, m->router, &m->config.router, e, &seen,
                      (ch_router_state){.thresholds = b->thresholds->w, .updated = b->thresholds->w, .layer = l});
  }
}

/* Length [B] of each sequence up to its last token, at least 1; NULL: no padding. */
static const int *find_lengths(ch_exec *x, const ch_pass *p, const uint8_t *mask, int padded) {
  int *length = CH_NEW_HOST(&ch_host(x)->tape, int, p->B);
  for (int b = 0; b < p->B && !ch_counting(x); b++) {
    length[b] = p->T;
    while (length[b] > 1 && !mask[(int64_t)b * p->T + length[b] - 1]) length[b]--;
  }
  return padded || ch_counting(x) ? length : NULL;
}

/* Replaces padding (negative ids) by token 0 and masks it: on the host, then uploaded. */
static void clean_tokens(ch_exec *x, const ch_transformer *m, ch_pass *p) {
  int64_t n = (int64_t)p->B * p->T;
  int padded = 0;
  int32_t *id = CH_NEW_HOST(&ch_host(x)->tape, int32_t, n);
  uint8_t *mask = CH_NEW_HOST(&ch_host(x)->tape, uint8_t, n), *masked = NULL;
  int both_ways = ch_config_bidirectional(&m->config); /* bidirectional: the last token of the vocabulary is the mask */
  if (both_ways) masked = CH_NEW_HOST(&ch_host(x)->tape, uint8_t, n);
  for (int64_t t = 0; t < n && !ch_counting(x); t++) {
    mask[t] = p->token[t] >= 0;
    id[t] = mask[t] ? p->token[t] : 0;
    padded |= !mask[t];
    if (masked) masked[t] = p->token[t] == m->config.vocab_size - 1;
  }
  const uint8_t CH_DEV *valid = ch_upload(&x->tape, mask, (size_t)n);
  p->route.tokens.id = ch_upload(&x->tape, id, (size_t)n * sizeof *id);
  p->route.tokens.mask = padded ? mask : NULL;
  p->route.tokens.masked = masked;
  p->route.tokens.valid = padded ? valid : NULL;
  p->length = both_ways ? find_lengths(x, p, mask, padded) : NULL;
}

/* Prepares the gradients of a layer (-1: parameters outside the layers). Products overwrite their gradients (a tied
 * embedding's is written by the head, then the lookup's is added). All others are sums and start from 0. */
static void begin_gradients(ch_exec *x, const ch_params *params, const ch_pass *p, int layer) {
  for (int i = ch_params_first(params, layer); i < params->count && !p->accumulate; i++) {
    if (layer >= 0 && params->p[i].layer != layer) break;
    if (params->p[i].layer == layer && !params->p[i].product)
      CH_OP(x, copy, .count = params->p[i].count, .y = params->p[i].g);
  }
}

/* Index of the gradient chunks' losses among the numbers of a pass: the last block. */
static size_t loss_cells(const ch_transformer *m) {
  return CH_PASS_SUMS + (size_t)m->moe_layers * (CH_TALLY_SUMS + CH_TALLY_COUNTS((size_t)m->config.experts));
}

static size_t report_cells(const ch_transformer *m, const ch_pass *p) {
  return loss_cells(m) + (size_t)ch_pass_grad_chunks(p);
}

void ch_pass_begin(ch_exec *x, const ch_transformer *m, ch_pass *p) {
  ch_route_args *route = &p->route;
  ch_route_args_set(route, m->router, &m->config.router, p->B * p->T, m->config.experts, p->T);
  route->d = m->config.d_model;
  route->draws.rng.seed = p->seed;
  route->draws.base = p->micro * (uint64_t)route->n;
  route->router_state.observed = p->micro;
  for (int l = 0; l < m->config.layers && ch_pass_scales(p); l++)
    if (m->block[l].moe >= 0) m->block[l].scaled = ch_router_scaled(&m->block[l].routing, p->capacity);
  p->loss_sum = p->aux_loss = p->z_loss = 0;
  p->sums = CH_NEW(&x->tape, double, report_cells(m, p));
  p->grad_chunk_loss = p->sums + loss_cells(m);
  ch_zero(x, p->sums, CH_PASS_SUMS * sizeof *p->sums);
  ch_zero(x, p->grad_chunk_loss, (size_t)ch_pass_grad_chunks(p) * sizeof *p->sums);
}

void ch_pass_end(ch_exec *x, ch_transformer *m, ch_pass *p) {
  CH_SCRATCH(x);
  const double *sums = ch_download(x, p->sums, report_cells(m, p) * sizeof *sums), *layer = sums + CH_PASS_SUMS;
  const int64_t *counts = (const int64_t *)(layer + m->moe_layers * CH_TALLY_SUMS);
  if (ch_counting(x)) return;
  int valid = ch_valid_count(p->route.tokens.mask, p->route.n);
  for (int l = 0; l < m->config.layers; l++) {
    const ch_layer *b = &m->block[l];
    if (b->moe < 0) continue;
    p->aux_loss += m->config.router.aux_loss_weight * layer[0];
    p->z_loss += m->config.router.z_loss_weight * layer[2];
    ch_route_stats_collect(&m->stats[b->moe], valid, &b->saved.routing.counts, layer, counts);
    layer += CH_TALLY_SUMS;
    counts += CH_TALLY_COUNTS(m->config.experts);
  }
  p->loss_sum = ch_add_grad_chunks(ch_pass_grad_chunks(p), sums + loss_cells(m));
  p->aux_loss += ch_consistency_weight(x, m, p) * sums[CH_PASS_CONSISTENCY];
  if (ch_exec_refused(x)) p->loss_sum = (double)NAN; /* callers get the error from ch_exec_check */
}

/* token [B*T], rows [B*T,d] */
ch_embedding_args ch_embed(ch_exec *x, const ch_transformer *m, const ch_pass *p, const int32_t CH_DEV *token,
                           real CH_DEV *rows) {
  const ch_embedding_args a = {.n = (int64_t)p->B * p->T,
                               .d = m->config.d_model,
                               .V = m->config.vocab_size,
                               .scale = (real)m->config.embed_scale,
                               .token = token,
                               .w = m->embed->w,
                               .x = rows};
  x->ops->embedding(x, &a);
  return a;
}

typedef struct {
  ch_embedding_args all;
  int64_t n; /* rows of a gradient chunk */
} lookup;

static void lookup_backward(ch_exec *x, void *context, int shard, real CH_DEV *const *dw, int accumulate) {
  (void)accumulate; /* a sum */
  const lookup *c = context;
  ch_embedding_args part = c->all;
  part.n = c->n;
  part.token += shard * c->n;
  part.dx += shard * c->n * part.d;
  part.dw = dw[0];
  x->ops->embedding_backward(x, &part);
}

/* If a router refused, the pass's guard becomes NaN, so that updates within backward are skipped. */
static void guard_refusal(ch_exec *x, const ch_pass *p) {
  const double no_number = (double)NAN;
  if (ch_exec_refused(x)) ch_write(x, p->sums + CH_PASS_GUARD, &no_number, sizeof no_number);
}

/* stream [B,T,d]: the first layer's input, overwritten in passes without gradients. Returns the last layer's output
 * [B,T,d]. */
const real CH_DEV *ch_layers_forward(ch_exec *x, ch_transformer *m, const ch_pass *p, real CH_DEV *stream) {
  const int64_t count = (int64_t)p->B * p->T * m->config.d_model;
  real CH_DEV *other = p->gradients ? NULL : CH_NEW(&x->tape, real, count);
  for (int l = 0; l < m->config.layers; l++) {
    ch_layer *b = &m->block[l];
    real CH_DEV *out = p->gradients ? CH_NEW(&x->tape, real, count) : other;
    size_t mark = ch_arena_mark(&x->tape);
    b->x = stream;
    b->mid = p->gradients ? CH_NEW(&x->tape, real, count) : stream;
    ch_prefetch_layer(x, l + 1);
    ch_attention_forward(x, m, b, p, stream, b->mid);
    ch_ffn_forward(x, m, b, p, b->mid, out);
    if (!p->gradients) ch_arena_release(&x->tape, mark);
    other = stream;
    stream = out;
  }
  return stream;
}

/* dx [n,d]: in, the gradient of the last layer's output; out, the gradient of the first layer's input. */
static void layers_backward(ch_exec *x, ch_transformer *m, const ch_pass *p, real CH_DEV *dx) {
  for (int l = m->config.layers - 1; l >= 0; l--) {
    begin_gradients(x, &m->params, p, l);
    ch_prefetch_layer(x, l - 1);
    ch_ffn_backward(x, m, &m->block[l], p, dx);
    ch_attention_backward(x, m, &m->block[l], p, dx);
    if (p->ready && !ch_counting(x)) p->ready(p->context, p, l);
  }
}

void ch_transformer_run(ch_exec *x, ch_transformer *m, ch_pass *all) {
  size_t mark = ch_arena_mark(&x->tape), host_mark = ch_arena_mark(&ch_host(x)->tape);
  ch_pass_begin(x, m, all);
  clean_tokens(x, m, all);
  ch_pass local = ch_ranks_share(x, m, all), *p = &local;
  if (m->rotated) {
    real CH_DEV *table = CH_NEW(&x->tape, real, (int64_t)p->T * m->rotated);
    ch_rope_table_make(x, m, p->T, table);
    p->rope_table = table;
  }
  int64_t n = (int64_t)p->B * p->T, d = m->config.d_model;
  real CH_DEV *stream = CH_NEW(&x->tape, real, n * d);
  ch_prefetch_start(x, &m->params);
  ch_embedding_args embedding = ch_embed(x, m, p, ch_ranks_tokens(x, p), stream);
  if (ch_drops(p)) ch_dropout(x, m, p, CH_DROP_EMBEDDING, stream, stream, 0);
  const real CH_DEV *out = ch_layers_forward(x, m, p, stream);
  real CH_DEV *dx = p->gradients ? CH_NEW(&x->tape, real, n * d) : NULL;
  if (p->gradients) begin_gradients(x, &m->params, p, -1);
  if (p->target || p->logits) ch_head(x, m, p, out, dx);
  ch_ranks_gather_losses(x, all);
  guard_refusal(x, p);
  if (p->gradients) {
    layers_backward(x, m, p, dx);
    if (ch_drops(p)) ch_dropout(x, m, p, CH_DROP_EMBEDDING, dx, dx, 0);
    embedding.dx = dx;
    const ch_sum sum = {.y = m->embed->g, .count = m->embed->count, .adds = 1};
    ch_sum_grad_chunks(x, ch_pass_grad_chunks(p), &sum, 1, 1, lookup_backward,
                       &(lookup){embedding, n / ch_pass_grad_chunks(p)});
  }
  ch_prefetch_stop(x);
  ch_pass_end(x, m, all);
  ch_arena_release(&ch_host(x)->tape, host_mark);
  ch_arena_release(&x->tape, mark);
}
