/* Training steps on micro-batches of any length, some of whose positions have a target; frozen weights; the schedule.
 */
#include "fenced.h"
#include "model_testing.h"
#include "train/step.h"

enum { LONG = 32, SHORT = 16, ROWS = 3 };

/* A trainer of a fresh model. */
static void begin_on(const char *backend, const choir_config *config, ch_trainer *t) {
  choir_model_options run = {.size = sizeof run, .backend = backend, .compute = "fp32", .threads = 2};
  choir_model *model;
  test_ok(ch_model_prepare(config, &run, &model));
  test_ok(ch_trainer_plan(model, t));
  test_ok(ch_trainer_plan_batches(t, SHORT, LONG, 2 * ROWS * MODEL_B, NULL, 0));
  test_ok(ch_trainer_commit(t));
  test_ok(ch_params_init(&model->net.params, model->x.memory, 5, 2));
  ch_model_weights_changed(model);
}

static choir_config config_of(const char *router, int B, int accumulate) {
  choir_config c = model_config(router);
  c.train.batch_sequences = B;
  c.train.sequence_length = LONG;
  c.train.accumulate = accumulate;
  c.train.learning_rate = 0.01;
  return c;
}

static void begin(const choir_config *config, ch_trainer *t) { begin_on("cpu", config, t); }

/* Sequences of `length` tokens padded to T, the last ROWS of which predict something. */
static ch_batch make_batch(int B, int T, int length, uint32_t sub, int32_t *buffer) {
  int32_t *token = buffer, *row = token + B * T, *target = row + B * ROWS;
  for (int i = 0; i < B * T; i++) token[i] = -1;
  for (int b = 0; b < B; b++) {
    model_tokens(token + b * T, length, sub + (uint32_t)b);
    for (int r = 0; r < ROWS; r++) {
      row[b * ROWS + r] = b * T + length - ROWS + r;
      target[b * ROWS + r] = (7 * b + r) % MODEL_V;
    }
  }
  return (ch_batch){.T = T, .token = token, .row = row, .rows = B * ROWS, .target = target};
}

/* Largest relative difference of two trainers' weights, tensor by tensor. */
static double apart(const ch_trainer *a, const ch_trainer *b) {
  double max = 0;
  const ch_params *p = &a->model->net.params, *q = &b->model->net.params;
  for (int i = 0; i < p->count + p->buffers; i++) max = fmax(max, test_error(p->p[i].w, q->p[i].w, p->p[i].count));
  return max;
}

/* Padding changes nothing, and neither does cutting a batch into micro-batches of other lengths: where tokens are
 * routed by themselves every target counts the same, and so does every token that moves a price. */
static void cut_batch(const char *router) {
  choir_config whole = config_of(router, 4, 1), cut = config_of(router, 2, 2);
  int32_t buffer[5][4 * (LONG + 2 * ROWS)];
  ch_trainer a, b, c;
  choir_trainer_result ra, rb, rc;
  begin(&whole, &a);
  begin(&whole, &b);
  begin(&cut, &c);
  ch_batch one = make_batch(4, SHORT, 14, 50, buffer[0]), padded = make_batch(4, LONG, 14, 50, buffer[1]);
  ch_batch parts[] = {make_batch(2, LONG, 14, 50, buffer[2]), make_batch(2, SHORT, 14, 52, buffer[3])};
  for (int i = 0; i < parts[1].rows; i++) ((int32_t *)parts[1].target)[i] = one.target[parts[0].rows + i];
  test_ok(ch_trainer_step_on(&a, &one, &ra));
  test_ok(ch_trainer_step_on(&b, &padded, &rb));
  test_ok(ch_trainer_step_on(&c, parts, &rc));
  assert_true(ra.loss > 1 && fabs(ra.loss - rb.loss) < 1e-5 && fabs(ra.loss - rc.loss) < 1e-5);
  assert_true(fabs(ra.gradient_norm - rb.gradient_norm) < 1e-4 * ra.gradient_norm);
  assert_true(fabs(ra.gradient_norm - rc.gradient_norm) < 1e-4 * ra.gradient_norm);
  assert_true(apart(&a, &b) < 1e-4);
  assert_true(apart(&a, &c) < 1e-4);
  ch_trainer_free(&a), ch_trainer_free(&b), ch_trainer_free(&c);
}

static void lengths_and_cuts(void **state) {
  cut_batch("hash");
  cut_batch("bias_balanced");
}

/* On whole batches it is the step that training takes. */
static void whole_batches(void **state) {
  choir_config config = config_of("expert_choice", MODEL_B, 1);
  int32_t token[MODEL_B * LONG], target[MODEL_B * LONG];
  ch_trainer a, b;
  choir_trainer_result ra, rb;
  begin(&config, &a);
  begin(&config, &b);
  test_ok(ch_model_size(b.model, MODEL_B, LONG, 1));
  test_ok(ch_model_commit(b.model));
  ch_model_drop_plan(a.model);
  test_ok(ch_model_plan(a.model, MODEL_B, LONG, 1));
  model_tokens(token, MODEL_B * LONG, 3);
  model_tokens(target, MODEL_B * LONG, 4);
  ch_batch batch = {.T = LONG, .token = token, .target = target};
  test_ok(ch_trainer_step(&a, token, target, &ra));
  test_ok(ch_trainer_step_on(&b, &batch, &rb));
  assert_true(ra.loss == rb.loss && ra.gradient_norm == rb.gradient_norm && apart(&a, &b) == 0);
  ch_trainer_free(&a), ch_trainer_free(&b);
}

/* Training by masking computes the head at masked tokens alone: the step is that of all positions. */
static void masked_rows(void **state) {
  choir_config config = config_of("expert_choice", MODEL_B, 1);
  int32_t token[MODEL_B * LONG], target[MODEL_B * LONG];
  float weight[MODEL_B * LONG];
  ch_trainer a, b;
  choir_trainer_result ra, rb;
  test_set(&config, "attention=bidirectional objective=masked_diffusion");
  begin(&config, &a);
  begin(&config, &b);
  for (ch_trainer *t = &a; t; t = t == &a ? &b : NULL) {
    test_ok(ch_model_size(t->model, MODEL_B, LONG, 1));
    test_ok(ch_model_commit(t->model));
    assert_non_null(t->picked);
  }
  free(b.picked);
  b.picked = NULL;
  model_tokens(token, MODEL_B * LONG, 3);
  for (int step = 0; step < 3; step++) {
    for (int i = 0; i < MODEL_B * LONG; i++) {
      int masked = step < 2 && (i * 7 + step) % 3 == 0; /* the last step has no target */
      target[i] = masked ? token[i] : -1;
      weight[i] = (float)(1 + i / LONG) / 2;
    }
    test_ok(ch_trainer_step_on(&a, ch_trainer_cut(&a, token, target, weight), &ra));
    test_ok(ch_trainer_step_on(&b, ch_trainer_cut(&b, token, target, weight), &rb));
    assert_true(fabs(ra.loss - rb.loss) < 1e-5 * (1 + rb.loss));
    assert_true(fabs(ra.gradient_norm - rb.gradient_norm) <= 1e-4 * rb.gradient_norm);
    assert_true(step == 2 || ra.loss > 0.5);
  }
  assert_true(apart(&a, &b) < 1e-4);
  ch_trainer_free(&a), ch_trainer_free(&b);
}

/* On memory that the host cannot touch it is the same, with rows, padding, dropout and scaled gates. */
static void fenced_steps(const char *router) {
  choir_config config = config_of(router, 4, 1);
  int32_t buffer[4 * (LONG + 2 * ROWS)];
  ch_trainer a, b;
  choir_trainer_result ra, rb;
  config.train.dropout = 0.2;
  config.model.router.normalize_gates = 1;
  begin_on("cpu", &config, &a);
  begin_on("fenced", &config, &b);
  ch_batch batch = make_batch(4, LONG, 20, 50, buffer);
  for (int i = 0; i < 3; i++) {
    test_ok(ch_trainer_step_on(&a, &batch, &ra));
    test_ok(ch_trainer_step_on(&b, &batch, &rb));
    assert_true(ra.loss == rb.loss && ra.gradient_norm == rb.gradient_norm);
  }
  ch_trainer_free(&a), ch_trainer_free(&b);
}

static void fenced_memory(void **state) {
  fenced_steps("expert_choice");
  fenced_steps("bias_balanced");
}

/* A step of two draws that are to agree, on a few rows, is finite and learns. */
static void paired(void **state) {
  choir_config config = config_of("random", 4, 1);
  int32_t buffer[4 * (LONG + 2 * ROWS)];
  ch_trainer t;
  choir_trainer_result first, last;
  config.model.router.consistency_weight = 1;
  begin(&config, &t);
  ch_batch batch = make_batch(4, LONG, 20, 50, buffer);
  test_ok(ch_trainer_step_on(&t, &batch, &first));
  for (int i = 0; i < 30; i++) test_ok(ch_trainer_step_on(&t, &batch, &last));
  assert_true(last.loss < 0.7 * first.loss);
  ch_trainer_free(&t);
}

/* Frozen weights keep their bits and have no state; all others move. Patterns that name nothing, or all, are refused.
 */
static void frozen(void **state) {
  choir_config config = config_of("expert_choice", 4, 1);
  int32_t buffer[4 * (LONG + 2 * ROWS)];
  ch_trainer t;
  choir_trainer_result r;
  strcpy(config.train.freeze, "*.attn.*,layers.1.moe.experts.w1,layers.1.moe.experts.w2");
  begin(&config, &t);
  const ch_params *p = &t.model->net.params;
  real *before[128];
  assert_true(p->count < 128);
  for (int i = 0; i < p->count; i++) {
    before[i] = test_new(p->p[i].count);
    memcpy(before[i], p->p[i].w, (size_t)p->p[i].count * sizeof(real));
  }
  ch_batch batch = make_batch(4, SHORT, 12, 50, buffer);
  for (int i = 0; i < 3; i++) test_ok(ch_trainer_step_on(&t, &batch, &r));
  int kept = 0;
  for (int i = 0; i < p->count; i++) {
    const char *name = p->p[i].name;
    int freeze = strstr(name, ".attn.") || !strncmp(name, "layers.1.moe.experts.w", 22);
    int same = !memcmp(before[i], p->p[i].w, (size_t)p->p[i].count * sizeof(real));
    if (same != freeze) fail_msg("%s %s", name, same ? "stayed" : "moved");
    assert_true(!freeze || (!t.optimizer.tensor[i].state_count[0] && !t.optimizer.tensor[i].state_count[1]));
    kept += freeze;
    free(before[i]);
  }
  assert_int_equal(kept, 4 * 5 + 2);
  ch_trainer_free(&t);

  static const char *const bad[][2] = {{"*.attn", "number 1"}, {"*.attn.*,x", "number 2"}, {"*", "nothing to train"}};
  for (int i = 0; i < 3; i++) {
    choir_model *model;
    choir_model_options run = {.size = sizeof run, .backend = "cpu", .compute = "fp32"};
    strcpy(config.train.freeze, bad[i][0]);
    test_ok(ch_model_prepare(&config, &run, &model));
    assert_int_equal(ch_trainer_plan(model, &t), CHOIR_ERROR_ARGUMENT);
    if (!strstr(choir_error_message(), bad[i][1])) fail_msg("%s", choir_error_message());
    ch_trainer_free(&t);
  }
}

/* A schedule that goes on is the rest of the longer one. */
static void schedule(void **state) {
  ch_train_config c = model_config("hash").train;
  c.learning_rate = 2, c.constant_steps = 100, c.warmup_steps = 10, c.steps = 405;
  for (int cosine = 0; cosine < 2; cosine++) {
    c.schedule = cosine ? CH_COSINE : CH_INVERSE_SQRT;
    ch_train_config later = c;
    later.schedule_start = 5, later.steps = 400;
    for (int64_t step = 1; step < 400; step += 7)
      assert_true(ch_schedule_learning_rate(&later, step) == ch_schedule_learning_rate(&c, step + 5));
    assert_true(ch_schedule_learning_rate(&c, 5) == 1);
    assert_true(cosine || ch_schedule_learning_rate(&c, 400) == 1);
  }
}

/* Gives what is left of rate 2 at a step. */
static void assert_left(const ch_train_config *c, int64_t step, double left) {
  double rate = ch_schedule_learning_rate(c, step);
  if (!(fabs(rate - 2 * left) < 1e-12)) fail_msg("step %d: rate %.17g instead of %.17g", (int)step, rate, 2 * left);
}

/* Rates: constant in the trunk, falling from the cooldown's first step in the branch, right at both ends. */
static void cooled(void **state) {
  ch_train_config c = model_config("hash").train;
  c.learning_rate = 2, c.steps = 100, c.cooldown_to = 0.1;
  ch_train_config trunk = c;
  c.cooldown_steps = 20;
  for (int64_t step = 1; step <= 80; step++)
    assert_true(ch_schedule_learning_rate(&c, step) == ch_schedule_learning_rate(&trunk, step));
  assert_left(&c, 81, 1 - 0.9 / 20);
  assert_left(&c, 90, 0.55);
  assert_left(&c, 100, 0.1);
  assert_left(&c, 1000, 0.1); /* a trainer on the caller's batches may go on */
  c.cooldown_to = 0;
  assert_left(&c, 90, 0.5);
  assert_left(&c, 100, 0);
  c.cooldown_steps = 200; /* of a run that was made shorter */
  assert_left(&c, 50, 0.25);
  c.steps = 85, c.cooldown_to = 0.1, c.warmup_steps = 0.1, c.cooldown_steps = 0.2; /* 8.5 and 17 steps */
  assert_left(&c, 3, 3. / 9);
  assert_left(&c, 68, 1);
  assert_left(&c, 69, 1 - 0.9 / 17);
  assert_left(&c, 85, 0.1);
  c.steps = 100, c.warmup_steps = 0;
  c.cooldown_steps = 0, c.cooldown_to = 0.1;
  c.schedule = CH_COSINE;
  assert_left(&c, 50, 0.55);
  assert_left(&c, 25, 0.1 + 0.9 * (1 + sqrt(0.5)) / 2);
  assert_left(&c, 100, 0.1);
  assert_left(&c, 1000, 0.1);
}

static int set_up(void **state) { return ch_backend_register(&fence_backend); }

TEST_MAIN(set_up, NULL, lengths_and_cuts, whole_batches, masked_rows, fenced_memory, paired, frozen, schedule, cooled)
