/* Fine-tuning as a kind of run: examples are its source, accuracy on the dev set is its evaluation. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/format.h"
#include "model/config.h"
#include "task/tune.h"

static const ch_tune *of(const ch_run *run) { return (const ch_tune *)(const void *)run; }

int64_t ch_tune_epoch_steps(const ch_tune *t) {
  int a = t->run.config.train.accumulate;
  return (t->sampler.batches + a - 1) / a;
}

/* The index of the next micro-batch, from the number of examples so far: each epoch has all examples, and one of its
 * batches may have fewer than the others. */
static int64_t next_batch(const ch_tune *t) {
  int64_t count = t->train.examples.count, of_epoch = t->examples % count;
  return t->examples / count * t->sampler.batches + (of_epoch + t->sampler.B - 1) / t->sampler.B;
}

static const ch_batch *next_examples(ch_run *run, ch_step_counts *counts) {
  ch_tune *t = (ch_tune *)(void *)run;
  const ch_train_config *c = &run->config.train;
  int64_t first = next_batch(t);
  *counts = (ch_step_counts){0};
  for (int a = 0; a < c->accumulate; a++) {
    counts->sequences += ch_sampler_get(&t->sampler, first + a, a, &counts->tokens);
    counts->positions += (int64_t)c->batch_sequences * t->sampler.batch[a].T;
  }
  run->tokens += counts->tokens;
  t->examples += counts->sequences;
  run->epoch = (double)(first + c->accumulate) / (double)t->sampler.batches;
  t->step_tokens = counts->tokens;
  return t->sampler.batch;
}

static void describe_step(const ch_run *run, const choir_event *e, char *text, size_t size) {
  ch_format(text, size, ",\"examples\":%" PRId64 ",\"tokens\":%" PRId64, e->speed->sequences, of(run)->step_tokens);
}

/* Evaluates with threshold routing if the router has thresholds, and with batch routing if that differs; for a model
 * that is trained by masking, each text by itself. */
static int measure_task(ch_tune *t) {
  choir_model *model = t->run.trainer.model;
  const choir_score_options score = CHOIR_SCORE_OPTIONS_INIT;
  const choir_task_options o = {.batch_sequences = (int)t->settings.batch_sequences, .score = &score};
  t->measures = 0;
  if (ch_config_masked(&model->config) || ch_router_can_be_causal(model->net.router))
    CH_TRY(ch_set_measure(model, &t->dev, 0, &o, NULL, &t->measure[t->measures++]));
  if (!o.batch_sequences || !ch_set_has_batches(model)) return CHOIR_OK;
  return ch_set_measure(model, &t->dev, 1, &o, NULL, &t->measure[t->measures++]);
}

/* Of equal evaluations the first is the best. */
static int evaluate_dev(ch_run *run, ch_metrics *metrics, choir_event *e) {
  ch_tune *t = (ch_tune *)(void *)run;
  CH_TRY(measure_task(t));
  int64_t correct = t->measure[0].correct;
  if (ch_run_evaluated(run, (ch_best){.correct = correct}, correct > run->best.correct))
    CH_TRY(ch_tune_result_make(t, &run->best.result));
  json_t *line = json_pack("{s:s, s:I}", "event", "dev", "step", (json_int_t)run->trainer.step);
  for (int i = 0; i < t->measures; i++) ch_json_put(line, i ? "batch" : "own", ch_measure_json(&t->measure[i]));
  ch_json_put(line, "best_step", json_integer(run->best.step));
  ch_metrics_line(metrics, line);
  e->measure = t->measure, e->measures = t->measures;
  if (run->best.step) e->best = (double)run->best.correct / (double)t->dev.examples.count;
  return CHOIR_OK;
}

static int write_result(ch_run *run) { return ch_tune_result_write((ch_tune *)(void *)run); }

static void write_head(ch_metrics *metrics, const ch_run *run) {
  const ch_tune *t = of(run);
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
  ch_json_put(line, "config", ch_config_json(&run->config));
  ch_metrics_line(metrics, line);
}

static int list_counters(ch_run *run, ch_counter *c) {
  ch_tune *t = (ch_tune *)(void *)run;
  const ch_counter all[] = {{.name = "tune.step", .value = &run->trainer.step},
                            {.name = "tune.metrics_bytes", .value = &run->metrics_bytes},
                            {.name = "tune.best_step", .value = &run->best.step},
                            {.name = "tune.best_correct", .value = &run->best.correct},
                            {.name = "tune.waited", .value = &run->waited},
                            {.name = "tune.examples", .value = &t->examples, .optional = 1},
                            {.name = "tune.tokens", .value = &run->tokens, .optional = 1},
                            {.name = "tune.train_hash", .value = &t->hash[0], .of = t->train.path},
                            {.name = "tune.dev_hash", .value = &t->hash[1], .of = t->dev.path}};
  _Static_assert(sizeof all <= CH_COUNTERS * sizeof *all, "state.h has room for them");
  memcpy(c, all, sizeof all);
  return sizeof all / sizeof *all;
}

/* Counters of a checkpoint that lacks them: the tokens of its steps are unknown. */
static void fill_counters(ch_run *run, const choir_config *made_with) {
  ch_tune *t = (ch_tune *)(void *)run;
  const ch_train_config *c = &made_with->train;
  int64_t batches = run->trainer.step * c->accumulate, count = t->train.examples.count,
          each = (count + c->batch_sequences - 1) / c->batch_sequences;
  if (t->examples < 0) t->examples = batches / each * count + batches % each * c->batch_sequences;
  if (run->tokens < 0) run->tokens = 0;
}

const ch_run_kind ch_run_tuning = {.next = next_examples,
                                   .describe_step = describe_step,
                                   .evaluate = evaluate_dev,
                                   .write_result = write_result,
                                   .write_head = write_head,
                                   .list_counters = list_counters,
                                   .fill_counters = fill_counters};
