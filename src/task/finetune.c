/* choir_finetune: starts or resumes a run. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/options.h"
#include "base/text.h"
#include "file/checkpoints.h"
#include "file/path_status.h"
#include "file/run_files.h"
#include "model/config.h"
#include "task/tune.h"
#include "train/run.h"

enum { CONSTANT, CONTINUED };
static const char *const recipes[] = {"constant", "continued", NULL};
const char *const *choir_finetune_recipes(void) { return recipes; }

static int make_config(const char *from, const char *recipe, choir_config *config) {
  char directory[PATH_MAX], suggestion[100];
  ch_train_config *c = &config->train;
  CH_TRY(ch_checkpoint_resolve(from, directory));
  CH_TRY(ch_config_load(CH_IN(directory, "config.json"), config));
  c->batch_sequences = 32;
  c->accumulate = 1;
  c->eval_every = c->eval_sequences = c->checkpoint_every = 0;
  c->keep_checkpoints = 2; /* the newest, and the best if that is older */
  c->dropout = 0;
  c->cooldown_steps = 0; /* the parent's cooldown counted its own steps */
  c->freeze[0] = 0;
  if (!strcmp(recipe, recipes[CONSTANT])) { /* T5 and the paper: 0.001 after 0.01 */
    c->learning_rate /= 10;
    c->warmup_steps = 0;
    c->schedule_start = 0;
    c->constant_steps = (int64_t)1 << 52;
    c->schedule = CH_INVERSE_SQRT;
  } else if (!strcmp(recipe, recipes[CONTINUED])) {
    const char *name = strrchr(directory, '/');
    int64_t step = ch_checkpoint_step(name ? name + 1 : directory);
    if (step > 0) c->schedule_start += step; /* a directory name that is not a number gives no step */
  } else {
    return ch_error(CHOIR_ERROR_ARGUMENT, "unknown recipe '%.80s'%s; there are constant and continued", recipe,
                    ch_did_you_mean(suggestion, sizeof suggestion, recipe, recipes));
  }
  return CHOIR_OK;
}

int choir_finetune_config_create(const char *from, const char *recipe, choir_config **config) {
  CH_ENTER(from, recipe, config);
  choir_config made;
  *config = NULL;
  CH_TRY(make_config(from, recipe, &made));
  return choir_config_copy(&made, config);
}

static int check_finetune(const choir_train_options *o) {
  if (!o->resume && (!o->config || !o->init_from || !o->task || !o->data))
    return ch_error(CHOIR_ERROR_ARGUMENT, "fine-tuning needs a config, a checkpoint, a task and its data");
  if (!(o->epochs >= 0 && o->epochs <= 1e6))
    return ch_error(CHOIR_ERROR_ARGUMENT, "epochs is %g: must be a number from 0 to 1e6", o->epochs);
  if (o->batch_sequences < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "batch_sequences is %d: must not be negative", o->batch_sequences);
  return CHOIR_OK;
}

/* Sets up a new run from the options. */
static int fresh(ch_tune *t, char *base) {
  const choir_train_options *o = t->run.options;
  CH_TRY(ch_checkpoint_resolve(o->init_from, base));
  t->run.config = *o->config;
  CH_TRY(ch_plugin_option_renew(&t->run.config));
  t->settings.patience = o->patience;
  t->settings.batch_sequences = o->batch_sequences;
  t->settings.task = json_incref(o->task->json);
  if (!realpath(base, t->settings.from)) return ch_error_errno("%s: cannot open checkpoint", base);
  if (!realpath(o->data, t->settings.data)) return ch_error_errno("%s: cannot open data", o->data);
  return ch_task_make(json_incref(t->settings.task), choir_task_name(o->task), &t->task);
}

/* Resumes a run from its directory; a config given as well must describe the same model. base: the directory with
 * the tokenizer, which is the same in all intact checkpoints. */
static int resumed(ch_tune *t, const int64_t *steps, int count, char *base) {
  const choir_train_options *o = t->run.options;
  int there;
  CH_TRY(ch_tune_settings_load(t));
  snprintf(base, PATH_MAX, "%s", t->settings.from);
  for (int i = 0; i < count; i++) {
    ch_checkpoint_path(o->out, steps[i], base);
    CH_TRY(ch_path_exists(CH_IN(base, "tokenizer.model"), &there));
    if (there && ch_binding_holds(base)) break;
  }
  if (o->data && !realpath(o->data, t->settings.data)) return ch_error_errno("%s: cannot open data", o->data);
  return ch_resume_config(&t->run, o->config, steps, count);
}

static int open_sets(ch_tune *t, const char *base) {
  const char *path = CH_IN(base, "tokenizer.model");
  const choir_config *config = &t->run.config;
  const ch_train_config *c = &config->train;
  const choir_tokenizer *tokenizer;
  int V = ch_config_pieces(config), pieces;
  CH_TRY(choir_tokenizer_load(path, &t->run.tokenizer));
  tokenizer = t->run.tokenizer;
  pieces = choir_tokenizer_vocab_size(tokenizer);
  if (pieces != V)
    return ch_error(CHOIR_ERROR_FORMAT, "%s has %d pieces and the model %d: they do not belong together%s", path,
                    pieces, V,
                    abs(pieces - V) == 1 ? "; a model that is trained by masking has a piece more, the mask: leave "
                                           "train.objective as the checkpoint has it"
                                         : "");
  CH_TRY(ch_set_open(t->task, t->settings.data, "train", tokenizer, config, c->sequence_length, 1, &t->train));
  CH_TRY(ch_set_open(t->task, t->settings.data, "dev", tokenizer, config, c->sequence_length, 1, &t->dev));
  ch_examples_thin(&t->dev.examples, c->eval_sequences);
  ch_tune_hash(t);
  return ch_sampler_make(&t->train.examples, c->seed, c->batch_sequences, c->accumulate, &t->sampler);
}

/* Computes steps from epochs, and settings of evaluations. */
static int settle(ch_tune *t) {
  const choir_train_options *o = t->run.options;
  choir_config *config = &t->run.config;
  const ch_router *router = config->model.router.kind;
  if (o->epochs > 0) {
    double steps = o->epochs * (double)ch_tune_epoch_steps(t);
    config->train.steps = steps < 1 ? 1 : (int64_t)(steps + 0.5);
  }
  t->run.eval_every = config->train.eval_every ? config->train.eval_every : ch_tune_epoch_steps(t);
  t->run.patience = t->settings.patience;
  if (config->model.moe_every && !ch_config_masked(config) && !ch_router_can_be_causal(router) &&
      !t->settings.batch_sequences)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router %s cannot route without a look at other tokens: batch_sequences "
                    "must be at least 1",
                    router->name);
  return choir_config_check(config);
}

/* Allocates all memory, for training batches of every length and for evaluations with batch routing. */
static int make_trainer(ch_tune *t) {
  ch_run *run = &t->run;
  ch_trainer *trainer = &run->trainer;
  choir_model *model;
  ch_pass *passes;
  int count;
  int batch = ch_config_masked(&run->config) ? 0 : (int)t->settings.batch_sequences;
  CH_TRY(ch_predict_passes(&t->dev.examples, batch, run->config.model.experts, &passes, &count));
  int code = ch_model_prepare(&run->config, t->run.options->model, &model);
  if (!code && (code = ch_model_alone(model, "fine-tuning"))) choir_model_free(model);
  if (!code) code = ch_trainer_plan(model, trainer);
  if (!code)
    code = ch_trainer_plan_batches(trainer, t->sampler.examples->step, (int)(t->sampler.tokens / t->sampler.B),
                                   (int)t->sampler.rows, passes, count);
  free(passes);
  CH_TRY(code);
  ch_trainer_memory(trainer, &run->memory);
  return ch_trainer_commit(trainer);
}

static int load_start(ch_tune *t, const char *base) {
  CH_TRY(ch_start_weights(t->run.trainer.model, base));
  ch_model_weights_changed(t->run.trainer.model);
  return CHOIR_OK;
}

/* steps [count]: the existing checkpoints, the newest first. */
static int set_up_finetune(ch_tune *t, const int64_t *steps, int count) {
  char base[PATH_MAX];
  CH_TRY(t->run.options->resume ? resumed(t, steps, count, base) : fresh(t, base));
  CH_TRY(open_sets(t, base));
  CH_TRY(settle(t));
  CH_TRY(make_trainer(t));
  CH_TRY(count ? ch_resume_state(&t->run, steps, count) : load_start(t, base));
  if (count) ch_tune_result_read(t);
  CH_TRY(ch_metrics_check(t->run.out, t->run.metrics_bytes)); /* nothing is changed if the run cannot be resumed */
  return ch_tune_settings_save(t);
}

static int run_in(ch_tune *t, ch_reservation *reservation) {
  CH_TRY(ch_run_directory_take(reservation, t->run.out, t->run.options->resume));
  int64_t *steps = NULL;
  int count = 0;
  if (t->run.options->resume) CH_TRY(ch_checkpoint_list(t->run.out, &steps, &count));
  int code = set_up_finetune(t, steps, count);
  free(steps);
  return code ? code : ch_run_loop(&t->run);
}

static CH_BEHIND_DOOR int finetune(const choir_train_options *options) {
  ch_reservation reservation = CH_RESERVATION_NONE;
  CH_OPTIONS(choir_train_options, o, options, CHOIR_TRAIN_OPTIONS_INIT);
  ch_tune t = {0};
  CH_TRY(ch_run_begin(&t.run, &ch_run_tuning, &o));
  CH_TRY(check_finetune(&o));
  int code = run_in(&t, &reservation);
  ch_run_free(&t.run);
  ch_sampler_free(&t.sampler);
  ch_set_close(&t.train);
  ch_set_close(&t.dev);
  choir_task_free(t.task);
  json_decref(t.settings.task);
  ch_reservation_release(&reservation, code != CHOIR_OK);
  return code;
}

int choir_finetune(const choir_train_options *options) {
  CH_ENTER(options);
  CH_NEEDS_STACK(CH_STACK_TRAIN_KIB);
  return finetune(options);
}
