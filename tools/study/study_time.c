/* How long a step of every arm takes: measured in turns, so that whatever else the machine does falls on all alike.
 * Runs that share the machine say nothing about it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/machine.h"
#include "data/reader.h"
#include "file/json.h"
#include "op/op.h"
#include "study/study.h"
#include "study/study_statistics.h"
#include "train/step.h"

/* Turns; windows of tokens in one turn, which are taken again where more steps are; steps of a turn at most. */
enum { ROUNDS = 9, WINDOWS = 8, STEPS_MOST = 64 };
static const double turn_seconds = 0.4; /* at least, unless steps are so many; and at least three steps */

/* An op table whose expert work takes its time. The first member: an op that is handed x finds the rest by x->ops. */
typedef struct clocked {
  ch_ops ops;
  const ch_ops *inner;
  double seconds;
} clocked;

#define CLOCKED(op, args_type)                               \
  static void clocked_##op(ch_exec *x, const args_type *a) { \
    clocked *c = (clocked *)x->ops;                          \
    double begin = ch_machine_seconds();                     \
    c->inner->op(x, a);                                      \
    c->seconds += ch_machine_seconds() - begin;              \
  }
CLOCKED(expert_gemm, ch_expert_gemm_args)

/* One turn of one arm. */
typedef struct turn {
  double step, expert; /* seconds of a step; of its work in experts */
  double load, demand; /* fullest expert over the mean, mean over layers: tokens it holds, tokens that asked for it */
} turn;

/* Of one step, added to; a step at a time, because sums over steps would even out. */
static void add_imbalance(const ch_transformer *net, turn *t) {
  if (!net->moe_layers) t->load += 1, t->demand += 1;
  for (int l = 0; l < net->moe_layers; l++) {
    const choir_route_stats *s = &net->stats[l];
    int64_t most_load = 0, most_demand = 0;
    double asked = 0;
    for (int i = 0; i < s->experts; i++) {
      if (s->load[i] > most_load) most_load = s->load[i];
      if (s->demand[i] > most_demand) most_demand = s->demand[i];
      asked += (double)s->demand[i];
    }
    t->load += (double)most_load * s->experts / (double)s->assignments / net->moe_layers;
    t->demand += (double)most_demand * s->experts / asked / net->moe_layers;
  }
}

static void split(const int32_t *windows, int B, int T, int32_t *token, int32_t *target) {
  for (int64_t b = 0; b < B; b++)
    for (int64_t i = 0; i < T; i++) {
      token[b * T + i] = windows[b * (T + 1) + i];
      target[b * T + i] = windows[b * (T + 1) + i + 1];
    }
}

/* The median step: others may take the CPU away at any time. The first is not timed. */
static int take_steps(ch_trainer *trainer, const int32_t *windows, int32_t *token, turn *t) {
  choir_model *model = trainer->model;
  const choir_train_config *train = &model->config.train;
  int B = train->accumulate * train->batch_sequences, T = train->sequence_length, count = 0, code = CHOIR_OK;
  double seconds[STEPS_MOST], expert = 0, sum = 0;
  ch_step_result ignored;
  clocked c = {.ops = *model->x.ops, .inner = model->x.ops};
  c.ops.expert_gemm = clocked_expert_gemm;
  model->x.ops = &c.ops;
  for (int s = 0; !code && s <= STEPS_MOST && (s < 4 || sum < turn_seconds); s++) {
    split(windows + (int64_t)(s % WINDOWS) * B * (T + 1), B, T, token, token + (int64_t)B * T);
    c.seconds = 0;
    double begin = ch_machine_seconds();
    code = ch_trainer_step(trainer, token, token + (int64_t)B * T, &ignored);
    if (s == 0 || code) continue;
    seconds[count] = ch_machine_seconds() - begin;
    sum += seconds[count++];
    expert += c.seconds;
    add_imbalance(&model->net, t);
  }
  model->x.ops = c.inner;
  if (code) return code;
  t->step = ch_median(seconds, count);
  t->expert = t->step * expert / sum;
  t->load /= count, t->demand /= count;
  return CHOIR_OK;
}

/* On other windows of the data in every round. */
static int time_trainer(ch_trainer *trainer, const choir_data *data, int round, turn *t) {
  const choir_train_config *train = &trainer->model->config.train;
  int sequences = WINDOWS * train->accumulate * train->batch_sequences;
  int64_t n = ch_step_tokens(train), windows = (int64_t)sequences * (train->sequence_length + 1);
  int32_t *buffer = malloc((size_t)(windows + 2 * n) * sizeof *buffer);
  if (!buffer) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the tokens of %d steps", WINDOWS);
  ch_data_position position = {(uint64_t)(round * sequences)};
  ch_data_next(data, 1, train->sequence_length, &position, sequences, buffer);
  int code = take_steps(trainer, buffer, buffer + windows, t);
  free(buffer);
  return code;
}

/* From the arm's first run: what its experts are asked for depends on what it has learnt. */
static int one_turn(const ch_study *s, int arm, int threads, const choir_data *data, int round, turn *t) {
  choir_config config;
  choir_model *model;
  ch_trainer trainer;
  char name[CH_RUN_NAME], path[PATH_MAX];
  choir_run_options run = CHOIR_RUN_OPTIONS_INIT;
  run.threads = threads;
  ch_study_config(s, arm, s->arm[arm].rate, 1, s->steps, &config);
  CH_TRY(ch_study_run_name(s, &config, name));
  ch_study_run_path(s, name, path);
  CH_TRY(choir_model_load(path, &run, &model));
  int code = ch_trainer_plan(model, &trainer);
  if (!code) code = ch_trainer_commit(&trainer);
  if (!code) code = time_trainer(&trainer, data, round, t);
  ch_trainer_free(&trainer);
  return code;
}

static int trained(const ch_study *s, int arm) {
  choir_config config;
  char name[CH_RUN_NAME], path[PATH_MAX], file[PATH_MAX + 16];
  if (!(s->arm[arm].rate > 0)) return 0;
  ch_study_config(s, arm, s->arm[arm].rate, 1, s->steps, &config);
  if (ch_study_run_name(s, &config, name)) return 0;
  ch_study_run_path(s, name, path);
  snprintf(file, sizeof file, "%s/checkpoints", path);
  ch_study_curve curve;
  if (access(file, R_OK) || ch_study_curve_read(path, s->steps, &curve)) return 0;
  int complete = curve.complete;
  ch_study_curve_free(&curve);
  return complete;
}

/* One array of rounds for each figure of each arm. */
static json_t *turns_json(const ch_study *s, const turn *turns, int threads) {
  json_t *root = json_pack("{s:i, s:i}", "threads", threads, "rounds", ROUNDS), *arms = json_object();
  for (int i = 0; i < s->arms; i++) {
    json_t *step = json_array(), *expert = json_array(), *load = json_array(), *demand = json_array();
    for (int r = 0; r < ROUNDS; r++) {
      const turn *t = &turns[i * ROUNDS + r];
      if (!(t->step > 0)) continue;
      ch_json_add(step, json_real(t->step));
      ch_json_add(expert, json_real(t->expert));
      ch_json_add(load, json_real(t->load));
      ch_json_add(demand, json_real(t->demand));
    }
    ch_json_put(arms, s->arm[i].name,
                json_pack("{s:o, s:o, s:o, s:o}", "step", step, "expert", expert, "load", load, "demand", demand));
  }
  ch_json_put(root, "arms", arms);
  return root;
}

static int all_turns(const ch_study *s, int threads, const choir_data *data, turn *turns, int (*stop)(void *),
                     void *context) {
  for (int r = 0; r < ROUNDS; r++)
    for (int i = 0; i < s->arms; i++) {
      if (stop(context)) return ch_error(CHOIR_ERROR_INTERRUPTED, "stopped while steps were timed");
      if (trained(s, i)) CH_TRY(one_turn(s, i, threads, data, r, &turns[i * ROUNDS + r]));
    }
  return CHOIR_OK;
}

int ch_study_time(const ch_study *s, int threads, int (*stop)(void *context), void *context) {
  char path[PATH_MAX + 16];
  choir_data *data;
  snprintf(path, sizeof path, "%s/time.json", s->own);
  turn *turns = calloc((size_t)(s->arms * ROUNDS), sizeof *turns);
  if (!turns) return ch_error(CHOIR_ERROR_MEMORY, "no memory for %d times", s->arms * ROUNDS);
  int code = choir_data_open(s->data, &data);
  if (!code) {
    code = all_turns(s, threads, data, turns, stop, context);
    choir_data_close(data);
  }
  if (!code) code = ch_json_save(turns_json(s, turns, threads), path);
  free(turns);
  return code;
}
