/* Predictions of tasks: what they are computed from, on whom they depend, how they are measured and written. */
#include "model/config.h"
#include "modern.h"
#include "task/set.h"
#include "task_testing.h"

enum { ROWS = 40 };

static choir_tokenizer *tokenizer;
static choir_task *task;

/* Words by row, so that texts are of many lengths; labels in turn, every seventh row without one. */
static void write_rows(const char *path, const int *order) {
  static const char *const word[] = {"ka", "to", "mire", "sol", "an", "elis", "or", "un"}, *const label[] = {
                                                                                               "no", "yes", "maybe"};
  ch_buffer text = {0};
  corpus_add(&text, "id\tfirst\tsecond\tgold\n");
  for (int i = 0; i < ROWS; i++) {
    int n = order ? order[i] : i;
    char id[16];
    snprintf(id, sizeof id, "%d\t", 100 + n);
    corpus_add(&text, id);
    for (int w = 0; w <= n * 7 % 23; w++) corpus_add(&text, w ? " " : ""), corpus_add(&text, word[(n * 5 + w * w) % 8]);
    corpus_add(&text, "\t");
    for (int w = 0; w <= n * 3 % 5; w++) corpus_add(&text, w ? " " : ""), corpus_add(&text, word[(n + w) % 8]);
    corpus_add(&text, "\t");
    corpus_add(&text, n % 7 == 6 ? "-" : label[n % 3]);
    corpus_add(&text, "\n");
  }
  corpus_save(path, text.data, text.size);
  free(text.data);
}

static int begin_all(void **state) {
  if (corpus_begin(state)) return -1;
  test_ok(choir_tokenizer_load(corpus_path("small.model"), &tokenizer));
  task = task_toy("tsv");
  write_rows(corpus_path("dev.tsv"), NULL);
  return 0;
}

static int end_all(void **state) {
  choir_tokenizer_free(tokenizer);
  choir_task_free(task);
  return corpus_end(state);
}

static choir_model *new_model(const char *router) {
  choir_config c;
  choir_model *model;
  choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 2};
  ch_config_default(&c);
  test_set(&c, "layers=2 d_model=48 d_hidden=64 heads=3 experts=4 sequence_length=64 batch_sequences=4");
  c.model.vocab_size = choir_tokenizer_vocab_size(tokenizer);
  c.model.router = test_router(router);
  test_ok(choir_model_create(&c, 3, &run, &model));
  test_thresholds(model, 0.26, 0);
  test_ok(choir_model_set_routing(model, "threshold"));
  return model;
}

static ch_set open_set(const char *split, int length) {
  ch_set set;
  test_ok(ch_set_open(task, corpus_home, split, tokenizer, NULL, length, 0, &set));
  return set;
}

static ch_predictions alone(choir_model *model, const ch_set *set, int batch, int chunk) {
  ch_predictions p;
  test_ok(ch_predict_alone(model, &set->examples, &(choir_score_options){.batch = batch, .chunk = chunk}, &p));
  assert_int_equal(p.count, ROWS);
  assert_int_equal(p.labels, 3);
  return p;
}

static ch_predictions together(choir_model *model, const ch_set *set, int B) {
  ch_predictions p;
  ch_pass *passes;
  int count;
  choir_score_options o = CHOIR_SCORE_OPTIONS_INIT;
  int causal = model->causal;
  model->causal = 0;
  test_ok(ch_predict_passes(&set->examples, B, model->config.model.experts, &passes, &count));
  test_ok(ch_model_plan_passes(model, passes, count));
  free(passes);
  test_ok(ch_predict_batches(model, &set->examples, B, &o, &p));
  model->causal = causal;
  return p;
}

/* The mean log-probability of a word behind a prompt, by a whole forward pass over both. */
static double by_forward(choir_model *model, const ch_set *set, int64_t example, int label) {
  const ch_examples *e = &set->examples;
  int prompt = ch_examples_length(e, example), word = ch_examples_word_length(e, label), n = prompt + word - 1;
  int V = model->config.model.vocab_size;
  int32_t token[128];
  float *logits = malloc((size_t)n * (size_t)V * sizeof *logits);
  choir_forward_result r;
  double sum = 0;
  memcpy(token, ch_examples_prompt(e, example), (size_t)prompt * sizeof *token);
  memcpy(token + prompt, ch_examples_word(e, label), (size_t)(word - 1) * sizeof *token);
  test_ok(choir_model_forward(model, 1, n, token, logits, 0, &r));
  for (int t = 0; t < word; t++) {
    const float *row = logits + (size_t)(prompt - 1 + t) * (size_t)V;
    double total = 0;
    for (int v = 0; v < V; v++) total += exp((double)row[v]);
    sum += (double)row[ch_examples_word(e, label)[t]] - log(total);
  }
  free(logits);
  return sum / word;
}

/* By thresholds and, one text a batch, by batch routing: what a forward pass says. */
static void equals_forward(void **state) {
  choir_model *model = new_model("expert_choice");
  ch_set set = open_set("dev", 64);
  ch_predictions causal = alone(model, &set, 5, 64), batch = together(model, &set, 1);
  int differ = 0;
  for (int pass = 0; pass < 2; pass++) {
    test_ok(choir_model_set_routing(model, pass ? "batch" : "threshold"));
    const ch_predictions *p = pass ? &batch : &causal;
    for (int64_t i = 0; i < ROWS; i += 3)
      for (int l = 0; l < 3; l++) {
        double want = by_forward(model, &set, i, l), got = p->score[i * 3 + l];
        if (!(fabs(got - want) <= 1e-5)) fail_msg("row %d, label %d: %g, not %g", (int)i, l, got, want);
      }
  }
  for (int i = 0; i < ROWS; i++) {
    int best = 0;
    for (int l = 1; l < 3; l++)
      if (causal.score[i * 3 + l] > causal.score[i * 3 + best]) best = l;
    assert_int_equal(causal.label[i], best);
    differ += fabs(causal.score[i * 3] - batch.score[i * 3]) > 1e-4;
  }
  assert_true(differ > ROWS / 2); /* two routings, and not one by two names */
  ch_predictions_free(&causal);
  ch_predictions_free(&batch);
  ch_set_close(&set);
  choir_model_free(model);
}

/* By thresholds nothing but model and text decides, bit for bit; by batch routing the neighbours do. */
static void predictions_depend_on_neighbours(void **state) {
  choir_model *model = new_model("expert_choice");
  int order[ROWS], changed = 0;
  ch_rng rng = ch_rng_make(2, CH_STREAM_TEST, 0);
  for (int i = 0; i < ROWS; i++) order[i] = (int)ch_rng_permute(rng, (uint64_t)i, ROWS);
  write_rows(corpus_path("train.tsv"), order);
  ch_set set = open_set("dev", 64), mixed = open_set("train", 64);
  ch_predictions want = alone(model, &set, 16, 512), batch = together(model, &set, 8),
                 other = together(model, &mixed, 8);
  static const int cuts[][2] = {{1, 1}, {1, 512}, {3, 7}, {40, 64}, {200, 4096}};
  for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
    ch_predictions got = alone(model, &mixed, cuts[c][0], cuts[c][1]);
    for (int i = 0; i < ROWS; i++)
      if (got.label[i] != want.label[order[i]] ||
          memcmp(&got.score[i * 3], &want.score[order[i] * 3], 3 * sizeof *got.score))
        fail_msg("row %d depends on its batch of %d", i, cuts[c][0]);
    ch_predictions_free(&got);
  }
  for (int i = 0; i < ROWS; i++) changed += fabs(other.score[i * 3] - batch.score[order[i] * 3]) > 1e-6;
  assert_true(changed > ROWS / 4);
  ch_predictions_free(&want), ch_predictions_free(&batch), ch_predictions_free(&other);
  ch_set_close(&set), ch_set_close(&mixed);
  choir_model_free(model);
}

/* A router that never looks at other tokens gives the same by both ways, padding and all. */
static void never_looks(void **state) {
  choir_model *model = new_model("hash");
  ch_set set = open_set("dev", 24); /* some are cut */
  assert_true(set.examples.cut > 0 && set.examples.longest + set.examples.longest_word == 25);
  ch_predictions a = alone(model, &set, 16, 512), b = together(model, &set, 7);
  for (int i = 0; i < 3 * ROWS; i++)
    if (!(fabs(a.score[i] - b.score[i]) <= 1e-5)) fail_msg("score %d: %g and %g", i, a.score[i], b.score[i]);
  ch_predictions_free(&a), ch_predictions_free(&b);
  ch_set_close(&set);
  choir_model_free(model);
}

/* ---- measures and files */

/* Predictions of a task with two labels, as counts [label][prediction]. */
static choir_task_measure measure_table(const choir_task *two, int tn, int fp, int fn, int tp, int unlabelled) {
  const int count[] = {tn, fp, fn, tp, unlabelled};
  int label[64], predicted[64], n = 0;
  for (int cell = 0; cell < 5; cell++)
    for (int i = 0; i < count[cell]; i++, n++) {
      label[n] = cell == 4 ? -1 : cell / 2;
      predicted[n] = cell % 2;
    }
  ch_examples e = {.count = n, .label = label};
  ch_predictions p = {.count = n, .labels = 2, .label = predicted};
  return ch_measure(two, &e, &p);
}

static void measures(void **state) {
  choir_task *cola, *mrpc;
  test_ok(choir_task_load("CoLA", &cola));
  test_ok(choir_task_load("MRPC", &mrpc));
  choir_task_measure m = measure_table(cola, 5, 1, 2, 4, 3);
  assert_int_equal(m.labelled, 12);
  assert_int_equal(m.correct, 9);
  assert_true(fabs(m.accuracy - 0.75) < 1e-12 && fabs(m.matthews - 18 / sqrt(6 * 5 * 6 * 7)) < 1e-12 && isnan(m.f1));
  m = measure_table(mrpc, 5, 1, 2, 4, 0);
  assert_true(fabs(m.f1 - 8.0 / 11) < 1e-12 && isnan(m.matthews));
  m = measure_table(cola, 0, 5, 0, 7, 0); /* always the same label */
  assert_true(m.matthews == 0 && fabs(m.accuracy - 7.0 / 12) < 1e-12);
  assert_true(measure_table(mrpc, 5, 0, 0, 0, 0).f1 == 0);
  assert_true(isnan(measure_table(cola, 0, 0, 0, 0, 4).accuracy));
  choir_task_free(cola), choir_task_free(mrpc);
}

static void file_is(const char *path, const char *want) {
  ch_buffer text = corpus_load(path);
  if (text.size < strlen(want) || strncmp(text.data, want, strlen(want))) fail_msg("%s:\n%.200s", path, text.data);
  free(text.data);
}

static void files(void **state) {
  ch_set set = open_set("dev", 64);
  ch_predictions p = {.count = ROWS, .labels = 3, .label = calloc(ROWS, sizeof(int))};
  p.label[1] = 2;
  test_ok(ch_predictions_write(corpus_path("out.tsv"), &set.rows, &set.examples, &p));
  file_is(corpus_path("out.tsv"), "index\tprediction\n100\tno\n101\tmaybe\n102\tno\n");
  test_ok(ch_predictions_write(corpus_path("out.jsonl"), &set.rows, &set.examples, &p));
  file_is(corpus_path("out.jsonl"), "{\"idx\": 100, \"label\": \"no\"}\n{\"idx\": 101, \"label\": \"maybe\"}\n");
  test_fails(ch_predictions_write(corpus_path("absent/out.tsv"), &set.rows, &set.examples, &p), CHOIR_ERROR_IO,
             "absent");
  ch_set_close(&set);
  /* an index is a number only where JSON writes it in the same way */
  ch_rows rows;
  test_ok(task_rows(task, "id\tfirst\tsecond\n007\tka\tto\n0\tka\tto\n7a\tka\tto\n", 0, &rows));
  ch_examples e = {.count = 3, .row = (int64_t[]){1, 0, 2}};
  test_ok(ch_predictions_write(corpus_path("out.jsonl"), &rows, &e, &p));
  file_is(corpus_path("out.jsonl"),
          "{\"idx\": 0, \"label\": \"no\"}\n{\"idx\": \"007\", \"label\": \"maybe\"}\n"
          "{\"idx\": \"7a\", \"label\": \"no\"}\n");
  ch_rows_free(&rows);
  free(p.label);
}

/* The share of tokens that every expert took at most, in the last batch. */
static void see(void *context, const choir_routing *routing) {
  int tokens = 0;
  for (int t = 0; t < routing->tokens; t++) tokens += !routing->valid || routing->valid[t];
  *(double *)context = (double)routing->capacity / tokens;
}

static int stop(void *context, const choir_progress *p) {
  (void)context, (void)p;
  return 1;
}

static int use_it(void *model, const choir_progress *p) {
  int32_t token[8] = {0};
  choir_forward_result result;
  choir_trainer *trainer;
  (void)p;
  test_fails(choir_model_forward(model, 1, 8, token, NULL, 0, &result), CHOIR_ERROR_BUSY, "in use");
  test_fails(choir_trainer_create(model, NULL, &trainer), CHOIR_ERROR_BUSY, "in use");
  return 0;
}

static void whole_task(void **state) {
  choir_model *model = new_model("expert_choice");
  choir_task_options o = CHOIR_TASK_OPTIONS_INIT;
  choir_score_options score = CHOIR_SCORE_OPTIONS_INIT;
  choir_task_result r, more;
  o.score = &score;
  o.data = corpus_home;
  o.out = corpus_path("predictions.tsv");
  o.batch_sequences = 8;
  test_ok(choir_task_score(model, tokenizer, task, &o, &r));
  assert_int_equal(r.examples, ROWS);
  assert_int_equal(r.measures, 2);
  assert_int_equal(r.measure[0].labelled, ROWS - 5);
  assert_string_equal(r.measure[0].routing, "threshold");
  assert_string_equal(r.measure[1].routing, "batch");
  assert_string_equal(r.majority_label, "no");
  assert_true(fabs(r.majority - 12.0 / 35) < 1e-12);
  file_is(o.out, "index\tprediction\n100\t");
  assert_int_equal(model->causal, 1);
  double share = 0;
  choir_model_on_routing(model, see, &share);
  model->net.config.router.eval_capacity_factor = 0.5;
  o.capacity_factor = 4; /* every expert takes every token */
  test_ok(choir_task_score(model, tokenizer, task, &o, &more));
  assert_true(share == 1);
  choir_model_on_routing(model, NULL, NULL);
  assert_true(model->net.config.router.eval_capacity_factor == 0.5);
  assert_memory_equal(&more.measure[0], &r.measure[0], offsetof(choir_task_measure, matthews));
  score.progress = use_it;
  score.context = model;
  test_ok(choir_task_score(model, tokenizer, task, &o, &r));
  assert_memory_equal(&more.measure[0], &r.measure[0], 2 * sizeof r.measure[0]);
  score.progress = NULL;
  o.batch_sequences = 0;
  test_ok(choir_task_score(model, tokenizer, task, &o, &r));
  assert_int_equal(r.measures, 1);
  o.split = "nope";
  test_fails(choir_task_score(model, tokenizer, task, &o, &r), CHOIR_ERROR_ARGUMENT, "nope");
  o.split = NULL;
  o.capacity_factor = -1;
  test_fails(choir_task_score(model, tokenizer, task, &o, &r), CHOIR_ERROR_ARGUMENT, "capacity_factor");
  o.capacity_factor = 0;
  score.progress = stop;
  test_ok(choir_model_set_routing(model, "batch"));
  test_fails(choir_task_score(model, tokenizer, task, &o, &r), CHOIR_ERROR_INTERRUPTED, "stopped");
  assert_int_equal(model->causal, CH_NOT_CAUSAL); /* the caller's routing is back */
  test_thresholds(model, 0, 0);
  test_fails(choir_task_score(model, tokenizer, task, &o, &r), CHOIR_ERROR_UNSUPPORTED, "no thresholds yet");
  choir_model_free(model);
}

/* The model is in use also while a long text is being encoded for its evaluation. */
static void evaluation_in_use(void **state) {
  choir_model *model = new_model("expert_choice");
  choir_eval_options o = {.size = sizeof(choir_eval_options),
                          .text = corpus_path("long.txt"),
                          .sequences = 1,
                          .progress = use_it,
                          .context = model};
  choir_eval_result r;
  ch_buffer text = {0};
  corpus_prose(&text, 1 << 18, 5);
  corpus_save(o.text, text.data, text.size);
  free(text.data);
  test_ok(choir_eval(model, tokenizer, &o, &r));
  choir_model_free(model);
}

TEST_MAIN(begin_all, end_all, equals_forward, predictions_depend_on_neighbours, never_looks, measures, files,
          whole_task, evaluation_in_use)
