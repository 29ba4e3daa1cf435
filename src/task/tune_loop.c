/* The loop of a fine-tuning run: steps, evaluations, checkpoints. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>

#include "base/format.h"
#include "base/machine.h"
#include "model/config.h"
#include "task/tune.h"
#include "train/state.h"

/* One process's way through a run. Time, speed and padding are of the process and not of the run. */
typedef struct {
  ch_tune *t;
  int stop; /* the caller has asked */
  double begin, training;
  int64_t first_step, examples, tokens, positions;
} tune_loop_state;

int64_t ch_tune_epoch_steps(const ch_tune *t) {
  int a = t->config.train.accumulate;
  return (t->sampler.batches + a - 1) / a;
}

/* Nonzero when the run has taken all its steps, or waited long enough for a better evaluation. */
static int is_done(const ch_tune *t) {
  return t->trainer.step >= t->config.train.steps ||
         (t->settings.patience > 0 && t->state.waited >= t->settings.patience);
}

static choir_finetune_event make_event(const tune_loop_state *d, choir_event_kind kind) {
  const ch_tune *t = d->t;
  const ch_tune_state *s = &t->state;
  int64_t done = t->trainer.step - d->first_step, left = t->config.train.steps - t->trainer.step;
  double batches = (double)t->trainer.step * t->config.train.accumulate;
  return (choir_finetune_event){
      .kind = kind,
      .step = t->trainer.step,
      .steps = t->config.train.steps,
      .epoch = batches / (double)t->sampler.batches,
      .examples_per_second = d->training > 0 ? (double)d->examples / d->training : 0,
      .padding = d->positions ? 1 - (double)d->tokens / (double)d->positions : 0,
      .seconds_left = done ? (ch_machine_seconds() - d->begin) / (double)done * (double)left : 0,
      .best = s->best_step ? (double)s->best_correct / (double)t->dev.examples.count : (double)NAN,
      .best_step = s->best_step};
}

static void tell(tune_loop_state *d, const choir_finetune_event *e) {
  const choir_finetune_options *o = d->t->options;
  if (o->event && o->event(o->context, e)) d->stop = 1;
}

static int step_tune(tune_loop_state *d) {
  ch_tune *t = d->t;
  ch_step_result r;
  int micros = t->config.train.accumulate, examples = 0;
  int64_t tokens = 0;
  double begin = ch_machine_seconds();
  for (int a = 0; a < micros; a++) {
    examples += ch_sampler_get(&t->sampler, t->trainer.step * micros + a, a, &tokens);
    d->positions += (int64_t)t->config.train.batch_sequences * t->sampler.batch[a].T;
  }
  CH_TRY(ch_trainer_step_on(&t->trainer, t->sampler.batch, &r));
  d->training += ch_machine_seconds() - begin;
  d->examples += examples;
  d->tokens += tokens;
  char counts[80];
  ch_format(counts, sizeof counts, "\"examples\":%d,\"tokens\":%" PRId64, examples, tokens);
  ch_metrics_step(&t->metrics, t->trainer.step, &r, counts);
  choir_finetune_event e = make_event(d, CHOIR_EVENT_STEP);
  e.loss = r.loss, e.rate = r.rate, e.gradient_norm = r.gradient_norm;
  tell(d, &e);
  return CHOIR_OK;
}

/* By thresholds where the router has them, and by the batch where that is another. */
static int measure_task(ch_tune *t, choir_task_measure *m, int *measures) {
  choir_model *model = t->trainer.model;
  choir_task_options o = CHOIR_TASK_OPTIONS_INIT;
  o.batch_sequences = (int)t->settings.batch_sequences;
  *measures = 0;
  if (ch_router_can_be_causal(model->net.router))
    CH_TRY(ch_set_measure(model, &t->dev, 0, &o, NULL, &m[(*measures)++]));
  if (!o.batch_sequences || !choir_model_looks_across_tokens(model)) return CHOIR_OK;
  return ch_set_measure(model, &t->dev, 1, &o, NULL, &m[(*measures)++]);
}

static int checkpoint(tune_loop_state *d) {
  char path[PATH_MAX];
  CH_TRY(ch_trainer_check_weights(&d->t->trainer, 0));
  CH_TRY(ch_metrics_sync(&d->t->metrics, &d->t->state.metrics_bytes));
  CH_TRY(ch_tune_save(d->t, path));
  ch_metrics_checkpoint(&d->t->metrics, d->t->trainer.step, path);
  choir_finetune_event e = make_event(d, CHOIR_EVENT_CHECKPOINT);
  e.text = path;
  tell(d, &e);
  return CHOIR_OK;
}

static void tell_evaluation(tune_loop_state *d, const choir_task_measure *m, int measures) {
  ch_tune *t = d->t;
  json_t *line = json_pack("{s:s, s:I}", "event", "dev", "step", (json_int_t)t->trainer.step);
  for (int i = 0; i < measures; i++) ch_json_put(line, i ? "batch" : "own", ch_measure_json(&m[i]));
  ch_json_put(line, "best_step", json_integer(t->state.best_step));
  ch_metrics_line(&t->metrics, line);
  choir_finetune_event e = make_event(d, CHOIR_EVENT_EVAL);
  e.measure = m, e.measures = measures;
  tell(d, &e);
}

/* The first of equal evaluations is the best. Its result is written before the checkpoint that knows of it: a run
 * killed between the two evaluates again. A `stopped` run evaluates only for the screen and pages, which shall show the
 * final score. The checkpoint does not know of this line, which chooses no best; so a resumed run cuts it off and its
 * log equals the log of an uninterrupted run. */
static int evaluate_task(tune_loop_state *d, int stopped) {
  ch_tune *t = d->t;
  ch_tune_state *s = &t->state;
  choir_task_measure m[2];
  int measures;
  CH_TRY(measure_task(t, m, &measures));
  int better = !stopped && (!s->best_step || m[0].correct > s->best_correct);
  if (!stopped) s->waited = better ? 0 : s->waited + 1;
  if (better) s->best_step = t->trainer.step, s->best_correct = m[0].correct;
  tell_evaluation(d, m, measures);
  if (!better) return CHOIR_OK;
  CH_TRY(ch_tune_result(t, m, measures));
  return checkpoint(d);
}

static int loop(tune_loop_state *d) {
  ch_tune *t = d->t;
  const choir_train_config *c = &t->config.train;
  int64_t every = c->eval_every ? c->eval_every : ch_tune_epoch_steps(t);
  choir_finetune_event e = make_event(d, CHOIR_EVENT_MEMORY);
  e.memory = &t->memory;
  if (t->options->event) t->options->event(t->options->context, &e);
  while (!is_done(t) && !d->stop) {
    CH_TRY(step_tune(d));
    int better = 0;
    if (ch_trainer_is_due(&t->trainer, every)) {
      CH_TRY(evaluate_task(d, 0));
      better = t->state.best_step == t->trainer.step; /* its checkpoint is there */
    }
    if (!better && (d->stop || is_done(t) || ch_trainer_is_due(&t->trainer, c->checkpoint_every)))
      CH_TRY(checkpoint(d));
  }
  if (is_done(t)) return CHOIR_OK;
  if (!ch_trainer_is_due(&t->trainer, every)) CH_TRY(evaluate_task(d, 1));
  return ch_trainer_stopped(&t->trainer);
}

static void write_head(ch_tune *t) {
  double majority;
  ch_majority(t->task, &t->dev.examples, &majority);
  const ch_set *set[2] = {&t->train, &t->dev};
  json_t *line =
      json_pack("{s:s, s:s, s:s}", "event", "finetune", "task", choir_task_name(t->task), "from", t->settings.from);
  ch_json_put(line, "majority", json_real(majority));
  for (int i = 0; i < 2; i++)
    ch_json_put(line, i ? "dev" : "train",
                json_pack("{s:I, s:I, s:I, s:I, s:i}", "examples", (json_int_t)set[i]->examples.count, "malformed",
                          (json_int_t)set[i]->rows.malformed, "unlabelled", (json_int_t)set[i]->examples.unlabelled,
                          "cut", (json_int_t)set[i]->examples.cut, "longest", set[i]->examples.longest));
  ch_json_put(line, "config", ch_config_json(&t->config));
  ch_metrics_line(&t->metrics, line);
}

int ch_tune_loop(ch_tune *t) {
  tune_loop_state d = {.t = t, .first_step = t->trainer.step, .begin = ch_machine_seconds()};
  ch_state_rotate(t->out, &t->trainer, t->state.best_step);
  if (is_done(t)) return CHOIR_OK;
  CH_TRY(ch_metrics_open(&t->metrics, t->out, t->state.metrics_bytes));
  if (!t->state.metrics_bytes) write_head(t);
  int code = loop(&d);
  ch_metrics_close(&t->metrics);
  return code;
}
