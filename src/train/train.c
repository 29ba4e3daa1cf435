/* choir_train: starts or resumes a run and takes its steps. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/options.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/file.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "model/weights.h"
#include "moe/router.h"
#include "train/layout.h"
#include "train/metrics.h"
#include "train/pretrain.h"

/* Opens the data. The vocabulary size comes from the data, and the data's tokenizer must be the model's. */
static int open_data(ch_pretraining *p) {
  const char *directory = p->data_path;
  ch_run *run = &p->run;
  choir_data_info info;
  ch_model_config *m = &run->config.model;
  CH_TRY(choir_data_load(directory, &p->data));
  choir_data_get_info(p->data, &info);
  run->data_hash = p->data->hash;
  int mask = ch_config_masked(&run->config);
  if (!m->vocab_size) m->vocab_size = info.vocab_size + mask;
  if (m->vocab_size != info.vocab_size + mask)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.vocab_size is %d but the tokenizer of %s has %d pieces%s; build the data with the model's "
                    "tokenizer, or set vocab_size to 0, which takes the data's",
                    m->vocab_size, directory, info.vocab_size, mask ? ", to which the mask is added" : "");
  CH_TRY(ch_data_check(p->data, run->config.train.sequence_length));
  return choir_tokenizer_load(p->data->tokenizer_path, &run->tokenizer);
}

/* Allocates weights, gradients, optimizer state and activations: all memory of the run. */
static int make_model(ch_pretraining *p, const choir_train_options *o) {
  ch_run *run = &p->run;
  choir_model *model;
  choir_config_costs costs;
  choir_model_options with = *o->model;
  if (with.ranks) with.ranks = &p->ranks;
  CH_TRY(choir_config_get_costs(&run->config, &costs));
  run->flops_per_token = costs.train_flops_per_token;
  CH_TRY(ch_model_prepare(&run->config, &with, &model));
  CH_TRY(ch_trainer_plan(model, &run->trainer));
  ch_trainer_memory(&run->trainer, &run->memory);
  run->memory.data =
      (int64_t)ch_data_mapped_bytes(p->data); /* the system can reclaim it: it does not count as needed */
  run->memory.total += run->memory.data;
  CH_TRY(ch_trainer_commit(&run->trainer));
  return ch_pretraining_plan(p);
}

static int fresh_config(ch_run *run, const choir_train_options *o) {
  if (!o->config) return ch_error(CHOIR_ERROR_ARGUMENT, "training needs a config");
  run->config = *o->config;
  return ch_plugin_option_renew(&run->config);
}

/* Reads the path that is the only content of a file into `path` [PATH_MAX]. */
static int read_path(const char *file, char *path) {
  char *text;
  size_t size;
  CH_TRY(ch_file_read(file, PATH_MAX - 1, &text, &size));
  memcpy(path, text, size + 1);
  free(text);
  return CHOIR_OK;
}

/* The run's data directory, from the options or from RUN/data.path, so that resuming needs only the run's directory.
 * keep_settings writes that file once the data was found to fit. */
static int data_path(const choir_train_options *o, char *path) {
  if (o->data)
    return realpath(o->data, path)
               ? CHOIR_OK
               : ch_error_errno("%s: cannot open data (choir data build makes it of text)", o->data);
  if (!o->resume) return ch_error(CHOIR_ERROR_ARGUMENT, "training needs a data directory");
  return read_path(CH_IN(o->out, CH_RUN_DATA), path);
}

/* Checks the activations: a feed-forward layer keeps the activation that its weights were trained for, also if it
 * becomes an MoE layer. */
static int same_activations(const char *path, const ch_model_config *from, const ch_model_config *to) {
  for (int l = 0; l < from->layers && l < to->layers; l++) {
    int before = ch_config_is_moe(from, l) ? from->expert_activation : from->activation;
    int moe = ch_config_is_moe(to, l), now = moe ? to->expert_activation : to->activation;
    if (before != now)
      return ch_error(CHOIR_ERROR_FORMAT, "%s: layer %d is %s there, and %s here: set model.%s to %s", path, l,
                      ch_activation_names[before], ch_activation_names[now], moe ? "expert_activation" : "activation",
                      ch_activation_names[before]);
  }
  return CHOIR_OK;
}

/* What a run copies from another model's router: thresholds only if the scores are of the same kind, since
 * thresholds are scores; the weights if both learn them in the same way, by gradients or as centroids. */
static ch_router_start router_start(const ch_router_spec *from, const ch_router_spec *to) {
  if (ch_router_has_centroids(from->kind) != ch_router_has_centroids(to->kind)) return CH_ROUTER_NOTHING;
  return !strcmp(from->kind->name, to->kind->name) && from->score == to->score ? CH_ROUTER_ALL : CH_ROUTER_WEIGHT;
}

int ch_start_weights(choir_model *model, const char *directory) {
  const ch_model_config *to = &model->config.model;
  choir_config from;
  int upcycled;
  CH_TRY(ch_config_load(CH_IN(directory, "config.json"), &from));
  CH_TRY(same_activations(CH_IN(directory, "config.json"), &from.model, to));
  if (!strcmp(from.model.router.kind->name, to->router.kind->name))
    CH_TRY(ch_weights_same_router(to->router.kind, CH_IN(directory, "model.safetensors"), 0));
  return ch_weights_start(&model->net.params, &model->x, CH_IN(directory, "model.safetensors"),
                          router_start(&from.model.router, &to->router), &upcycled);
}

/* Loads the weights of another run's checkpoint, and nothing else. Its tokenizer must be the data's. */
static int start_from(ch_pretraining *p) {
  const char *path = CH_IN(p->from, "tokenizer.model");
  choir_tokenizer *tokenizer;
  CH_TRY(choir_tokenizer_load(path, &tokenizer));
  int same = choir_tokenizer_hash(tokenizer) == p->data->tokenizer_hash;
  choir_tokenizer_free(tokenizer);
  if (!same) return ch_error(CHOIR_ERROR_FORMAT, "%s is not the tokenizer of the data; build the data with it", path);
  return ch_start_weights(p->run.trainer.model, p->from);
}

/* The initial checkpoint of a run, stored in RUN/from.path so that the run can be resumed before its own first
 * checkpoint. */
static int from_path(ch_pretraining *p, const choir_train_options *o) {
  const char *path = CH_IN(o->out, CH_RUN_FROM);
  char resolved[PATH_MAX];
  int there;
  if (o->resume && o->init_from)
    return ch_error(CHOIR_ERROR_ARGUMENT, "--init-from cannot be combined with --resume: %s has the start of the run",
                    path);
  if (o->init_from) {
    CH_TRY(ch_checkpoint_resolve(o->init_from, resolved));
    return realpath(resolved, p->from) ? CHOIR_OK : ch_error_errno("%s: cannot open checkpoint", resolved);
  }
  if (!o->resume) return CHOIR_OK;
  CH_TRY(ch_regular_exists(path, &there));
  return there ? read_path(path, p->from) : CHOIR_OK;
}

/* Writes the config first: it marks the other files as those of a run. */
static int keep_settings(const ch_pretraining *p) {
  const ch_run *run = &p->run;
  const char *from = CH_IN(run->out, CH_RUN_FROM);
  CH_TRY(ch_metrics_check(run->out, run->metrics_bytes)); /* nothing is changed if the run cannot be resumed */
  CH_TRY(choir_config_save(&run->config, CH_IN(run->out, CH_RUN_CONFIG)));
  CH_TRY(ch_file_save(CH_IN(run->out, CH_RUN_DATA), p->data_path, strlen(p->data_path)));
  if (*p->from)
    CH_TRY(ch_file_save(from, p->from, strlen(p->from)));
  else if (unlink(from) && errno != ENOENT) /* left by an earlier run whose metrics were removed */
    return ch_error_errno("%s: cannot be removed", from);
  return CHOIR_OK;
}

/* A learning rate that starts in the middle of its cooldown is a mistake; a resumed run continues as before. */
static int check_cooldown(const ch_train_config *c) {
  if (!(c->cooldown_steps > (double)c->steps)) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "train.cooldown_steps is %.10g: more than the %lld steps of the run (train.steps); set it to a share, "
      "as 0.2, or to 0 for none",
      c->cooldown_steps, (long long)c->steps);
}

/* Determines a run's config, data and initial weights, before it has a model. steps [count]: with resume, its
 * existing checkpoints. */
static int find_parts(ch_pretraining *p, const choir_train_options *o, int64_t **steps, int *count) {
  if (o->resume) CH_TRY(ch_checkpoint_list(o->out, steps, count));
  CH_TRY(o->resume ? ch_resume_config(&p->run, o->config, *steps, *count) : fresh_config(&p->run, o));
  if (o->config) CH_TRY(check_cooldown(&p->run.config.train));
  p->run.eval_every = p->run.config.train.eval_every;
  CH_TRY(data_path(o, p->data_path));
  CH_TRY(from_path(p, o));
  return open_data(p);
}

static int lay_out(ch_pretraining *p, const choir_train_options *o) {
  if (!o->model->ranks) return CHOIR_OK;
  p->ranks = *o->model->ranks;
  return ch_layout_choose(&p->run.config, o->model, &p->ranks, p->run.layout, sizeof p->run.layout);
}

static int load_model(ch_pretraining *p, const choir_train_options *o, const int64_t *steps, int count) {
  ch_run *run = &p->run;
  CH_TRY(make_model(p, o));
  if (!count) {
    choir_model *model = run->trainer.model;
    CH_TRY(ch_params_init(&model->net.params, model->x.memory, run->config.train.seed, model->x.threads));
    if (*p->from) CH_TRY(start_from(p));
    ch_model_weights_changed(model);
    return CHOIR_OK;
  }
  return ch_resume_state(run, steps, count);
}

/* Collective. */
static int set_up_run(ch_pretraining *p, const choir_train_options *o) {
  const ch_comm *comm = ch_ranks_comm(o->model->ranks);
  int64_t *steps = NULL;
  int count = 0, code = ch_comm_agree(comm, find_parts(p, o, &steps, &count));
  if (!code) code = lay_out(p, o);
  if (!code) code = ch_comm_agree(comm, load_model(p, o, steps, count));
  free(steps);
  return code;
}

/* The first rank creates, locks and cleans the directory. Every rank reads the files, and none writes before all
 * have read. */
static int run_ranks(ch_pretraining *p, const choir_train_options *o, ch_reservation *reservation) {
  const ch_comm *comm = ch_ranks_comm(o->model->ranks);
  CH_TRY(CH_ON_FIRST(comm, ch_run_directory_take(reservation, o->out, o->resume)));
  CH_TRY(set_up_run(p, o));
  CH_TRY(ch_run_same(&p->run));
  CH_TRY(CH_ON_FIRST(comm, keep_settings(p)));
  return ch_run_loop(&p->run);
}

int choir_train(const choir_train_options *options) {
  CH_ENTER(options);
  CH_NEEDS_STACK(CH_STACK_TRAIN_KIB);
  ch_reservation reservation = CH_RESERVATION_NONE;
  CH_OPTIONS(choir_train_options, o, options, CHOIR_TRAIN_OPTIONS_INIT);
  CH_OPTIONS(choir_model_options, model, o.model, CHOIR_MODEL_OPTIONS_INIT);
  ch_pretraining p = {0};
  o.model = &model;
  if (o.task || o.epochs != 0) return ch_error(CHOIR_ERROR_ARGUMENT, "task and epochs are options of choir_finetune");
  CH_TRY(ch_run_begin(&p.run, &ch_run_pretraining, &o));
  int code = run_ranks(&p, &o, &reservation);
  ch_pretraining_free(&p);
  ch_reservation_release(&reservation, code != CHOIR_OK);
  return code;
}
