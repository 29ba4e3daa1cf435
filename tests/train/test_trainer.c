/* choir_trainer_*: training on the caller's own batches. */
#include <stdlib.h>
#include <unistd.h>

#include "choir/trainer.h"
#include "file/dir.h"
#include "model_testing.h"
#include "train/step.h"

enum { TOKENS = MODEL_B * MODEL_T };

static choir_config config_of(const char *router) {
  choir_config c = model_config(router);
  c.train.optimizer = CH_ADAMW;
  c.train.beta1 = 0.9;
  c.train.learning_rate = 3e-3;
  c.train.steps = 100;
  c.train.clip_norm = 0;
  test_ok(choir_config_check(&c));
  return c;
}

static void next_of(const int32_t *tokens, int32_t *targets) {
  for (int i = 0; i < TOKENS; i++) targets[i] = i % MODEL_T == MODEL_T - 1 ? -1 : tokens[i + 1];
}

/* The first step returns the loss before its update, and 25 steps on one batch lower the loss. */
static void learns(void **state) {
  for (int i = 0; ch_routers[i]; i++) {
    choir_config c = config_of(ch_router_names[i]);
    choir_model *model = model_fresh(&c);
    choir_trainer *trainer;
    int32_t tokens[TOKENS];
    choir_trainer_result first, r;
    choir_forward_result before;
    model_tokens(tokens, TOKENS, 9);
    test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &before));
    test_ok(choir_trainer_create(model, NULL, &trainer));
    assert_int_equal(choir_trainer_sequences(trainer), MODEL_B);
    assert_int_equal(choir_trainer_sequence_length(trainer), MODEL_T);
    test_ok(choir_trainer_step(trainer, tokens, NULL, &first));
    if (!strcmp(ch_router_names[i], "expert_choice")) assert_true(fabs(first.loss - before.loss) < 1e-5);
    for (int step = 2; step <= 25; step++) test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
    assert_int_equal(r.step, 25);
    assert_int_equal(r.targets, TOKENS - MODEL_B);
    if (!(r.loss < first.loss - 0.5)) fail_msg("%s: %g, then %g", ch_router_names[i], first.loss, r.loss);
    choir_trainer_free(trainer);
    choir_model_free(model);
  }
}

/* A change that the model's owner makes between steps does not matter; targets may be given, or left to be the next
 * tokens. */
static void one_step_many_ways(void **state) {
  choir_config c = config_of("expert_choice");
  int32_t tokens[TOKENS], targets[TOKENS];
  choir_trainer_result a, b;
  choir_forward_result forward;
  choir_trainer *one, *other;
  static const char *const set[] = {"sequence", "threshold", "position"};
  choir_model *model[2] = {model_fresh(&c), model_fresh(&c)};
  test_ok(choir_trainer_create(model[0], NULL, &one));
  test_ok(choir_trainer_create(model[1], NULL, &other));
  for (uint32_t step = 0; step < 3; step++) {
    model_tokens(tokens, TOKENS, 9 + step);
    next_of(tokens, targets);
    test_ok(choir_trainer_step(one, tokens, NULL, &a));
    test_ok(choir_trainer_step(other, tokens, targets, &b));
    assert_memory_equal(&a, &b, sizeof a);
    assert_string_equal(choir_model_routing(model[1]), step ? set[step - 1] : "batch"); /* a step leaves it */
    test_ok(choir_model_set_routing(model[1], "threshold"));
    test_ok(choir_model_forward(model[1], 3, 7, tokens, NULL, 0, &forward));
    test_ok(choir_model_set_routing(model[1], set[step]));
  }
  choir_trainer_free(one);
  choir_trainer_free(other);
  choir_model_free(model[0]);
  choir_model_free(model[1]);
}

/* Positions without a target add nothing: the loss of one position is that of its logits. */
static void targets_may_be_few(void **state) {
  choir_config c = config_of("hash");
  choir_model *model = model_fresh(&c);
  choir_trainer *trainer;
  choir_trainer_result r;
  choir_forward_result forward;
  int32_t tokens[TOKENS], targets[TOKENS];
  float *logits = test_new((int64_t)TOKENS * MODEL_V);
  const int at = 2 * MODEL_T + 5;
  model_tokens(tokens, TOKENS, 9);
  for (int i = 0; i < TOKENS; i++) targets[i] = i == at ? 17 : -1;
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, logits, 0, &forward));
  double sum = 0;
  for (int v = 0; v < MODEL_V; v++) sum += exp((double)logits[at * MODEL_V + v]);
  test_ok(choir_trainer_create(model, NULL, &trainer));
  test_ok(choir_trainer_step(trainer, tokens, targets, &r));
  assert_int_equal(r.targets, 1);
  assert_true(fabs(r.loss - (log(sum) - (double)logits[at * MODEL_V + 17])) < 1e-5);
  choir_trainer_free(trainer);
  choir_model_free(model);
  free(logits);
}

/* Saved and resumed is as never stopped, bit for bit, and the checkpoint is one that models are loaded from. */
static void saves_and_resumes(void **state) {
  char directory[] = "/tmp/choir-trainer-XXXXXX";
  assert_non_null(mkdtemp(directory));
  const char *path = CH_IN(directory, "model");
  choir_config c = config_of("expert_choice");
  c.train.accumulate = 2;
  int32_t tokens[2 * TOKENS];
  choir_trainer_result a, b;
  choir_forward_result saved, loaded;
  choir_trainer *one, *other;
  choir_model *model[2] = {model_fresh(&c), model_fresh(&c)}, *read;
  model_tokens(tokens, 2 * TOKENS, 9);
  test_ok(choir_trainer_create(model[0], NULL, &one));
  assert_int_equal(choir_trainer_sequences(one), 2 * MODEL_B);
  for (int step = 0; step < 2; step++) test_ok(choir_trainer_step(one, tokens, NULL, &a));
  test_ok(choir_trainer_save(one, NULL, path));
  test_ok(choir_model_forward(model[0], MODEL_B, MODEL_T, tokens, NULL, 0, &saved));
  test_ok(choir_model_load(path, NULL, &read, NULL));
  test_ok(choir_model_forward(read, MODEL_B, MODEL_T, tokens, NULL, 0, &loaded));
  assert_memory_equal(&saved, &loaded, sizeof saved);
  test_ok(choir_trainer_create(model[1], NULL, &other));
  test_ok(choir_trainer_resume(other, path));
  test_ok(choir_trainer_step(one, tokens, NULL, &a));
  test_ok(choir_trainer_step(other, tokens, NULL, &b));
  assert_int_equal(b.step, 3);
  assert_memory_equal(&a, &b, sizeof a);
  choir_trainer_free(one);
  choir_trainer_free(other);
  for (int i = 0; i < 2; i++) choir_model_free(model[i]);
  choir_model_free(read);
  test_ok(ch_dir_remove(directory));
}

static void resume_within(void *trainer, const choir_routing *routing) {
  (void)routing;
  test_fails(choir_trainer_resume(trainer, "nowhere"), CHOIR_ERROR_BUSY, "in use");
}

static void refuses(void **state) {
  choir_config c = config_of("expert_choice");
  choir_model *model = model_fresh(&c);
  choir_trainer *trainer, *other;
  choir_trainer_result r;
  choir_forward_result forward;
  int32_t tokens[TOKENS], targets[TOKENS];
  choir_config wrong = c;
  wrong.train.sequence_length = 0;
  test_fails(choir_trainer_create(model, &wrong, &trainer), CHOIR_ERROR_ARGUMENT, "sequence_length");
  assert_null(trainer);
  wrong = c;
  wrong.train.grad_chunks = 2;
  strcpy(wrong.train.freeze, "nothing.*");
  test_fails(choir_trainer_create(model, &wrong, &trainer), CHOIR_ERROR_ARGUMENT, "fits no weight");
  assert_memory_equal(&model->config.train, &c.train, sizeof c.train); /* as before */
  assert_int_equal(model->grad_chunks, c.train.grad_chunks);
  test_ok(choir_trainer_create(model, NULL, &trainer));
  model_tokens(tokens, TOKENS, 9);
  tokens[MODEL_T + 3] = MODEL_V;
  test_fails(choir_trainer_step(trainer, tokens, NULL, &r), CHOIR_ERROR_ARGUMENT, "token 96 at sequence 1, position 3");
  tokens[MODEL_T + 3] = 0;
  memset(targets, -1, sizeof targets);
  test_fails(choir_trainer_step(trainer, tokens, targets, &r), CHOIR_ERROR_ARGUMENT, "no position has a target");
  targets[0] = MODEL_V;
  test_fails(choir_trainer_step(trainer, tokens, targets, &r), CHOIR_ERROR_ARGUMENT, "target 96");
  test_fails(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 1, &forward), CHOIR_ERROR_UNSUPPORTED,
             "trainer");
  test_fails(choir_trainer_create(model, &c, &other), CHOIR_ERROR_BUSY, "already");
  assert_null(other);
  memset(targets, 0, sizeof targets);
  test_ok(choir_trainer_step(trainer, tokens, targets, &r)); /* as before */
  choir_model_on_routing(model, resume_within, trainer);
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 0, &forward));
  choir_model_on_routing(model, NULL, NULL);
  choir_trainer_free(trainer);
  test_ok(choir_model_forward(model, MODEL_B, MODEL_T, tokens, NULL, 1, &forward));
  choir_parameter p;
  test_ok(choir_model_parameter_at(model, 0, &p));
  double size = 0;
  for (int64_t i = 0; i < p.shape[0] * p.shape[1]; i++) size += fabs((double)p.gradient[i]);
  assert_true(size > 0 && isfinite(size));
  choir_trainer_free(NULL);
  choir_model_free(model);
}

/* A trainer with shards of its own plans for these, whatever the model was made with. Large enough that what is planned
 * for one way would not do for the other. */
static void shards_are_the_trainers(void **state) {
  for (int i = 0; i < 2; i++) {
    choir_config c = config_of("expert_choice");
    c.model.vocab_size = 8192;
    c.model.d_model = 256;
    c.train.grad_chunks = i ? 4 : 1;
    choir_model *model = model_fresh(&c);
    choir_config train = c;
    choir_trainer *trainer;
    choir_trainer_result r;
    int32_t tokens[TOKENS];
    train.train.grad_chunks = i ? 1 : 4;
    model_tokens(tokens, TOKENS, 9);
    test_ok(choir_trainer_create(model, &train, &trainer));
    test_ok(choir_trainer_step(trainer, tokens, NULL, &r));
    assert_true(isfinite(r.loss));
    choir_trainer_free(trainer);
    choir_model_free(model);
  }
}

/* Gradients that there was no memory for are nowhere, and those that layers share are nobody's. */
static void no_gradients_no_pointers(void **state) {
  for (int clip = 0; clip < 2; clip++) {
    choir_config c = config_of("expert_choice");
    choir_model *model = model_fresh(&c);
    choir_config train = c;
    choir_trainer *trainer;
    choir_parameter p;
    float *values = malloc((size_t)(MODEL_V * c.model.d_model) * sizeof *values);
    train.train.clip_norm = clip;
    train.train.batch_sequences = 1 << 13;
    train.train.sequence_length = 1 << 14;
    test_fails(choir_trainer_create(model, &train, &trainer), CHOIR_ERROR_MEMORY, "train.batch_sequences=");
    assert_int_equal(choir_model_config(model)->train.batch_sequences, c.train.batch_sequences);
    test_ok(choir_model_parameter_at(model, 0, &p));
    assert_null(p.gradient);
    train = c;
    train.train.clip_norm = clip;
    test_ok(choir_trainer_create(model, &train, &trainer));
    test_ok(choir_model_parameter_at(model, 0, &p));
    assert_int_equal(p.gradient != NULL, clip);
    assert_int_equal(choir_model_get_parameter(model, 0, 1, values), clip ? CHOIR_OK : CHOIR_ERROR_ARGUMENT);
    choir_trainer_free(trainer);
    choir_model_free(model);
    free(values);
  }
}

TEST_MAIN(NULL, NULL, learns, one_step_many_ways, targets_may_be_few, saves_and_resumes, refuses,
          shards_are_the_trainers, no_gradients_no_pointers)
