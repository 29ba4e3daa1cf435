#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/format.h"
#include "base/machine.h"
#include "comm/collective.h"
#include "comm/watch.h"
#include "file/run_files.h"
#include "model/config.h"
#include "op/backend.h"
#include "train/log.h"
#include "train/mask.h"
#include "train/metrics.h"
#include "train/run.h"
#include "train/state.h"

/* One process's loop_state through a run. Timing belongs to the process and not to the run. */
typedef struct train_loop_state {
  ch_run *run;
  const choir_train_options *options;
  ch_metrics metrics;
  ch_room room; /* on the disk */
  int stop;     /* the caller has asked, of this rank */
  int stopping; /* or of another, or there was no room for too long: the same on all ranks */
  int cooling;  /* the clock has set the steps that are left: the same on all ranks */
  double begin; /* seconds on the clock */
  int64_t first_step;
  double flops_per_token, peak_gflops;
} train_loop_state;

static const ch_comm *comm_of(const ch_run *run) { return run->trainer.model->x.comm; }

int ch_run_plan(ch_run *run) {
  const choir_train_config *c = &run->config.train;
  int64_t n = ch_step_tokens(c), windows = (int64_t)c->batch_sequences * (c->sequence_length + 1);
  int arrays = ch_config_masked(&run->config) ? 3 : 2; /* tokens, targets, and their weights */
  run->batch = reallocarray(NULL, (size_t)(arrays * n + windows), sizeof *run->batch);
  uint64_t *counts = calloc((size_t)run->config.model.vocab_size, sizeof *counts);
  if (!run->batch || !counts) {
    free(counts);
    return ch_error(CHOIR_ERROR_MEMORY, "no memory for a batch of %" PRId64 " tokens", n);
  }
  ch_data_unigram(run->data, counts);
  run->unigram = ch_unigram_log(counts, ch_config_pieces(&run->config));
  free(counts);
  return run->unigram ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for unigram probabilities");
}

/* The windows of the step, cut into tokens and targets, or masked: those of all ranks on every rank. */
int ch_run_step(ch_run *run, ch_step_result *r) {
  const choir_train_config *c = &run->config.train;
  int B = c->batch_sequences, T = c->sequence_length;
  int64_t n = ch_step_tokens(c);
  int masked = ch_config_masked(&run->config), weighted = 0;
  int32_t *token = run->batch, *target = token + n, *windows = target + n;
  float *weight = masked ? (float *)(windows + B * (T + 1)) : NULL;
  for (int64_t row = 0; row < n / T; row++) {
    int64_t b = row % B;
    if (!b) ch_data_next(run->data, c->seed, T, &run->position, B, windows);
    const int32_t *window = windows + b * (T + 1);
    if (masked)
      ch_mask_training(&run->config, run->trainer.step, (int)row, window, token + row * T, target + row * T,
                       weight + row * T, &weighted);
    else
      ch_window_cut(window, T, token + row * T, target + row * T);
  }
  return ch_trainer_step_weighted(&run->trainer, token, target, weighted ? weight : NULL, r);
}

static choir_train_event make_event(const train_loop_state *d, choir_event_kind kind) {
  const choir_train_config *c = &d->run->config.train;
  return (choir_train_event){.kind = kind, .step = d->run->trainer.step, .steps = c->steps, .objective = c->objective};
}

static choir_train_event step_event(const train_loop_state *d, const ch_step_result *r, double seconds,
                                    const ch_rank_times *ranks) {
  int64_t step = d->run->trainer.step, steps = d->run->config.train.steps,
          tokens = ch_step_tokens(&d->run->config.train);
  double speed = (double)tokens / seconds, a_step = (ch_machine_seconds() - d->begin) / (double)(step - d->first_step);
  return (choir_train_event){.kind = CHOIR_EVENT_STEP,
                             .step = step,
                             .steps = steps,
                             .tokens = (int64_t)d->run->position.samples * d->run->config.train.sequence_length,
                             .objective = d->run->config.train.objective,
                             .loss = r->loss,
                             .aux_loss = r->aux_loss,
                             .z_loss = r->z_loss,
                             .rate = r->rate,
                             .gradient_norm = r->gradient_norm,
                             .dropped = r->routing.dropped,
                             .unrouted = r->routing.unrouted,
                             .imbalance = r->routing.imbalance,
                             .fill = r->routing.fill,
                             .seconds = seconds,
                             .tokens_per_second = speed,
                             .gflops = speed * d->flops_per_token * 1e-9,
                             .peak_gflops = d->peak_gflops,
                             .seconds_left = (double)(steps - step) * a_step,
                             .ranks = ranks->ranks,
                             .slowest_rank = ranks->slowest,
                             .sent_bytes = ranks->bytes,
                             .sent_messages = ranks->messages,
                             .waited = ranks->waited};
}

/* The step's lines in both files. */
static void write_step(train_loop_state *d, const ch_step_result *r, const choir_train_event *e,
                       const ch_rank_times *ranks) {
  char counts[80];
  ch_format(counts, sizeof counts, "\"fill\":%.9g,\"tokens\":%" PRId64, r->routing.fill, e->tokens);
  ch_metrics_step(&d->metrics, e->step, r, counts);
  ch_metrics_timing(&d->metrics, e, ranks);
}

static void tell(train_loop_state *d, const choir_train_event *e) {
  if (d->options->event && d->options->event(d->options->context, e)) d->stop = 1;
}

/* Notices that have gathered since the last step. */
static void tell_notices(train_loop_state *d) {
  const char *text = choir_notices();
  choir_train_event e = make_event(d, CHOIR_EVENT_NOTICE);
  e.text = text;
  if (*text) tell(d, &e);
}

/* Before the first step there is nothing that could be saved: a wish to stop waits for it. */
static void tell_memory(train_loop_state *d) {
  const ch_run *run = d->run;
  choir_train_event e = make_event(d, CHOIR_EVENT_MEMORY);
  e.memory = &run->memory;
  if (*run->layout) e.text = run->layout;
  if (d->options->event) d->options->event(d->options->context, &e);
}

/* Held-out loss with the router's own routing or by thresholds (the plan of the run has room for both), and *json,
 * which says also how tokens were routed. */
static int evaluate_by(const ch_run *run, const ch_windows *windows, int causal, choir_eval_result *r, json_t **json) {
  ch_layer_stats stats = {0};
  int B = ch_pass_sequences(&run->config);
  CH_TRY(ch_comm_agree(comm_of(run), ch_layer_stats_begin(run->trainer.model, 0, &stats)));
  run->trainer.model->causal = causal;
  int code = ch_evaluate(run->trainer.model, windows, B, run->config.train.eval_sequences, run->unigram, NULL, NULL, r);
  run->trainer.model->causal = 0;
  choir_model_on_routing(run->trainer.model, NULL, NULL);
  if (!code && !isfinite(r->loss)) code = ch_trainer_not_finite(&run->trainer, run->trainer.step, r->loss);
  if (!code) {
    ch_eval_bytes(r, ch_heldout_bytes(run->data, r->tokens));
    *json = ch_metrics_result(r, &stats);
  }
  ch_layer_stats_free(&stats);
  return code;
}

/* *loss: what runs are compared by, the causal one where there are two; NaN: nothing is held out. */
static int evaluate_run(train_loop_state *d, choir_train_event e, double *loss) {
  const ch_run *run = d->run;
  choir_eval_result r, by_thresholds;
  json_t *own = NULL, *causal = NULL;
  ch_windows windows = ch_windows_heldout(run->data, run->config.train.sequence_length);
  *loss = (double)NAN;
  if (!windows.count) return CHOIR_OK; /* data built without a held-out share */
  e.threshold_loss = (double)NAN;
  int code = evaluate_by(run, &windows, 0, &r, &own);
  if (!code && r.looks_across_tokens && ch_router_can_be_causal(run->trainer.model->net.router)) {
    code = evaluate_by(run, &windows, 1, &by_thresholds, &causal);
    e.threshold_loss = by_thresholds.loss;
  }
  if (!code) ch_metrics_eval(&d->metrics, run->trainer.step, own, causal);
  json_decref(own);
  json_decref(causal);
  CH_TRY(code);
  e.kind = CHOIR_EVENT_EVAL;
  e.loss = r.loss;
  *loss = isnan(e.threshold_loss) ? r.loss : e.threshold_loss;
  e.aux_loss = e.z_loss = 0;
  e.bits_per_byte = r.bits_per_byte;
  e.unigram_loss = r.unigram_loss;
  e.standard_error = r.standard_error;
  e.text = r.routing;
  tell(d, &e);
  return CHOIR_OK;
}

/* Without room on the disk it is owed. */
static int checkpoint(train_loop_state *d, choir_train_event e) {
  char path[PATH_MAX] = "";
  const ch_comm *comm = comm_of(d->run);
  CH_TRY(ch_comm_agree(comm, ch_trainer_check_weights(&d->run->trainer, e.loss))); /* what is kept must be good */
  double begin = ch_machine_seconds();
  ch_watch_section(comm, "checkpoint of step", d->run->trainer.step);
  int code = ch_comm_agree(comm, ch_metrics_sync(&d->metrics, &d->run->metrics_bytes));
  if (!code) code = ch_comm_agree(comm, ch_checkpoint_save(d->run, path));
  if (code == CHOIR_ERROR_FULL) ch_room_owe(&d->room, ch_machine_seconds() - begin);
  if (code) return code == CHOIR_ERROR_FULL ? CHOIR_OK : code;
  d->room.owed = 0;
  d->room.saved_step = d->run->trainer.step;
  ch_metrics_checkpoint(&d->metrics, d->run->trainer.step, path);
  CH_TRY(ch_comm_agree(comm, comm->rank ? CHOIR_OK : ch_checkpoint_name_best(d->run)));
  e.kind = CHOIR_EVENT_CHECKPOINT;
  e.text = path;
  tell(d, &e);
  return CHOIR_OK;
}

/* Evaluates, and saves a step that is better than all before it; *tried: to save it. */
static int evaluate_step(train_loop_state *d, choir_train_event e, int *tried) {
  ch_run *run = d->run;
  double loss;
  CH_TRY(evaluate_run(d, e, &loss));
  if (isnan(loss) || (run->best_step && loss >= run->best_loss)) return CHOIR_OK;
  run->best_step = run->trainer.step, run->best_loss = loss;
  *tried = 1;
  return checkpoint(d, e);
}

static double elapsed(const train_loop_state *d) { return ch_machine_seconds() - d->run->started; }

/* Steps that fit into what is left of the minutes, once only the share that is to be cooled is left of them; else 0. */
static int64_t steps_to_cool(const train_loop_state *d) {
  double limit = 60 * d->options->minutes, now = elapsed(d);
  if (now < (1 - d->run->config.train.cooldown_steps) * limit) return 0;
  double fit = (limit - now) / now * (double)(d->run->trainer.step - d->first_step);
  return fit > 1 ? (int64_t)fmin(fit, (double)INT_MAX) : 1;
}

/* The run becomes one whose steps, and those of its cooldown, were known before: it resumes and repeats like that. */
static int cool_by_clock(train_loop_state *d) {
  ch_run *run = d->run;
  choir_train_config *c = &run->config.train;
  int64_t step = run->trainer.step, known = c->steps - ch_config_steps(c->cooldown_steps, c->steps);
  if (!(d->options->minutes > 0) || !(c->cooldown_steps > 0 && c->cooldown_steps < 1) || step >= known) return CHOIR_OK;
  int64_t left = ch_comm_max(comm_of(run), steps_to_cool(d));
  if (!left) return CHOIR_OK;
  d->cooling = 1;
  c->steps = step + left;
  c->cooldown_steps = (double)left;
  run->trainer.model->config.train = *c;
  ch_notice("the learning rate falls from here to the last step, %" PRId64 ", which the time leaves room for",
            c->steps);
  if (comm_of(run)->rank) return ch_comm_agree(comm_of(run), CHOIR_OK);
  ch_metrics_run(&d->metrics, run);
  return ch_comm_agree(comm_of(run), choir_config_save(&run->config, CH_IN(run->out, CH_RUN_CONFIG)));
}

/* A rank wishes one of these; of several wishes the last counts. */
typedef enum { GO_ON, TRY_AGAIN, STOP, GIVE_UP } wish;

static int ask_all(train_loop_state *d, wish *wished) {
  const ch_comm *comm = comm_of(d->run);
  if (d->options->minutes > 0 && !d->cooling && elapsed(d) >= 60 * d->options->minutes) d->stop = 1;
  int code = ch_data_intact(d->run->data); /* what was learned from other data is not saved */
  CH_TRY(ch_comm_agree(comm, code ? code : ch_room_watch(&d->room, &d->metrics.results)));
  *wished = d->room.given_up ? GIVE_UP : d->stop ? STOP : ch_room_try_again(&d->room) ? TRY_AGAIN : GO_ON;
  *wished = (wish)ch_comm_max(comm, *wished);
  d->stopping |= *wished >= STOP;
  return CHOIR_OK;
}

static int step_train(train_loop_state *d, choir_train_event *e) {
  ch_run *run = d->run;
  const choir_train_config *c = &run->config.train;
  ch_step_result r;
  const ch_exec *x = &run->trainer.model->x;
  double begin = ch_machine_seconds(), cpu = ch_machine_cpu_seconds();
  const ch_traffic before = ch_traffic_of(comm_of(run)); /* of evaluations and checkpoints, too */
  ch_watch_section(comm_of(run), "step", run->trainer.step + 1);
  CH_TRY(ch_run_step(run, &r));
  double seconds = ch_machine_seconds() - begin;
  cpu = (ch_machine_cpu_seconds() - cpu) / (seconds * x->threads);
  const ch_rank_times ranks = ch_rank_times_since(comm_of(run), &before);
  *e = step_event(d, &r, seconds, &ranks);
  e->cpu_share = x->host || ranks.ranks > 1 ? (double)NAN : cpu;
  write_step(d, &r, e, &ranks);
  tell(d, e);
  int tried = 0;
  CH_TRY(cool_by_clock(d));
  if (ch_trainer_is_due(&run->trainer, c->eval_every)) CH_TRY(evaluate_step(d, *e, &tried));
  wish wished;
  CH_TRY(ask_all(d, &wished));
  if (!tried && (wished != GO_ON || ch_trainer_is_due(&run->trainer, c->checkpoint_every))) {
    CH_TRY(checkpoint(d, *e));
    d->stopping |= ch_comm_max(comm_of(run), d->stop) != 0; /* asked while it was written */
  }
  tell_notices(d);
  return CHOIR_OK;
}

/* All steps are done and not saved: waits as long as the limit allows, or until the caller has enough of it. */
static int wait_for_room(train_loop_state *d, choir_train_event e) {
  double told = 0;
  while (d->room.owed && !d->stopping) {
    wish wished;
    CH_TRY(ask_all(d, &wished));
    if (wished == TRY_AGAIN || wished == GIVE_UP) CH_TRY(checkpoint(d, e));
    tell_notices(d);
    if (!d->room.owed) break;
    choir_train_event waiting = make_event(d, CHOIR_EVENT_WAITING);
    waiting.seconds_left = ch_room_seconds_left(&d->room);
    waiting.text = d->room.why;
    if (ch_machine_seconds() - told >= 1) {
      tell(d, &waiting);
      told = ch_machine_seconds();
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  }
  return CHOIR_OK;
}

static int loop(train_loop_state *d) {
  ch_run *run = d->run;
  choir_train_event e = make_event(d, CHOIR_EVENT_STEP);
  while (run->trainer.step < run->config.train.steps && !d->stopping) CH_TRY(step_train(d, &e));
  int64_t steps = run->config.train.steps;
  if (d->room.owed && run->trainer.step == steps) CH_TRY(wait_for_room(d, e));
  if (d->room.owed) return ch_room_error(&d->room, run->trainer.step, steps);
  if (run->trainer.step == steps) return CHOIR_OK;
  /* The screen and pages shall show the final loss. The checkpoint does not know of this line, so a resumed run cuts it
   * off and its log equals the log of an uninterrupted run. */
  double loss;
  if (!ch_trainer_is_due(&run->trainer, run->config.train.eval_every)) CH_TRY(evaluate_run(d, e, &loss));
  return ch_trainer_stopped(&run->trainer);
}

static int prepare_loop(train_loop_state *d) {
  const ch_run *run = d->run;
  choir_config_costs costs;
  ch_peak peak;
  CH_TRY(choir_config_cost(&run->config, &costs));
  const ch_exec *x = &run->trainer.model->x;
  CH_TRY(ch_backend_peak(x->ops->name, x->threads, 0.15, 0, &peak));
  d->flops_per_token = costs.train_flops_per_token;
  d->peak_gflops = x->compute == CH_COMPUTE_BF16 ? peak.bf16_gflops : peak.fp32_gflops;
  d->begin = ch_machine_seconds();
  /* Not the default: not every CPU has it. No machine is more than 16 times as fast in it: one that seems so was busy
   * with something else while fp32 was measured. */
  double ratio = peak.bf16_gflops / peak.fp32_gflops;
  if (x->compute == CH_COMPUTE_FP32 && !d->first_step && ratio > 1.3 && ratio <= 16)
    ch_notice(
        "this machine multiplies %.1f times as fast in bf16 as in fp32 (measured now); runs with train.compute=bf16 "
        "ended within 0.003 nats of those without (docs/training.md)",
        ratio);
  return CHOIR_OK;
}

/* Logs are the first rank's. */
static int open_metrics(train_loop_state *d) {
  const ch_run *run = d->run;
  int code = CHOIR_OK;
  d->metrics = (ch_metrics){.results.fd = -1, .timing.fd = -1};
  if (!comm_of(run)->rank) code = ch_metrics_open(&d->metrics, run->out, run->metrics_bytes);
  code = ch_comm_agree(comm_of(run), code);
  if (code) ch_metrics_close(&d->metrics);
  return code;
}

int ch_run_loop(ch_run *run, const choir_train_options *options) {
  train_loop_state d = {.run = run, .options = options, .first_step = run->trainer.step};
  d.room = (ch_room){.limit = 60 * options->disk_minutes, .saved_step = run->trainer.step};
  tell_notices(&d);
  d.stop = 0;               /* before the first step there is nothing to save */
  CH_TRY(open_metrics(&d)); /* cut back, even where no step is left */
  if (!comm_of(run)->rank) ch_state_rotate(run->out, &run->trainer, run->best_step ? run->best_step : -1);
  int code = ch_comm_agree(comm_of(run), comm_of(run)->rank ? CHOIR_OK : ch_checkpoint_name_best(run));
  if (!code && run->trainer.step < run->config.train.steps) {
    if (!run->metrics_bytes || run->config_changed) ch_metrics_run(&d.metrics, run);
    ch_metrics_process(&d.metrics, run);
    code = ch_comm_agree(comm_of(run), prepare_loop(&d));
    tell_memory(&d);
    if (!code) code = loop(&d);
  }
  ch_metrics_close(&d.metrics);
  return code;
}
