/* Creating, initializing, loading and saving models: the public handle. */
#include "handle/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/options.h"
#include "base/threads.h"
#include "comm/collective.h"
#include "file/dir.h"
#include "file/file.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "model/prefetch.h"
#include "model/weights.h"
#include "moe/route_stats.h"

/* Q8_0 models have no gradients, cannot be saved and need a single process. */
static int check_q8_0(const choir_model *model) {
  CH_TRY(ch_model_alone(model, "compute 'q8_0'"));
  return model->x.memory->host ? CHOIR_OK
                               : ch_error(CHOIR_ERROR_UNSUPPORTED, "compute 'q8_0' is for CPUs; take fp32 or bf16");
}

static int prepare_model(const choir_config *config, const choir_model_options *options, int expert_copies,
                         choir_model *model) {
  CH_OPTIONS(choir_model_options, o, options, CHOIR_MODEL_OPTIONS_INIT);
  ch_compute compute = CH_COMPUTE_FP32;
  model->config = *config;
  model->grad_chunks = config->train.grad_chunks;
  CH_TRY(ch_plugin_option_renew(&model->config));
  CH_TRY(choir_config_check(&model->config));
  compute = (ch_compute)config->train.compute;
  if (o.compute) CH_TRY(ch_compute_find(o.compute, &compute));
  CH_TRY(ch_exec_init(&model->x, o.backend ? o.backend : "cpu", compute, o.emulate_bf16, o.threads));
  model->x.dispatch_dtype = (ch_compute)config->parallel.dispatch_dtype;
  ch_arena_init(&model->weights, "weights", model->x.memory);
  ch_arena_init(&model->gradients, "gradients", model->x.memory);
  CH_TRY(ch_transformer_create(&model->config.model, &model->net));
  model->x.comm = ch_ranks_comm(o.ranks);
  CH_TRY(ch_ranks_grid(o.ranks, &model->x.grid));
  CH_TRY(ch_params_share(&model->net.params, &model->x.grid));
  if (compute == CH_COMPUTE_Q8_0) CH_TRY(check_q8_0(model));
  if (o.ranks && o.ranks->dense_sharded) ch_params_shard_dense(&model->net.params, &model->x.grid.replica);
  if (compute == CH_COMPUTE_BF16) model->copies = expert_copies ? CH_COPIES_ALL : CH_COPIES_DENSE;
  if (compute == CH_COMPUTE_Q8_0) model->copies = CH_COPIES_Q8_0;
  ch_params_alloc_weights(&model->net.params, &model->weights, model->copies);
  return CHOIR_OK;
}

/* Returns the code; on failure frees the model. */
static int keep(int code, choir_model **model) {
  if (code) {
    choir_model_free(*model);
    *model = NULL;
  }
  return code;
}

static int make_model(const choir_config *config, const choir_model_options *options, int expert_copies,
                      choir_model **model) {
  CH_TRY(CH_ALLOC(model, 1, "a model handle"));
  return keep(prepare_model(config, options, expert_copies, *model), model);
}

int ch_model_prepare(const choir_config *config, const choir_model_options *options, choir_model **model) {
  return make_model(config, options, config->train.expert_copies, model);
}

int ch_model_commit_weights(choir_model *model) {
  if (!ch_arena_counting(&model->weights)) return CHOIR_OK;
  if (model->config.model.vocab_size <= 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.vocab_size is 0: set it, or let training take it from the data");
  CH_TRY(ch_threads_check(model->x.threads)); /* parallel regions start here */
  CH_TRY(ch_arena_commit(&model->weights));
  ch_params_alloc_weights(&model->net.params, &model->weights, model->copies);
  return CHOIR_OK;
}

int ch_model_create(const choir_config *config, const choir_model_options *options, choir_model **model) {
  CH_TRY(make_model(config, options, 1, model));
  return keep(ch_model_commit_weights(*model), model);
}

void choir_model_free(choir_model *model) {
  if (!model) return;
  ch_exec_free(&model->x);
  ch_arena_free(&model->weights);
  ch_arena_free(&model->gradients);
  ch_transformer_free(&model->net);
  for (int i = 0; i < 2; i++) free(model->experts_per_token[i]);
  free(model);
}

void ch_model_weights_changed(choir_model *model) {
  model->evaluated[0] = model->evaluated[1] = 0;
  model->stale = ch_counting(&model->x); /* rounding is an op and needs a plan: planning does it later */
  if (!model->stale) ch_model_round_weights(model, &model->x);
}

void ch_model_round_weights(choir_model *model, ch_exec *x) {
  for (int i = 0; i < model->net.params.count; i++) {
    ch_param *p = &model->net.params.p[i];
    if (p->w16 && !p->remote) x->ops->round_bf16(x, &(ch_round_args){.count = p->count, .x = p->w, .y = p->w16});
  }
  model->stale = 0;
}

const char *ch_model_bad_weight(choir_model *model) {
  ch_exec *x = &model->x;
  CH_SCRATCH(x);
  const ch_param *p = model->net.params.p;
  int count = model->net.params.count + model->net.params.buffers, bad = 0;
  double CH_DEV *sums = CH_NEW(&x->scratch, double, count);
  for (int i = 0; i < count; i++)
    x->ops->sumsq(x, &(ch_sumsq_args){
                         .arrays = 1, .count = p[i].remote || !p[i].w ? 0 : p[i].count, .x = p[i].w, .sum = sums + i});
  const double *squares = ch_download(x, sums, (size_t)count * sizeof *squares);
  if (ch_counting(x)) return NULL;
  while (bad < count && isfinite(squares[bad])) bad++;
  bad = (int)-ch_comm_max(x->comm, -bad);
  return bad < count ? p[bad].name : NULL;
}

void ch_model_count_gradients(choir_model *model) {
  if (!ch_arena_counting(&model->gradients)) return;
  ch_arena_release(&model->gradients, 0);
  ch_params_alloc_gradients(&model->net.params, &model->gradients, model->share_gradients);
}

int ch_model_make_gradients(choir_model *model) {
  if (!ch_arena_counting(&model->gradients)) return CHOIR_OK;
  ch_model_count_gradients(model);
  CH_TRY(ch_arena_commit(&model->gradients));
  ch_params_alloc_gradients(&model->net.params, &model->gradients, model->share_gradients);
  return CHOIR_OK;
}

void ch_model_drop_plan(choir_model *model) {
  model->planned_B = model->planned_T = 0;
  model->forced_plan = 0;
  ch_exec_clear(&model->x);
}

void ch_model_end_training(choir_model *model) {
  model->reserved_scratch = 0;
  ch_model_drop_plan(model);
  if (!model->share_gradients) return;
  model->share_gradients = 0;
  ch_arena_free(&model->gradients);
  ch_arena_init(&model->gradients, "gradients", model->x.memory);
  for (int i = 0; i < model->net.params.count; i++) model->net.params.p[i].g = NULL;
}

int choir_model_create(const choir_config *config, uint64_t seed, const choir_model_options *options,
                       choir_model **model) {
  CH_ENTER(config, model);
  CH_TRY(ch_model_create(config, options, model));
  int code = ch_params_init(&(*model)->net.params, (*model)->x.memory, seed, (*model)->x.threads);
  if (!code) ch_model_weights_changed(*model);
  return keep(code, model);
}

static int save_tokenizer(const choir_tokenizer *tokenizer, const char *directory) {
  size_t size;
  const void *bytes = choir_tokenizer_bytes(tokenizer, &size);
  return ch_file_save(CH_IN(directory, "tokenizer.model"), bytes, size);
}

int ch_model_check_whole(const choir_model *model) {
  if (!model->half_step) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "step %" PRId64
                  " ended between the update of the weights and the state of router '%s', whose observe failed: load "
                  "the last checkpoint, or make the trainer anew from it",
                  model->half_step, model->net.router->name);
}

/* Saves the weights last, because their metadata binds them to the config.json and tokenizer.model written before. */
int ch_model_save_into(const choir_model *model, const choir_tokenizer *tokenizer, const char *directory) {
  const ch_comm *comm = model->x.comm;
  CH_TRY(ch_model_check_whole(model));
  CH_TRY(CH_ON_FIRST(comm, choir_config_save(&model->config, CH_IN(directory, "config.json"))));
  if (tokenizer) CH_TRY(CH_ON_FIRST(comm, save_tokenizer(tokenizer, directory)));
  return ch_weights_save(&model->net.params, &model->x, model->config.model.router.kind,
                         CH_IN(directory, "model.safetensors"), model->config.train.file_bytes);
}

int choir_model_save(const choir_model *model, const choir_tokenizer *tokenizer, const char *checkpoint) {
  CH_ENTER(model, checkpoint);
  ch_dir directory;
  CH_TRY(ch_model_alone(model, "choir_model_save"));
  CH_TRY(ch_model_check_unrounded(model, "saving"));
  CH_TRY(ch_dir_begin(&directory, checkpoint));
  return ch_dir_end(&directory, ch_model_save_into(model, tokenizer, directory.temporary));
}

int ch_model_check_unrounded(const choir_model *model, const char *what) {
  if (model->copies != CH_COPIES_Q8_0) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "compute 'q8_0' is for inference: its rounded weights are not for %s; load the model with fp32 or "
                  "bf16",
                  what);
}

const choir_config *choir_model_config(const choir_model *model) { return model ? &model->config : NULL; }

int choir_model_parameter_count(const choir_model *model) {
  return model ? model->net.params.count + model->net.params.buffers : 0;
}

static int check_index(const choir_model *model, int index) {
  int count = choir_model_parameter_count(model);
  return index >= 0 && index < count
             ? CHOIR_OK
             : ch_error(CHOIR_ERROR_ARGUMENT, "parameter %d does not exist; the model has %d", index, count);
}

/* Whether a parameter has a readable gradient: no if layers share gradient memory or it is not allocated. */
static int has_gradient(const choir_model *model, int index) {
  return index < model->net.params.count && !ch_arena_counting(&model->gradients) && !model->share_gradients;
}

int choir_model_parameter_at(const choir_model *model, int index, choir_parameter *parameter) {
  CH_ENTER(model, parameter);
  CH_TRY(check_index(model, index));
  const ch_param *p = &model->net.params.p[index];
  *parameter = (choir_parameter){.name = p->name, .dims = p->dims, .trained = index < model->net.params.count};
  if (model->x.memory->host && p->count == p->whole && p->owner < 0) {
    parameter->data = CH_AS_HOST(float, p->w);
    if (has_gradient(model, index)) parameter->gradient = CH_AS_HOST(float, p->g);
  }
  memcpy(parameter->shape, p->shape, sizeof p->shape);
  return CHOIR_OK;
}

int choir_model_get_parameter(const choir_model *model, int index, int gradient, float *values) {
  CH_ENTER(model, values);
  CH_TRY(check_index(model, index));
  const ch_param *p = &model->net.params.p[index];
  if (gradient && !has_gradient(model, index))
    return ch_error(CHOIR_ERROR_ARGUMENT, "parameter '%s' has no gradient: run a forward with gradients first%s",
                    p->name, index < model->net.params.count ? "" : "; no gradient trains it");
  return ch_param_collect(p, &model->x, gradient, values);
}

int choir_model_set_parameter(choir_model *model, int index, const float *values) {
  CH_ENTER(model, values);
  CH_TRY(check_index(model, index));
  CH_TRY(ch_model_check_idle(model));
  if (model->copies && !ch_counting(&model->x)) CH_TRY(ch_threads_check(model->x.threads)); /* to round the weights */
  const ch_param *p = &model->net.params.p[index];
  int64_t bad;
  if (p->w8 && ch_param_pack(p, values, model->x.threads, &bad))
    return ch_error(CHOIR_ERROR_NUMERIC, "parameter '%s': element %lld is %g: q8_0 holds numbers up to %g", p->name,
                    (long long)bad, (double)values[bad], (double)CH_Q8_MAX);
  for (int64_t done = p->remote || !p->w ? p->count : 0, run, at; done < p->count; done += run) {
    run = ch_part_run(&p->part, done, p->count - done, &at);
    model->x.memory->upload(p->w + done, values + at, (size_t)run * sizeof *values);
  }
  ch_model_weights_changed(model);
  return CHOIR_OK;
}

int choir_model_moe_layer_count(const choir_model *model) { return model ? model->net.moe_layers : 0; }

int choir_model_get_route_stats(const choir_model *model, int moe, choir_route_stats *stats) {
  CH_ENTER(model, stats);
  if (moe < 0 || moe >= model->net.moe_layers)
    return ch_error(CHOIR_ERROR_ARGUMENT, "MoE layer %d does not exist; the model has %d", moe, model->net.moe_layers);
  CH_TRY(ch_route_stats_alloc(model->config.model.experts, stats));
  stats->moe = moe;
  while (model->net.block[stats->layer].moe != moe) stats->layer++;
  return ch_route_stats_add(stats, &model->net.stats[moe]);
}
