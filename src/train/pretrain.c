#include "train/pretrain.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/format.h"
#include "comm/collective.h"
#include "model/config.h"
#include "model/mask.h"
#include "train/metrics.h"

static const ch_pretraining *of(const ch_run *run) { return (const ch_pretraining *)(const void *)run; }

int ch_pretraining_plan(ch_pretraining *p) {
  const choir_config *config = &p->run.config;
  const ch_train_config *c = &config->train;
  int64_t n = ch_step_tokens(c), windows = (int64_t)c->batch_sequences * (c->sequence_length + 1);
  int arrays = ch_config_masked(config) ? 3 : 2; /* tokens, targets, and the targets' weights */
  uint64_t *counts;
  CH_TRY(CH_ALLOC(&p->batch, arrays * n + windows, "a batch"));
  CH_TRY(CH_ALLOC(&counts, config->model.vocab_size, "unigram counts"));
  ch_data_unigram(p->data, counts);
  int code = ch_unigram_log(counts, ch_config_pieces(config), &p->unigram);
  free(counts);
  return code;
}

void ch_pretraining_free(ch_pretraining *p) {
  ch_run_free(&p->run);
  choir_data_free(p->data);
  free(p->batch);
  free(p->unigram);
}

/* ---- the source */

/* The windows of the step, cut into tokens and targets, or masked. */
static const ch_batch *next_windows(ch_run *run, ch_step_counts *counts) {
  ch_pretraining *p = (ch_pretraining *)(void *)run;
  const ch_train_config *c = &run->config.train;
  int B = c->batch_sequences, T = c->sequence_length;
  int64_t n = ch_step_tokens(c);
  int masked = ch_config_masked(&run->config), weighted = 0;
  int32_t *token = p->batch, *target = token + n, *windows = target + n;
  float *weight = masked ? (float *)(windows + B * (T + 1)) : NULL;
  for (int64_t row = 0; row < n / T; row++) {
    int64_t b = row % B;
    if (!b) ch_data_next(p->data, c->seed, T, &p->position, B, windows);
    const int32_t *window = windows + b * (T + 1);
    if (masked)
      ch_mask_training(&run->config, run->trainer.step, (int)row, window, token + row * T, target + row * T,
                       weight + row * T, &weighted);
    else
      ch_window_cut(window, T, token + row * T, target + row * T);
  }
  run->tokens += n;
  *counts = (ch_step_counts){.sequences = n / T, .positions = n, .tokens = n};
  return ch_trainer_cut(&run->trainer, token, target, weighted ? weight : NULL);
}

static void describe_step(const ch_run *run, const choir_event *e, char *text, size_t size) {
  ch_format(text, size, ",\"fill\":%.9g,\"tokens\":%" PRId64, e->result->fill, run->tokens);
}

static int check_data(const ch_run *run) { return ch_data_intact(of(run)->data); }

/* ---- the evaluation */

/* Computes the held-out loss with the router's own routing or with threshold routing (the run's plan has memory for
 * both), and *json, which also describes the routing. */
static int evaluate_by(ch_pretraining *p, const ch_windows *windows, int causal, choir_eval_result *r, json_t **json) {
  const ch_run *run = &p->run;
  choir_model *model = run->trainer.model;
  ch_layer_stats stats = {0};
  ch_locality *locality = NULL;
  model->causal = causal;
  int code = ch_comm_agree(model->x.comm, ch_layer_stats_begin(model, 0, windows->length, &stats));
  if (!code)
    code = ch_evaluate(model, windows, ch_pass_sequences(&run->config), run->config.train.eval_sequences, p->unigram,
                       NULL, NULL, r);
  model->causal = 0;
  choir_model_on_routing(model, NULL, NULL);
  if (!code) code = ch_comm_agree(model->x.comm, ch_layer_stats_locality(&stats, &locality));
  if (!code && !isfinite(r->loss)) code = ch_trainer_not_finite(&run->trainer, run->trainer.step, r->loss);
  if (!code) {
    ch_eval_bytes(r, ch_heldout_bytes(p->data, r->tokens));
    *json = ch_metrics_result(r, &stats, locality);
  }
  free(locality);
  ch_layer_stats_free(&stats);
  return code;
}

/* Evaluates the held-out data. Runs are compared by the causal loss if both losses exist. */
static int evaluate_heldout(ch_run *run, ch_metrics *metrics, choir_event *e) {
  ch_pretraining *p = (ch_pretraining *)(void *)run;
  json_t *primary = NULL, *causal = NULL;
  ch_windows windows = ch_windows_heldout(p->data, run->config.train.sequence_length);
  windows.unfinished = !ch_run_is_done(run);
  if (!windows.count) return CHOIR_OK; /* data built without a held-out share */
  int code = evaluate_by(p, &windows, 0, &p->eval[e->evals++], &primary);
  if (!code && p->eval[0].looks_across_tokens && ch_router_can_be_causal(run->trainer.model->net.router))
    code = evaluate_by(p, &windows, 1, &p->eval[e->evals++], &causal);
  if (!code) ch_metrics_eval(metrics, run->trainer.step, primary, causal);
  json_decref(primary);
  json_decref(causal);
  CH_TRY(code);
  double loss = p->eval[e->evals - 1].loss;
  ch_run_evaluated(run, (ch_best){.loss = loss}, loss < run->best.loss);
  e->eval = p->eval;
  e->best = run->best.step ? run->best.loss : (double)NAN;
  ch_pretraining_sample(p, metrics);
  return CHOIR_OK;
}

/* ---- log and checkpoints */

static void write_head(ch_metrics *metrics, const ch_run *run) { ch_metrics_run(metrics, run, of(run)->from); }

static int list_counters(ch_run *run, ch_counter *c) {
  ch_pretraining *p = (ch_pretraining *)(void *)run;
  const ch_counter all[] = {
      {.name = "run.step", .value = &run->trainer.step},
      {.name = "run.samples", .value = (int64_t *)&p->position.samples},
      {.name = "run.tokens", .value = &run->tokens, .optional = 1},
      {.name = "run.metrics_bytes", .value = &run->metrics_bytes},
      {.name = "run.best_step", .value = &run->best.step, .optional = 1},
      {.name = "run.best_loss",
       .value = (int64_t *)(void *)&run->best.loss,
       .optional = 1}, /* the bits of the double */
      {.name = "run.waited", .value = &run->waited, .optional = 1},
      {.name = "run.data_hash", .value = (int64_t *)&p->data->hash, .of = "the data"},
      {.name = "run.tokenizer_hash", .value = (int64_t *)&p->data->tokenizer_hash, .of = "the data's tokenizer"}};
  _Static_assert(sizeof all <= CH_COUNTERS * sizeof *all, "state.h has room for them");
  memcpy(c, all, sizeof all);
  return sizeof all / sizeof *all;
}

static void fill_counters(ch_run *run, const choir_config *made_with) {
  const ch_pretraining *p = of(run);
  const ch_train_config *c = &made_with->train;
  if (run->tokens < 0) run->tokens = (int64_t)p->position.samples * c->sequence_length;
  if (run->best.step < 0) run->best.step = 0;
  if (run->waited < 0)
    run->waited =
        run->best.step && c->eval_every ? run->trainer.step / c->eval_every - run->best.step / c->eval_every : 0;
}

const ch_run_kind ch_run_pretraining = {.next = next_windows,
                                        .describe_step = describe_step,
                                        .check_source = check_data,
                                        .evaluate = evaluate_heldout,
                                        .write_head = write_head,
                                        .list_counters = list_counters,
                                        .fill_counters = fill_counters};
