/* Sessions: memory, planned once, and calls of any size, which are cut into passes. */
#include "infer/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "base/threads.h"
#include "model/block.h"
#include "moe/route_stats.h"

static int check_session_options(const choir_model *model, const choir_session_options *o) {
  enum { MAX_SLOTS = 1 << 16, MAX_LENGTH = 1 << 26, MAX_CHUNK = 1 << 20 };
  const struct {
    const char *name;
    int value, max;
  } rows[] = {{"slots", o->slots, MAX_SLOTS}, {"length", o->length, MAX_LENGTH}, {"chunk", o->chunk, MAX_CHUNK}};
  for (int i = 0; i < 3; i++)
    if (rows[i].value < 1 || rows[i].value > rows[i].max)
      return ch_error(CHOIR_ERROR_ARGUMENT, "session: %s is %d; must be 1 to %d", rows[i].name, rows[i].value,
                      rows[i].max);
  int e = model->config.model.experts;
  if (o->chunk > INT32_MAX / 2 / (e > 0 ? e : 1))
    return ch_error(CHOIR_ERROR_ARGUMENT, "session: a chunk of %d tokens and %d experts are too many", o->chunk, e);
  return CHOIR_OK;
}

/* Allocates the arrays on the host. */
static void allocate_arrays(choir_session *s) {
  ch_arena *a = &s->arrays;
  int layers = s->net.config.layers;
  s->net.block = CH_NEW_HOST(a, ch_layer, layers);
  s->net.stats = CH_NEW_HOST(a, choir_route_stats, layers);
  s->bias = CH_NEW_HOST(a, real CH_DEV *, layers);
  s->keys = CH_NEW_HOST(a, real CH_DEV *, layers);
  s->values = CH_NEW_HOST(a, real CH_DEV *, layers);
  s->length = CH_NEW_HOST(a, int, s->slots);
  s->begin = CH_NEW_HOST(a, int, s->slots + 1);
  s->until = CH_NEW_HOST(a, int64_t, s->slots + 1);
  s->last = CH_NEW_HOST(a, real *, s->slots);
  s->token = CH_NEW_HOST(a, int32_t, s->chunk);
  s->position = CH_NEW_HOST(a, int32_t, s->chunk);
}

/* Shares the model's parameters, with separate blocks and statistics, so that passes change only the session's state.
 * Pool "batch" needs no memory for pools; a session routes each token by itself, so the pool has no effect. */
static int borrow(choir_session *s) {
  const ch_transformer *net = &s->model->net;
  s->net = *net;
  allocate_arrays(s);
  CH_TRY(ch_arena_commit(&s->arrays));
  allocate_arrays(s);
  memcpy(s->net.block, net->block, (size_t)net->config.layers * sizeof *s->net.block);
  ch_transformer_set_pool(&s->net, CH_POOL_BATCH);
  for (int i = 0; i < net->moe_layers; i++) CH_TRY(ch_route_stats_alloc(net->config.experts, &s->net.stats[i]));
  return CHOIR_OK;
}

static void allocate(choir_session *s) {
  const ch_transformer *m = &s->net;
  int64_t bias = (int64_t)m->config.heads * (s->positions + CH_BIAS_PAD),
          cache = (int64_t)s->slots * s->positions * m->kv_width;
  if (m->rotated) s->rope_table = CH_NEW(&s->memory, real, (int64_t)s->positions * m->rotated);
  for (int l = 0; l < m->config.layers; l++) {
    if (m->block[l].rel_bias) s->bias[l] = CH_NEW(&s->memory, real, bias);
    s->keys[l] = CH_NEW(&s->memory, real, cache);
    s->values[l] = CH_NEW(&s->memory, real, cache);
  }
}

/* The model's routing or, if that depends on other tokens, threshold routing, with which text can be generated. */
static int choose_routing(const choir_model *model, int *causal) {
  *causal = model->causal;
  if (ch_config_bidirectional(&model->config.model)) return choir_model_check_causal(model);
  if (!choir_model_looks_across_tokens(model)) return CHOIR_OK;
  if (!ch_router_can_be_causal(model->net.router)) return choir_model_check_causal(model);
  *causal = CH_BY_THRESHOLDS;
  return ch_model_check_thresholds(model);
}

static int create(choir_session *s, const choir_session_options *o) {
  const choir_model *model = s->model;
  ch_arena_init(&s->arrays, "a session's arrays", &ch_memory_host);
  ch_arena_init(&s->memory, "caches of keys and values", model->x.memory);
  CH_TRY(ch_model_alone(model, "choir_session_create"));
  CH_TRY(ch_model_check_idle(model));
  CH_TRY(check_session_options(model, o));
  CH_TRY(choose_routing(model, &s->causal));
  if (model->net.moe_layers && !(s->causal && model->net.router->causal))
    CH_TRY(model->net.router->check(&model->config.model.router, o->chunk, model->config.model.experts, o->chunk));
  CH_TRY(ch_model_separate_exec(model, &s->x));
  s->slots = o->slots;
  s->positions = o->length;
  int64_t max = (int64_t)o->slots * o->length;
  s->chunk = o->chunk < max ? o->chunk : (int)max;
  CH_TRY(borrow(s));
  allocate(s);
  CH_TRY(ch_arena_commit(&s->memory));
  allocate(s);
  real some;
  ch_session_pass(s, &some);
  CH_TRY(ch_model_commit_exec(s->model, &s->x));
  const ch_model_config *c = &s->net.config;
  if (s->rope_table) ch_rope_table_make(&s->x, &s->net, s->positions, s->rope_table);
  for (int l = 0; l < c->layers && ch_config_has_bias(c); l++)
    s->x.ops->attention_bias(&s->x, &(ch_attention_bias_args){.H = c->heads,
                                                              .buckets = c->rel_buckets,
                                                              .max_distance = c->rel_max_distance,
                                                              .positions = s->positions,
                                                              .rel_bias = s->net.block[l].rel_bias->w,
                                                              .bias = s->bias[l]});
  return CHOIR_OK;
}

int choir_session_create(choir_model *model, const choir_session_options *options, choir_session **session) {
  CH_ENTER(model, session);
  CH_OPTIONS(choir_session_options, o, options, CHOIR_SESSION_OPTIONS_INIT);
  CH_TRY(CH_ALLOC(session, 1, "a session"));
  (*session)->model = model;
  int code = create(*session, &o);
  if (code) {
    choir_session_free(*session);
    *session = NULL;
  }
  return code;
}

const char *choir_session_routing(const choir_session *s) {
  if (!s) return NULL;
  return s->causal ? "threshold" : choir_model_routing(s->model);
}

void choir_session_free(choir_session *s) {
  if (!s) return;
  ch_exec_free(&s->x);
  ch_arena_free(&s->memory);
  for (int i = 0; !ch_arena_counting(&s->arrays) && i < s->net.moe_layers; i++)
    choir_route_stats_clear(&s->net.stats[i]);
  ch_arena_free(&s->arrays);
  free(s);
}

static int check_call(const choir_session *s, const int *counts, const int32_t *tokens) {
  int64_t at = 0;
  for (int b = 0; b < s->slots; b++) {
    if (counts[b] < 0 || counts[b] > s->positions - s->length[b])
      return ch_error(CHOIR_ERROR_ARGUMENT, "slot %d holds %d of %d tokens: %d more do not fit", b, s->length[b],
                      s->positions, counts[b]);
    if (counts[b] && !tokens) return ch_error(CHOIR_ERROR_ARGUMENT, "choir_session_advance: tokens is NULL");
    for (int i = 0; i < counts[b]; i++, at++)
      if (tokens[at] < 0 || tokens[at] >= s->net.config.vocab_size)
        return ch_error(CHOIR_ERROR_ARGUMENT, "token %d of slot %d is %d, outside the vocabulary of %d", i, b,
                        tokens[at], s->net.config.vocab_size);
  }
  return CHOIR_OK;
}

/* Cuts rows first .. first+rows-1 of the call into the next pass: they are consecutive in every slot that has any. */
static void cut_pass(choir_session *s, int64_t first, int rows, float *last) {
  int64_t V = s->net.config.vocab_size;
  for (int b = 0; b <= s->slots; b++) {
    int64_t at = s->until[b] - first;
    s->begin[b] = (int)(at < 0 ? 0 : at > rows ? rows : at);
  }
  for (int b = 0; b < s->slots; b++) {
    int64_t end = s->until[b + 1];
    int ends = end > s->until[b] && end > first && end <= first + rows;
    s->last[b] = last && ends ? last + b * V : NULL;
  }
}

int choir_session_advance(choir_session *session, const int *counts, const int32_t *tokens, float *last, float *all) {
  CH_ENTER(session, counts);
  CH_TRY(ch_threads_check(session->x.threads));
  CH_TRY(check_call(session, counts, tokens));
  int64_t V = session->net.config.vocab_size;
  session->until[0] = 0;
  for (int b = 0; b < session->slots; b++) session->until[b + 1] = session->until[b] + counts[b];
  int64_t total = session->until[session->slots];
  for (int64_t first = 0; first < total; first += session->chunk) {
    int rows = total - first < session->chunk ? (int)(total - first) : session->chunk;
    cut_pass(session, first, rows, last);
    memcpy(session->token, tokens + first, (size_t)rows * sizeof *tokens);
    ch_session_pass(session, all ? all + first * V : NULL);
  }
  return ch_exec_check(&session->x);
}

int choir_session_length(const choir_session *s, int slot) {
  return s && slot >= 0 && slot < s->slots ? s->length[slot] : -1;
}

int choir_session_rewind(choir_session *session, int slot, int length) {
  CH_ENTER(session);
  int have = choir_session_length(session, slot);
  if (have < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "slot %d does not exist; the session has %d", slot, session->slots);
  if (length < 0 || length > have)
    return ch_error(CHOIR_ERROR_ARGUMENT, "slot %d has %d tokens: it cannot be cut to %d", slot, have, length);
  session->length[slot] = length;
  return CHOIR_OK;
}
