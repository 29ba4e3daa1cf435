/* choir train: trains a run and shows its progress. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static choir_model_options model = CHOIR_MODEL_OPTIONS_INIT;
static choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
static const char *config_name;
static cli_list set;

typedef struct train_display {
  cli_progress progress;
  int64_t last, planned; /* last step, 0: none yet; planned number of steps */
  /* Sums over the steps of this process: */
  int64_t steps, sent_bytes, sent_messages;
  double seconds, waited;
  choir_eval_result evaluated; /* last evaluation: with threshold routing if that is causal and the other is not */
  char routing[CHOIR_NAME_BYTES],
      objective[CHOIR_NAME_BYTES]; /* copies of its strings, which the run owns; routing empty: none yet */
} train_display;

/* Figures printed after the speed: ", 61 % of peak" if a peak is known; with several ranks ", sent 1.3 MiB in 96
 * messages, communication 12 %, straggler: rank 3". */
static const char *remarks(const choir_event *e, char *text, size_t size) {
  const choir_trainer_result *r = e->result;
  const choir_step_speed *v = e->speed;
  int used = 0;
  text[0] = 0;
  if (r->aux_loss > 0) used += snprintf(text, size, ", auxiliary loss %.4f", r->aux_loss);
  if (r->z_loss > 0) used += snprintf(text + used, size - (size_t)used, ", z-loss %.4f", r->z_loss);
  if (v->peak_gflops > 0)
    used += snprintf(text + used, size - (size_t)used, ", %.0f %% of peak", 100 * v->gflops / v->peak_gflops);
  if (v->ranks > 1)
    used += snprintf(text + used, size - (size_t)used,
                     ", sent" CLI_TIE "%s in %lld" CLI_TIE "messages, communication" CLI_TIE "%.0f" CLI_TIE
                     "%%, straggler:" CLI_TIE "rank" CLI_TIE "%d",
                     cli_bytes((double)v->sent_bytes), (long long)v->sent_messages, 100 * v->waited / v->seconds,
                     v->slowest_rank);
  return text;
}

static void show_step(train_display *w, const choir_event *e) {
  char steps[24] = "", more[320];
  if ((!cli_progress_due(&w->progress) && w->steps > 1) || !e->result->targets)
    return; /* a loss that is NaN: no token was masked */
  if (!(o.minutes > 0))
    snprintf(steps, sizeof steps, "/%lld", (long long)e->steps); /* otherwise the run ends by time */
  cli_progress_line(&w->progress, "step %lld%s  %s left  %s %.4f  %s tokens/s  %.3g GFLOP/s%s", (long long)e->step,
                    steps, cli_duration(e->seconds_left), cli_measure(e->objective), e->result->loss,
                    cli_count(e->speed->tokens_per_second), e->speed->gflops, remarks(e, more, sizeof more));
}

static void show_losses(const choir_event *e) {
  const choir_eval_result *primary = &e->eval[0], *causal = e->evals > 1 ? &e->eval[1] : primary;
  const char *measure = cli_measure(primary->objective);
  char second[96] = "";
  if (cli_is_masked(primary->objective)) snprintf(second, sizeof second, " +-" CLI_TIE "%.4f", causal->standard_error);
  if (causal != primary)
    snprintf(second + strlen(second), sizeof second - strlen(second), ", %.4f (%s)", primary->loss, primary->routing);
  cli_print(2, "step %lld  held-out %s %.4f (%s)%s, %.3f bits per byte", (long long)e->step, measure, causal->loss,
            causal->routing, second, causal->bits_per_byte);
}

/* If the held-out loss rises, the model has begun to memorize its training text. A bound is an estimate: it has not
 * risen if it is higher by less than its standard error. */
static void show_evaluation(train_display *w, const choir_event *e) {
  const choir_eval_result *last = &e->eval[e->evals - 1];
  double chance = cli_is_masked(last->objective) && isfinite(last->standard_error) ? last->standard_error : 0;
  show_losses(e);
  if (e->best_step != e->step && last->loss >= e->best + chance)
    cli_print(2, "step %lld  held-out %s has not improved since step %lld (%.4f)", (long long)e->step,
              cli_measure(last->objective), (long long)e->best_step, e->best);
  w->evaluated = *last;
  snprintf(w->routing, sizeof w->routing, "%s", last->routing);
  snprintf(w->objective, sizeof w->objective, "%s", last->objective);
}

/* Prints lines that stay on the screen, after clearing the progress line. */
static void show_kept(train_display *w, const choir_event *e) {
  cli_progress_clear(&w->progress);
  if (e->kind == CHOIR_EVENT_EVAL)
    show_evaluation(w, e);
  else if (e->kind == CHOIR_EVENT_CHECKPOINT)
    cli_print(2, "step %lld  checkpoint %s", (long long)e->step, cli_shown(e->checkpoint));
  fflush(stdout);
}

static int on_event(void *context, const choir_event *e) {
  train_display *w = context;
  if (e->kind == CHOIR_EVENT_STEP) {
    const choir_step_speed *v = e->speed;
    w->last = e->step, w->planned = e->steps;
    w->steps++;
    w->sent_bytes += v->sent_bytes;
    w->sent_messages += v->sent_messages;
    w->seconds += v->seconds;
    w->waited += v->waited;
    cli_note_busy(&w->progress, v);
    show_step(w, e);
  } else if (!cli_show_event(&w->progress, e)) {
    show_kept(w, e);
  }
  return cli_stop_requested();
}

/* Prints the result in one line: the causal loss if there is one. */
static void show_outcome(const train_display *w) {
  const choir_eval_result *r = &w->evaluated;
  if (*w->routing)
    cli_print_outcome(w->objective, 0, r->bits_per_byte / r->loss, r->loss, w->routing, r->unigram_loss, (double)NAN);
}

/* Prints which checkpoint other commands load for this run, if it is not the last one. */
static void show_best(const train_display *w) {
  char best[4096];
  if (!w->last || !cli_ranks_first() || choir_checkpoint_find(o.out, best, sizeof best)) return;
  const char *name = strrchr(best, '/');
  int64_t step = name ? strtoll(name + 1, NULL, 10) : w->last;
  if (step != w->last)
    cli_print(2, "best checkpoint: step %lld (eval, generate and export use it): %s", (long long)step, cli_shown(best));
}

/* With several ranks, prints the first rank's traffic and exchange time per step. */
static void show_exchange(const train_display *w) {
  const choir_ranks *ranks = cli_ranks();
  if (choir_ranks_size(ranks) == 1 || !w->steps) return;
  double steps = (double)w->steps;
  char replicas[48] = "", hidden[48] = "";
  if (cli_replicas > 1) snprintf(replicas, sizeof replicas, ", %d replicas of the experts", cli_replicas);
  if (cli_hidden > 1) snprintf(hidden, sizeof hidden, ", each in %d hidden shards", cli_hidden);
  cli_print(2, "%d ranks%s%s%s: in each step rank %d sent %s in %.0f messages; communication took %.0f %% of the time",
            choir_ranks_size(ranks), replicas, hidden, cli_shard_dense ? ", dense matrices sharded" : "",
            choir_ranks_rank(ranks), cli_bytes((double)w->sent_bytes / steps), (double)w->sent_messages / steps,
            100 * w->waited / w->seconds);
}

/* The config to train with: *use is set if it differs from the run's own. */
static int prepare_train_config(choir_config **config, int *use) {
  char path[4096];
  *use = config_name != NULL || set.count > 0 || o.init_from != NULL;
  if (o.minutes < 0) return cli_usage("--minutes %g: must be a number of minutes, or 0 for no limit", o.minutes);
  if (o.disk_minutes < 0) return cli_usage("--disk-minutes %g: must not be negative", o.disk_minutes);
  if (o.resume && o.init_from)
    return cli_usage("give one of --init-from, which begins a run, and --resume, which continues one");
  if (!o.resume && !config_name && !o.init_from)
    return cli_usage("--config FILE is missing; it is required without --resume and --init-from");
  if (!o.resume && !o.data) return cli_usage("--data DIR is missing; it is required without --resume");
  if (!*use) return 0; /* the library loads the run's own */
  snprintf(path, sizeof path, "%s/config.json",
           o.init_from ? o.init_from : o.out); /* a run directory has a config, like a checkpoint */
  if (choir_config_load(config_name ? config_name : path, config)) return cli_fail();
  return cli_apply_settings(*config, &set);
}

static int run_train(int count, const char *const *operands) {
  choir_config *config = NULL;
  train_display w = {0};
  int use, status = cli_ranks_agree(prepare_train_config(&config, &use));
  if (status) return choir_config_free(config), status;
  cli_progress_begin(&w.progress, stdout);
  cli_catch_signals();
  cli_catch_closed_output();
  o.config = use ? config : NULL;
  model.ranks = cli_ranks();
  o.model = &model;
  o.event = on_event;
  o.context = &w;
  int code = choir_train(&o);
  choir_config_free(config);
  cli_progress_clear(&w.progress);
  if (code && code != CHOIR_ERROR_INTERRUPTED) return cli_fail();
  show_outcome(&w);
  show_best(&w);
  show_exchange(&w);
  const char *seconds = cli_duration(cli_seconds() - w.progress.started);
  if (code)
    cli_print(2, "stopped after step %lld (%s) and saved; continue with: %s", (long long)w.last, seconds,
              cli_whole("choir train --resume --out %s%s", cli_shown(o.out), cli_plugins_shown()));
  else if (!w.last)
    cli_print(2, "nothing left to do: %s has all its steps%s; see: %s", cli_shown(o.out),
              o.patience ? ", or --patience ended it" : "", cli_whole("choir report %s", cli_shown(o.out)));
  else
    cli_print(2, "done: %lld steps in %s%s; see: %s", (long long)w.last, seconds,
              w.last < w.planned ? ", ended by --patience: no lower held-out loss" : "",
              cli_whole("choir report %s", cli_shown(o.out)));
  return code && cli_stop_requested() ? CLI_INTERRUPTED : 0; /* a run that reached --minutes was not interrupted */
}

static const cli_option options[] = {
    {"out", "RUN", CLI_PATH, &o.out, NULL, "run directory, for config.json, metrics.jsonl and checkpoints/", 1},
    {"config", "FILE", CLI_SMALL, &config_name, NULL,
     "JSON config, or a name that 'choir configs' lists; required unless --resume or --init-from is given", 0},
    {"data", "DIR", CLI_PATH, &o.data, NULL,
     "directory that 'choir data build' made; required unless --resume is given", 0},
    {"init-from", "RUN|CHECKPOINT", CLI_PATH, &o.init_from, NULL,
     "start with the weights of a run or checkpoint, and with its config unless --config is given. If the config "
     "has another router, the experts' weights are kept. If the weights are those of a dense model, every expert "
     "starts as a copy of its feed-forward layer (upcycling)",
     0},
    {"resume", NULL, CLI_FLAG, &o.resume, NULL, "continue RUN from its newest checkpoint, bit for bit", 0},
    {"set", "KEY=VALUE", CLI_LIST, &set, NULL,
     "set a field of the config, such as train.steps=2000 or router.name=switch_top1 (docs/formats.md has all fields)",
     0},
    {"patience", "N", CLI_INT64, &o.patience, "0",
     "stop after N evaluations without a lower held-out loss; 0: never. With --resume, give it again", 0},
    {"minutes", "M", CLI_REAL, &o.minutes, NULL,
     "stop after M minutes, save, and exit with status 0; 0: no limit. If train.cooldown_steps is a share, such as "
     "0.2, the learning rate falls during the last 20 % of the M minutes",
     0},
    {"disk-minutes", "M", CLI_REAL, &o.disk_minutes, "60",
     "when a checkpoint cannot be saved because the disk is full, train on and retry for M minutes, then stop", 0},
    CLI_BACKEND(&model.backend),
    CLI_RANKS_OPTIONS,
    CLI_THREADS(&model.threads),
    CLI_EMULATE_BF16(&model.emulate_bf16),
    {0}};

CLI_VERB(train, "train", "", 0, 0, "train a model",
         "Prints the memory that the run needs, then the progress: on a terminal one line that is updated, otherwise "
         "a line every ten seconds. RUN/metrics.jsonl records every step. Brackets show an option's default.\n\n"
         "Ctrl-C finishes the step, saves, evaluates, and exits with status 3; so do SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 "
         "and SIGXCPU. A second signal ends the program at once.\n\n"
         "Under mpirun or srun, all processes train one model, and rank 0 prints. The number of processes must divide "
         "train.grad_chunks (docs/clusters.md).\n\n"
         "Example: choir train --config nano --data data --out run");
