/* The loop over a run's steps: evaluations, checkpoints, events, waiting while the disk is full, the final result. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "base/machine.h"
#include "comm/collective.h"
#include "comm/watch.h"
#include "file/run_files.h"
#include "model/config.h"
#include "op/backend.h"
#include "train/log.h"
#include "train/metrics.h"
#include "train/run.h"

/* Work that is pending after a step. The same on all ranks, except for `asked`. */
typedef struct pending {
  int checkpoint; /* a checkpoint was due while the disk was full */
  int best;       /* RUN/best or the result is not yet that of run->best, because the disk was full */
  int asked;      /* a stop was requested on this rank, by the caller or by its clock; agree() informs all ranks */
  int stop;       /* no further step: a stop was requested on some rank, or the disk was full for too long */
} pending;

/* The state of one process in a run. Timing belongs to the process and not to the run. */
typedef struct loop_state {
  ch_run *run;
  ch_metrics metrics;
  ch_disk_wait disk; /* full disk: state of the wait */
  pending pending;
  int cooling;  /* train.steps has been set by the clock: the same on all ranks */
  double begin; /* seconds on the clock */
  int64_t first_step;
  double peak_gflops;
} loop_state;

static const ch_comm *comm_of(const ch_run *run) { return run->trainer.model->x.comm; }

int ch_run_is_done(const ch_run *run) {
  return run->trainer.step >= run->config.train.steps || (run->patience > 0 && run->waited >= run->patience);
}

int ch_run_evaluated(ch_run *run, ch_best evaluation, int better) {
  better |= !run->best.step;
  run->waited = better ? 0 : run->waited + 1;
  if (!better) return 0;
  free(run->before.result);
  run->before = run->best;
  run->best = evaluation;
  run->best.step = run->trainer.step;
  return 1;
}

void ch_run_forget_best(ch_run *run) {
  free(run->best.result);
  run->best = run->before;
  run->before = (ch_best){0};
}

/* ---- events */

static choir_event make_event(const loop_state *d, choir_event_kind kind) {
  const ch_run *run = d->run;
  return (choir_event){.kind = kind,
                       .step = run->trainer.step,
                       .steps = run->config.train.steps,
                       .tokens = run->tokens,
                       .epoch = run->epoch,
                       .objective = ch_objectives[run->config.train.objective],
                       .best = (double)NAN};
}

static void emit(loop_state *d, const choir_event *e) {
  const choir_train_options *o = d->run->options;
  if (o->event && o->event(o->context, e)) d->pending.asked = 1;
}

/* Emits the notices that have gathered since the last step. */
static void emit_notices(loop_state *d) {
  choir_event e = make_event(d, CHOIR_EVENT_NOTICE);
  e.notice = choir_notices();
  if (*e.notice) emit(d, &e);
}

/* Emits the memory event. Before the first step there is nothing to save, so a request to stop is ignored here. */
static void emit_memory(loop_state *d) {
  const ch_run *run = d->run;
  choir_event e = make_event(d, CHOIR_EVENT_MEMORY);
  e.memory = &run->memory;
  if (*run->layout) e.layout = run->layout;
  emit(d, &e);
  d->pending.asked = 0;
}

/* ---- a step */

static double elapsed(const loop_state *d) { return ch_machine_seconds() - d->run->started; }

/* Seconds until all steps are done at this process's mean speed, or until the time limit. */
static double seconds_left(const loop_state *d) {
  const ch_run *run = d->run;
  int64_t step = run->trainer.step;
  double speed = (ch_machine_seconds() - d->begin) / (double)(step - d->first_step);
  double left = speed * (double)(run->config.train.steps - step);
  if (run->options->minutes > 0 && !d->cooling) left = fmin(left, 60 * run->options->minutes - elapsed(d));
  return fmax(left, 0);
}

/* The traffic of this rank so far. */
static ch_traffic traffic_of(const ch_comm *comm) { return comm->traffic ? *comm->traffic : (ch_traffic){0}; }

/* Measures the traffic of all ranks since `before`. The rank with the least time in exchanges is the straggler for
 * which the others waited. Collective. */
static void measure_ranks(const ch_comm *comm, const ch_traffic *before, choir_step_speed *s) {
  double waited[CH_RANKS];
  const ch_traffic now = traffic_of(comm);
  s->ranks = comm->size;
  s->sent_bytes = now.bytes - before->bytes;
  s->sent_messages = now.messages - before->messages;
  s->waited = now.seconds - before->seconds;
  ch_comm_gather(comm, "seconds waited", &s->waited, waited, sizeof s->waited);
  for (int r = 1; r < s->ranks; r++)
    if (waited[r] < waited[s->slowest_rank]) s->slowest_rank = r;
  s->waited_least = waited[s->slowest_rank];
}

int ch_run_step(ch_run *run, ch_step_counts *counts, choir_trainer_result *r) {
  const ch_batch *batch = run->kind->next(run, counts);
  return ch_trainer_step_on(&run->trainer, batch, r);
}

/* Takes a step and measures its speed. */
static int take_step(const loop_state *d, choir_trainer_result *r, choir_step_speed *s) {
  ch_run *run = d->run;
  const ch_exec *x = &run->trainer.model->x;
  const ch_traffic before = traffic_of(x->comm); /* includes evaluations and checkpoints */
  ch_step_counts counts;
  double begin = ch_machine_seconds(), cpu = ch_machine_cpu_seconds();
  ch_watch_section(x->comm, "step", run->trainer.step + 1);
  CH_TRY(ch_run_step(run, &counts, r));
  double seconds = ch_machine_seconds() - begin, speed = (double)counts.tokens / seconds;
  cpu = (ch_machine_cpu_seconds() - cpu) / (seconds * x->threads);
  *s = (choir_step_speed){.seconds = seconds,
                          .sequences = counts.sequences,
                          .padding = 1 - (double)counts.tokens / (double)counts.positions,
                          .tokens_per_second = speed,
                          .gflops = speed * run->flops_per_token * 1e-9,
                          .peak_gflops = d->peak_gflops};
  measure_ranks(x->comm, &before, s);
  s->cpu_share = x->host || s->ranks > 1 ? (double)NAN : cpu;
  return CHOIR_OK;
}

static int step_run(loop_state *d, double *loss) {
  ch_run *run = d->run;
  choir_trainer_result r;
  choir_step_speed speed;
  char fields[80];
  CH_TRY(take_step(d, &r, &speed));
  choir_event e = make_event(d, CHOIR_EVENT_STEP);
  e.result = &r, e.speed = &speed;
  e.seconds_left = seconds_left(d);
  run->kind->describe_step(run, &e, fields, sizeof fields);
  ch_metrics_step(&d->metrics, &r, fields);
  ch_metrics_timing(&d->metrics, e.step, &speed);
  emit(d, &e);
  *loss = r.loss;
  return CHOIR_OK;
}

/* ---- evaluations and checkpoints */

static int evaluate(loop_state *d) {
  choir_event e = make_event(d, CHOIR_EVENT_EVAL);
  CH_TRY(d->run->kind->evaluate(d->run, &d->metrics, &e));
  e.best_step = d->run->best.step;
  if (e.evals || e.measures) emit(d, &e);
  return CHOIR_OK;
}

/* A full disk is not an error yet: the file becomes pending. Other codes are returned. */
static int note_pending(loop_state *d, int code, double begin, int *pending) {
  *pending = code == CHOIR_ERROR_FULL;
  if (*pending) ch_room_refused(&d->disk, ch_machine_seconds() - begin);
  return *pending ? CHOIR_OK : code;
}

static int write_result(const loop_state *d) {
  ch_run *run = d->run;
  return run->kind->write_result ? CH_ON_FIRST(comm_of(run), run->kind->write_result(run)) : CHOIR_OK;
}

/* Writes a checkpoint. On the first rank `name`, the new RUN/best, takes its disk space before the checkpoint is
 * written. */
static int write_checkpoint(loop_state *d, char *path, ch_file *name) {
  ch_run *run = d->run;
  const ch_comm *comm = comm_of(run);
  CH_TRY(ch_comm_agree(comm, ch_metrics_sync(&d->metrics, &run->metrics_bytes)));
  CH_TRY(write_result(d)); /* if the process is killed after this, the resumed run evaluates this step again */
  CH_TRY(CH_ON_FIRST(comm, ch_best_begin(run, name)));
  int code = ch_comm_agree(comm, ch_checkpoint_save(run, path));
  if (code) ch_file_abandon(name);
  return code;
}

/* Saves the checkpoint of this step. loss: of the step. */
static int save_checkpoint(loop_state *d, double loss) {
  char path[PATH_MAX] = "";
  ch_file name = {.fd = -1};
  ch_run *run = d->run;
  pending *p = &d->pending;
  const ch_comm *comm = comm_of(run);
  CH_TRY(ch_comm_agree(comm, ch_trainer_check(&run->trainer, loss))); /* a saved checkpoint must be finite */
  double begin = ch_machine_seconds();
  ch_watch_section(comm, "checkpoint of step", run->trainer.step);
  CH_TRY(note_pending(d, write_checkpoint(d, path, &name), begin, &p->checkpoint));
  if (p->checkpoint) return CHOIR_OK;
  d->disk.saved_step = run->trainer.step;
  ch_metrics_checkpoint(&d->metrics, run->trainer.step, path);
  CH_TRY(note_pending(d, CH_ON_FIRST(comm, ch_best_end(run, &name)), begin, &p->best));
  choir_event e = make_event(d, CHOIR_EVENT_CHECKPOINT);
  e.checkpoint = path;
  emit(d, &e);
  return CHOIR_OK;
}

/* Writes RUN/best and the result for run->best, whose checkpoint exists. */
static int save_best(loop_state *d) {
  double begin = ch_machine_seconds();
  int code = write_result(d);
  if (!code) code = CH_ON_FIRST(comm_of(d->run), ch_best_save(d->run));
  return note_pending(d, code, begin, &d->pending.best);
}

static int is_best(const ch_run *run) { return run->best.step == run->trainer.step; }

/* If the best evaluation is that of this step and its checkpoint could not be saved, the previous best evaluation,
 * whose checkpoint exists, becomes the best again, because the next step changes the weights. RUN/best and the result
 * are updated. */
static int forget_unsaved_best(loop_state *d) {
  ch_run *run = d->run;
  int64_t lost = run->best.step;
  char kept[80] = "there is no best checkpoint until the next evaluation";
  if (!d->pending.checkpoint || !is_best(run)) return CHOIR_OK;
  ch_run_forget_best(run);
  if (run->best.step) snprintf(kept, sizeof kept, "the best checkpoint is still that of step %" PRId64, run->best.step);
  ch_notice("the checkpoint of step %" PRId64 ", the best evaluation, could not be saved before the next step; %s",
            lost, kept);
  return save_best(d);
}

/* ---- after a step */

/* Once only the cooldown's share of the time limit is left: the number of steps that fit into the remaining time;
 * else 0. */
static int64_t cooldown_steps_left(const loop_state *d) {
  double limit = 60 * d->run->options->minutes, now = elapsed(d);
  if (now < (1 - d->run->config.train.cooldown_steps) * limit) return 0;
  double fit = (limit - now) / now * (double)(d->run->trainer.step - d->first_step);
  return fit > 1 ? (int64_t)fmin(fit, (double)INT_MAX) : 1;
}

/* Sets train.steps so that the cooldown, a share of the steps, ends at the time limit. The config then has this
 * number, and the run resumes and repeats as if it had been given. */
static int start_cooldown_by_time(loop_state *d) {
  ch_run *run = d->run;
  ch_train_config *c = &run->config.train;
  int64_t step = run->trainer.step, known = c->steps - ch_config_steps(c->cooldown_steps, c->steps);
  if (!(run->options->minutes > 0) || !(c->cooldown_steps > 0 && c->cooldown_steps < 1) || step >= known)
    return CHOIR_OK;
  int64_t left = ch_comm_max(comm_of(run), cooldown_steps_left(d));
  if (!left) return CHOIR_OK;
  d->cooling = 1;
  c->steps = step + left;
  c->cooldown_steps = (double)left;
  run->trainer.model->config.train = *c;
  ch_notice("the learning rate falls from here to the last step, %" PRId64 ", which the time leaves room for",
            c->steps);
  if (comm_of(run)->rank) return ch_comm_agree(comm_of(run), CHOIR_OK);
  run->kind->write_head(&d->metrics, run);
  return ch_comm_agree(comm_of(run), choir_config_save(&run->config, CH_IN(run->out, CH_RUN_CONFIG)));
}

/* A rank's request after a step. If ranks differ, the last one in this list counts. */
typedef enum { NOTHING, RETRY, STOP, LAST_TRY } request;

static int is_pending(const pending *p) { return p->checkpoint || p->best; }

/* Computes the request of all ranks. */
static int agree(loop_state *d, request *all) {
  const ch_run *run = d->run;
  const ch_comm *comm = comm_of(run);
  pending *p = &d->pending;
  if (run->options->minutes > 0 && !d->cooling && elapsed(d) >= 60 * run->options->minutes) p->asked = 1;
  int code = run->kind->check_source ? run->kind->check_source(run)
                                     : CHOIR_OK; /* otherwise a model trained on changed data would be saved */
  CH_TRY(ch_comm_agree(comm, code ? code : ch_disk_wait_watch(&d->disk, &d->metrics.results, is_pending(p))));
  request own = NOTHING;
  if (is_pending(p) && ch_room_retry_due(&d->disk)) own = RETRY;
  if (p->asked) own = STOP;
  if (d->disk.given_up) own = LAST_TRY;
  *all = (request)ch_comm_max(comm, own);
  p->stop |= *all == STOP;
  return CHOIR_OK;
}

/* Saves what is pending or due. After the last try the run stops. */
static int save_requested(loop_state *d, request all, double loss) {
  const ch_run *run = d->run;
  pending *p = &d->pending;
  int due = ch_run_is_done(run) || ch_trainer_is_due(&run->trainer, run->config.train.checkpoint_every);
  int wanted = all >= STOP || (all == RETRY && p->checkpoint) || (due && !is_best(run));
  if (all != NOTHING && p->best) CH_TRY(save_best(d)); /* the small file may find space where a checkpoint does not */
  if (wanted && d->disk.saved_step != run->trainer.step) {
    CH_TRY(save_checkpoint(d, loss));
    p->stop |= ch_comm_max(comm_of(run), p->asked) != 0; /* a stop requested while it was written */
  }
  p->stop |= all == LAST_TRY && is_pending(p);
  return CHOIR_OK;
}

/* Takes a step and does what is due after it. The checkpoint of the best evaluation is saved at once. */
static int advance_run(loop_state *d, double *loss) {
  ch_run *run = d->run;
  CH_TRY(forget_unsaved_best(d));
  CH_TRY(step_run(d, loss));
  CH_TRY(start_cooldown_by_time(d));
  if (ch_trainer_is_due(&run->trainer, run->eval_every)) CH_TRY(evaluate(d));
  for (int i = 0; i < 2 && is_best(run) && d->disk.saved_step != run->trainer.step; i++)
    CH_TRY(save_checkpoint(d, *loss)); /* a second time, because no later step has these weights */
  request all;
  CH_TRY(agree(d, &all));
  CH_TRY(save_requested(d, all, *loss));
  emit_notices(d);
  return CHOIR_OK;
}

/* ---- from the first step to the last */

/* All steps are done but not saved: waits until the limit, or until the caller requests a stop. */
static int wait_for_space(loop_state *d, double loss) {
  double emitted = 0; /* time of the last event */
  while (is_pending(&d->pending) && !d->pending.stop) {
    request all;
    CH_TRY(agree(d, &all));
    if (all != NOTHING) CH_TRY(save_requested(d, all, loss));
    emit_notices(d);
    if (!is_pending(&d->pending)) break;
    choir_event waiting = make_event(d, CHOIR_EVENT_WAITING);
    waiting.seconds_left = ch_disk_wait_seconds_left(&d->disk);
    waiting.notice = d->disk.why;
    if (ch_machine_seconds() - emitted >= 1) {
      emit(d, &waiting);
      emitted = ch_machine_seconds();
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  }
  return CHOIR_OK;
}

/* The error of a run that ends while something is pending. */
static int end_pending(loop_state *d) {
  const ch_run *run = d->run;
  CH_TRY(forget_unsaved_best(d));
  emit_notices(d);
  if (d->pending.checkpoint) return ch_disk_wait_error(&d->disk, run->trainer.step, run->config.train.steps);
  return ch_error(CHOIR_ERROR_FULL,
                  "step %" PRId64 " is saved, but %s does not name the best checkpoint, that of step %" PRId64
                  ", yet: %s. Until it does, commands that read the run load another checkpoint; make room and resume, "
                  "or pass the best checkpoint by its path",
                  run->trainer.step, CH_IN(run->out, CH_RUN_BEST), run->best.step, d->disk.why);
}

/* Evaluates the step at which the run was stopped, for the terminal and for pages. The checkpoint does not include
 * the evaluation's log line, so a resumed run removes it, forgets whether it was the best, and equals an uninterrupted
 * run; until then RUN/best may name this step. The result stays that of the checkpoint. */
static int evaluate_stopped(loop_state *d) {
  if (ch_trainer_is_due(&d->run->trainer, d->run->eval_every)) return CHOIR_OK;
  CH_TRY(evaluate(d));
  double begin = ch_machine_seconds();
  CH_TRY(note_pending(d, CH_ON_FIRST(comm_of(d->run), ch_best_save(d->run)), begin, &d->pending.best));
  return d->pending.best ? end_pending(d) : CHOIR_OK;
}

static int loop(loop_state *d) {
  ch_run *run = d->run;
  double loss = 0;
  while (!ch_run_is_done(run) && !d->pending.stop) CH_TRY(advance_run(d, &loss));
  int done = ch_run_is_done(run);
  if (done) CH_TRY(wait_for_space(d, loss));
  if (is_pending(&d->pending)) return end_pending(d);
  if (done) return CHOIR_OK;
  CH_TRY(evaluate_stopped(d));
  return ch_trainer_stopped(&run->trainer);
}

static int measure_peak(loop_state *d) {
  const ch_exec *x = &d->run->trainer.model->x;
  ch_peak peak;
  if (!(d->run->flops_per_token > 0)) return CHOIR_OK;
  CH_TRY(ch_backend_peak(x->ops->name, x->threads, 0.15, 0, &peak));
  d->peak_gflops = x->compute == CH_COMPUTE_BF16 ? peak.bf16_gflops : peak.fp32_gflops;
  /* bf16 is not the default because not every CPU supports it. No machine is more than 16 times as fast in bf16: a
   * larger ratio means that the machine was busy while fp32 was measured. */
  double ratio = peak.bf16_gflops / peak.fp32_gflops;
  if (x->compute == CH_COMPUTE_FP32 && !d->first_step && ratio > 1.3 && ratio <= 16)
    ch_notice(
        "this machine multiplies %.1f times as fast in bf16 as in fp32 (measured now); runs with train.compute=bf16 "
        "ended within 0.003 nats of those without (docs/training.md)",
        ratio);
  return CHOIR_OK;
}

/* Opens the logs, on the first rank only. */
static int open_metrics(loop_state *d) {
  const ch_run *run = d->run;
  int code = CHOIR_OK;
  d->metrics = (ch_metrics){.results.fd = -1, .timing.fd = -1};
  if (!comm_of(run)->rank) code = ch_checkpoint_none(run);
  if (!comm_of(run)->rank && !code) code = ch_metrics_open(&d->metrics, run->out, run->metrics_bytes);
  code = ch_comm_agree(comm_of(run), code);
  if (code) ch_metrics_close(&d->metrics);
  return code;
}

int ch_run_loop(ch_run *run) {
  loop_state d = {.run = run, .first_step = run->trainer.step};
  d.disk = (ch_disk_wait){.limit = 60 * run->options->disk_minutes, .saved_step = run->trainer.step};
  emit_notices(&d);
  CH_TRY(open_metrics(&d)); /* truncates it, even if no step is left */
  if (!comm_of(run)->rank) ch_state_rotate(run->out, &run->trainer, run->best.step ? run->best.step : -1);
  int done = ch_run_is_done(run), code = save_best(&d);
  if (!code && done && d.pending.best) code = end_pending(&d);
  if (!code && !done) {
    if (!run->metrics_bytes || run->config_changed) run->kind->write_head(&d.metrics, run);
    ch_metrics_process(&d.metrics, run);
    code = ch_comm_agree(comm_of(run), measure_peak(&d));
    emit_memory(&d);
    d.begin = ch_machine_seconds();
    if (!code) code = loop(&d);
  }
  ch_metrics_close(&d.metrics);
  return code;
}
