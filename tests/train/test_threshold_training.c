/* Runs that switch to thresholds, and the loss by thresholds beside every other: in metrics, in events, in the program.
 */
#include "choir/choir.h"
#include "model/config.h"
#include "moe/router.h"
#include "program.h"

enum { STEPS = 12, SWITCH = 6 };

static choir_config run_config(const char *router) {
  choir_config c;
  test_ok(ch_config_load("config.json", &c));
  test_set(&c, "router.name=%s layers=2 accumulate=2 steps=12 checkpoint_every=4 eval_every=3 eval_sequences=6",
           router);
  return c;
}

typedef struct {
  int64_t stop_after; /* a step; 0: never */
  int evaluations;
  double threshold_loss, loss;
} watch;

static int on_event(void *context, const choir_event *e) {
  watch *w = context;
  if (e->kind == CHOIR_EVENT_EVAL) {
    w->evaluations++;
    w->threshold_loss = e->evals > 1 ? e->eval[1].loss : (double)NAN;
    w->loss = e->eval[0].loss;
  }
  if (e->kind == CHOIR_EVENT_STEP && e->result->fill > 1 + 1e-9 && e->step <= SWITCH) fail_msg("step %d", (int)e->step);
  return e->kind == CHOIR_EVENT_STEP && e->step == w->stop_after;
}

static int train(const choir_config *config, const char *out, int threads, watch *w) {
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = threads};
  o.config = config;
  o.data = config ? "data" : NULL;
  o.out = out;
  o.resume = !config;
  o.model = &model;
  o.event = on_event;
  o.context = w;
  return choir_train(&o);
}

/* Stopped before, at and after the switch, and gone on with other numbers of threads: the same bytes. */
static void resumes_across_the_switch(void **state) {
  static const char *const files[] = {"metrics.jsonl", "checkpoints/00000012/model.safetensors",
                                      "checkpoints/00000012/state.safetensors"};
  for (int i = 0; ch_routers[i]; i++) {
    if (!ch_router_takes(ch_routers[i], CH_OPTION_threshold_after)) continue;
    int r = strcmp(ch_routers[i]->name, "expert_choice") != 0;
    choir_config config = run_config(ch_routers[i]->name);
    watch w = {0};
    config.model.router.threshold_after = SWITCH;
    test_ok(train(&config, "whole", 2, &w));
    assert_int_equal(w.evaluations, STEPS / 3);
    for (int64_t begin = SWITCH - 1 + r, stop = begin; stop <= SWITCH + 1 - r; stop++) { /* once for the others */
      w = (watch){.stop_after = stop};
      int first = stop == begin;
      assert_int_equal(train(first ? &config : NULL, "stopped", 1 + first, &w), CHOIR_ERROR_INTERRUPTED);
    }
    w = (watch){0};
    test_ok(train(NULL, "stopped", 2, &w));
    for (int i = 0; i < 3; i++) program_must("cmp whole/%s stopped/%s", files[i], files[i]);
    program_must("rm -r whole stopped");
  }
}

/* The lines of metrics.jsonl whose event is `event`, as an array. */
static json_t *lines(const char *run, const char *event) {
  char path[128];
  size_t size;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  char *text = program_read(path, &size);
  assert_non_null(text);
  json_t *array = json_array();
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
    json_t *object = json_loads(line, 0, NULL);
    if (object && !strcmp(json_string_value(json_object_get(object, "event")), event)) json_array_append(array, object);
    json_decref(object);
  }
  free(text);
  return array;
}

static void steps_say_what_thresholds_do(void **state) {
  choir_config config = run_config("expert_choice");
  watch w = {0};
  config.model.router.threshold_after = SWITCH;
  test_ok(train(&config, "switched", 2, &w));
  json_t *steps = lines("switched", "step"), *step;
  size_t i;
  int uneven = 0;
  json_array_foreach(steps, i, step) {
    double fill = json_at(step, "fill"), imbalance = json_at(step, "imbalance"), unrouted = json_at(step, "unrouted");
    assert_true(unrouted >= 0 && unrouted < 1);
    if (i < SWITCH) assert_true(fill == 1 && imbalance == 1); /* k for every expert */
    assert_true(fill >= 0.25 && fill <= 2 && fill * imbalance <= 2 + 1e-6);
    uneven += imbalance > 1.01;
  }
  assert_int_equal(json_array_size(steps), STEPS);
  assert_int_equal(uneven, STEPS - SWITCH);
  json_decref(steps);
}

/* Which routers have a causal loss beside their own, and that it is the one of `choir eval`. */
static void both_losses_everywhere(void **state) {
  static const struct {
    const char *router;
    int both;
  } cases[] = {{"expert_choice", 1}, {"switch_top1", 1}, {"quantile_balanced", 0}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    choir_config config = run_config(cases[c].router);
    watch w = {0};
    test_ok(train(&config, "run", 2, &w));
    json_t *evals = lines("run", "eval"), *last = json_array_get(evals, json_array_size(evals) - 1);
    json_t *causal = json_object_get(last, "threshold");
    program_must("choir eval run --data data --sequences 6 --json");
    json_t *again = program_json(), *causal_again = json_object_get(again, "threshold");
    assert_int_equal(!!causal, cases[c].both);
    assert_int_equal(!!causal_again, cases[c].both);
    assert_int_equal(!isnan(w.threshold_loss), cases[c].both);
    assert_true(fabs(json_at(again, "loss") - json_at(last, "loss")) < 1e-6);
    assert_true(fabs(json_at(last, "loss") - w.loss) < 1e-6);
    if (causal) {
      assert_true(fabs(json_at(causal, "loss") - w.threshold_loss) < 1e-6);
      assert_true(fabs(json_at(causal_again, "loss") - w.threshold_loss) < 1e-6);
      assert_true(fabs(json_at(last, "causal_gap") - (w.threshold_loss - w.loss)) < 1e-6);
      assert_true(json_is_false(json_object_get(causal, "looks_across_tokens")));
      assert_string_equal(json_string_value(json_object_get(causal_again, "routing")), "threshold");
      assert_int_equal(json_array_size(json_object_get(causal, "layers")), 1);
      program_must("choir eval run --data data --sequences 6");
      assert_non_null(strstr(program_output, "routing             batch   threshold")); /* in one table */
    }
    json_decref(evals);
    json_decref(again);
    program_must("rm -r run");
  }
}

/* One routing by name, also one that the run was not trained with; and what cannot be. */
static void eval_by_name(void **state) {
  static const char *const routings[] = {"batch", "sequence", "position", "group", "threshold"};
  for (int i = 0; i < 5; i++) {
    program_must("choir eval switched --data data --sequences 6 --json --routing %s", routings[i]);
    json_t *root = program_json();
    assert_string_equal(json_string_value(json_object_get(root, "routing")), routings[i]);
    assert_int_equal(json_is_true(json_object_get(root, "looks_across_tokens")), i < 4);
    assert_true(json_at(root, "loss") > 0);
    assert_null(json_object_get(root, "threshold"));
    json_decref(root);
  }
  program_refuses(1, "4 experts choose among only 3 tokens (pool 'position'",
                  "choir eval switched --data data --batch 3 --routing position");
  program_refuses(1, "did you mean 'position'", "choir eval switched --data data --routing positoin");
  program_must("choir report switched --out r.html");
  size_t size;
  char *html = program_read("r.html", &size);
  assert_non_null(strstr(html, "held out, causal"));
  assert_non_null(strstr(html, "Imbalance"));
  free(html);

  program_must("choir init switched/config.json --tokenizer tokenizer.model --out fresh");
  program_must("choir eval fresh --data data --sequences 4"); /* its thresholds are not set, and eval says so */
  assert_non_null(strstr(program_output, "no causal loss"));
  assert_non_null(strstr(program_output, "moe.thresholds"));
  program_refuses(1, "moe.thresholds", "choir eval fresh --data data --routing threshold");
}

TEST_MAIN(program_setup, program_directory_remove, resumes_across_the_switch, steps_say_what_thresholds_do,
          both_losses_everywhere, eval_by_name)
