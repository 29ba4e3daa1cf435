/* choir finetune: trains a checkpoint on a task. */
#include <math.h>
#include <string.h>

#include "cli.h"

static choir_model_options model = CHOIR_MODEL_OPTIONS_INIT;
static choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
static const char *task_name, *recipe;
static cli_list set;
static double epochs = NAN;

typedef struct tune_display {
  cli_progress progress;
  int64_t first, last;               /* first and last step of this process; first 0: none yet */
  double seconds, examples, padding; /* sums over these steps */
} tune_display;

static void show_step(tune_display *w, const choir_event *e) {
  if (!cli_progress_due(&w->progress) && e->step != w->first) return;
  cli_progress_line(&w->progress, "step %lld/%lld  %s left  epoch %.2f  loss %.4f  %s examples/s  %.0f %% padding",
                    (long long)e->step, (long long)e->steps, cli_duration(e->seconds_left), e->epoch, e->result->loss,
                    cli_count(w->examples / w->seconds), 100 * w->padding / (double)(e->step - w->first + 1));
}

static void show_accuracy(const choir_event *e) {
  char text[512], best[48] = "";
  size_t used = 0;
  text[0] = 0;
#define ADD(...) used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)
  for (int i = 0; i < e->measures; i++) {
    const choir_task_measure *m = &e->measure[i];
    ADD("  %.2f" CLI_TIE "%%", 100 * m->accuracy);
    if (!isnan(m->matthews)) ADD(", Matthews" CLI_TIE "%.3f", m->matthews);
    if (!isnan(m->f1)) ADD(", F1" CLI_TIE "%.2f" CLI_TIE "%%", 100 * m->f1);
    ADD(" (%s)", m->routing);
  }
#undef ADD
  if (e->best_step) snprintf(best, sizeof best, "  best: step %lld", (long long)e->best_step);
  cli_print(2, "step %lld  epoch %.1f  dev accuracy%s%s", (long long)e->step, e->epoch, text,
            e->best_step == e->step ? "  best so far" : best);
}

static int on_event(void *context, const choir_event *e) {
  tune_display *w = context;
  if (e->kind == CHOIR_EVENT_STEP) {
    if (!w->first) w->first = e->step;
    w->last = e->step;
    w->seconds += e->speed->seconds;
    w->examples += (double)e->speed->sequences;
    w->padding += e->speed->padding;
    cli_note_busy(&w->progress, e->speed);
    show_step(w, e);
  } else if (!cli_show_event(&w->progress, e) && e->kind == CHOIR_EVENT_EVAL) {
    cli_progress_clear(&w->progress);
    show_accuracy(e);
    fflush(stdout);
  }
  return cli_stop_requested();
}

/* Prints the result of a run from its result.json. */
static int show_result(void) {
  char path[4096];
  json_error_t error;
  snprintf(path, sizeof path, "%s/result.json", o.out);
  json_t *root = json_load_file(path, 0, &error);
  if (!root) return cli_fail_with("%s: %s", path, error.text);
  const json_t *own = json_object_get(root, "own"), *batch = json_object_get(root, "batch");
  const char *task = json_string_value(json_object_get(root, "task")),
             *label = json_string_value(json_object_get(root, "majority_label"));
  char by_batch[128] = "";
  if (batch)
    snprintf(by_batch, sizeof by_batch, ", %.2f %% with %s routing of %lld texts",
             100 * json_number_value(json_object_get(batch, "accuracy")),
             json_string_value(json_object_get(batch, "routing")),
             (long long)json_integer_value(json_object_get(root, "batch_sequences")));
  cli_print(2, "best dev accuracy of %s: %.2f %% with %s routing%s, at step %lld (majority label '%s': %.2f %%)",
            task ? cli_shown(task) : "", 100 * json_number_value(json_object_get(own, "accuracy")),
            json_string_value(json_object_get(own, "routing")), by_batch,
            (long long)json_integer_value(json_object_get(root, "step")), label ? cli_shown(label) : "",
            100 * json_number_value(json_object_get(root, "majority")));
  json_decref(root);
  printf("see: choir score %s --task %s --data DIR\n", cli_shown(o.out), task && task_name ? task_name : "NAME");
  return 0;
}

/* Whether --set gives the number of steps. */
static int sets_steps(void) {
  int found = 0;
  for (int i = 0; i < set.count; i++)
    found |= !strncmp(set.values[i], "steps=", 6) || !strncmp(set.values[i], "train.steps=", 12);
  return found;
}

/* The config to train with: *use is set if it differs from the run's own. */
static int prepare_finetune_config(choir_config **config, int *use) {
  char path[4096];
  const int steps = sets_steps(), given = !isnan(epochs);
  *use = !o.resume || set.count > 0;
  if (o.resume && (o.init_from || task_name || recipe || given || o.patience || o.batch_sequences != 32))
    return cli_usage(
        "--resume keeps the run's --init-from, --task, --recipe, --epochs, --patience and --batch: leave them out");
  if (!o.resume && !(o.init_from && task_name && o.data))
    return cli_usage("--init-from, --task and --data are required without --resume");
  if (given && !(epochs > 0)) return cli_usage("--epochs %g: must be above 0", epochs);
  if (given && steps) return cli_usage("give one of --epochs E and --set train.steps=N");
  snprintf(path, sizeof path, "%s/config.json", o.out);
  if (o.disk_minutes < 0) return cli_usage("--disk-minutes %g: must not be negative", o.disk_minutes);
  if (o.minutes < 0) return cli_usage("--minutes %g: must be a number of minutes, or 0 for no limit", o.minutes);
  int code = o.resume ? choir_config_load(path, config)
                      : choir_finetune_config_create(o.init_from, recipe ? recipe : "constant", config);
  if (code) return cli_fail();
  int status = cli_apply_settings(*config, &set);
  if (!o.resume && !steps) o.epochs = given ? epochs : 10;
  return status;
}

static int finetune(void) {
  tune_display w = {0};
  o.model = &model;
  o.event = on_event;
  o.context = &w;
  cli_progress_begin(&w.progress, stdout);
  cli_catch_signals();
  cli_catch_closed_output();
  int code = choir_finetune(&o);
  cli_progress_clear(&w.progress);
  if (code && code != CHOIR_ERROR_INTERRUPTED) return cli_fail();
  if (!code) return show_result();
  cli_print(2, "stopped after step %lld (%s) and saved; continue with: %s", (long long)w.last,
            cli_duration(cli_seconds() - w.progress.started),
            cli_whole("choir finetune --resume --out %s%s", cli_shown(o.out), cli_plugins_shown()));
  return cli_stop_requested() ? CLI_INTERRUPTED : 0; /* a run that reached --minutes was not interrupted */
}

static int run_finetune(int count, const char *const *operands) {
  choir_config *config = NULL;
  choir_task *task = NULL;
  int use, status = prepare_finetune_config(&config, &use);
  if (!status && task_name && choir_task_load(task_name, &task)) status = cli_fail();
  if (status) return choir_config_free(config), status;
  o.config = use ? config : NULL;
  o.task = task;
  status = finetune();
  choir_task_free(task);
  choir_config_free(config);
  return status;
}

static const cli_option options[] = {
    {"out", "RUN", CLI_PATH, &o.out, NULL,
     "run directory, for config.json, metrics.jsonl, result.json and checkpoints/", 1},
    {"init-from", "RUN|CHECKPOINT", CLI_PATH, &o.init_from, NULL,
     "run or checkpoint to start from; required unless --resume is given", 0},
    {"task", "NAME|FILE", CLI_SMALL, &task_name, NULL,
     "name of a task, or a JSON file that describes one; required unless --resume is given", 0},
    {"data", "DIR", CLI_PATH, &o.data, NULL,
     "the task's files, or a directory with a folder of the task's name; required unless --resume is given", 0},
    {"recipe", "constant|continued", CLI_CHOICE, &recipe, NULL,
     "learning rate: a tenth of the checkpoint's, constant; or the checkpoint's schedule, continued [constant]", 0},
    {"epochs", "E", CLI_REAL, &epochs, NULL,
     "number of passes over the training set; default: 10, unless train.steps is set", 0},
    {"patience", "N", CLI_INT64, &o.patience, "0", "stop after N evaluations without a better one; 0: never", 0},
    {"minutes", "M", CLI_REAL, &o.minutes, NULL, "stop after M minutes, save, and exit with status 0; 0: no limit", 0},
    {"disk-minutes", "M", CLI_REAL, &o.disk_minutes, "60",
     "when a checkpoint cannot be saved because the disk is full, train on and retry for M minutes, then stop", 0},
    {"batch", "B", CLI_INT, &o.batch_sequences, "32",
     "number of texts that evaluations with batch routing route together; 0: no evaluation with batch routing", 0},
    {"set", "KEY=VALUE", CLI_LIST, &set, NULL,
     "set a field of the config, such as train.learning_rate=0.01, train.dropout=0.1 or train.freeze=*.attn.*", 0},
    {"resume", NULL, CLI_FLAG, &o.resume, NULL, "continue RUN from its newest checkpoint, bit for bit", 0},
    CLI_THREADS(&model.threads),
    CLI_BACKEND(&model.backend),
    CLI_EMULATE_BF16(&model.emulate_bf16),
    {0}};

CLI_VERB(finetune, "finetune", "", 0, 0, "train a checkpoint on a labelled task",
         "Each row of the training set becomes a text that ends with the word of its label. The loss is that of this "
         "word only.\n\n"
         "The dev set is evaluated every train.eval_every steps, or once per epoch if that is 0. The model's answer is "
         "the label whose word has the highest probability. The accuracy is measured with threshold routing, each text "
         "on its own, and for comparison with batch routing. The checkpoint with the best dev accuracy is kept; choir "
         "score RUN uses it.\n\n"
         "The settings are those of the checkpoint, except for batches of 32 texts and the learning rate of --recipe; "
         "--set changes any of them. Ctrl-C finishes the step, saves, evaluates, and exits with status 3.\n\n"
         "Example: choir finetune --init-from run --task BoolQ --data superglue --out tuned");
