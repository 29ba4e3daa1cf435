/* Models trained by masking: the bound of a tiny one beside the exact probability of every text, training, capacity by
 * the share of masked tokens, filling gaps. What is masked: test_mask_draws. */
#include "mask_testing.h"
#include "train/evaluate.h"

/* The probability that a model which fills one gap after the other, in any order, all orders alike, writes the text:
 * p(set) of those that are still missing is the mean over which comes next. */
static double exact(const tiny *c, const int32_t *text) {
  double p[1 << T] = {1};
  for (int set = 1; set < 1 << T; set++) {
    p[set] = 0;
    for (int t = 0; t < T; t++)
      if (set >> t & 1) p[set] += exp(c->log_p[read_as(text, set)][t][text[t]]) * p[set & ~(1 << t)];
    p[set] /= __builtin_popcount((unsigned)set);
  }
  return p[(1 << T) - 1];
}

/* The mean over k, over all choices of k tokens, of their mean loss: the bound, nats a token. */
static double enumerated(const tiny *c, const int32_t *text) {
  const double choose[] = {1, 4, 6, 4, 1};
  double bound = 0;
  for (int set = 1; set < 1 << T; set++) {
    int k = __builtin_popcount((unsigned)set);
    for (int t = 0; t < T; t++)
      if (set >> t & 1) bound -= c->log_p[read_as(text, set)][t][text[t]] / (k * choose[k] * T);
  }
  return bound;
}

/* Every text: the bound is above -log p, the probabilities of all texts sum to at most 1, and evaluation finds the
 * enumerated bound within its standard error, which is what repeated evaluations differ by. */
static void bound_of_a_tiny_model(void **state) {
  static tiny c;
  make_tiny(&c, "masked_diffusion");
  double total = 0, gap = 0, squares = 0;
  int checked = 0;
  for (int number = 0; number < TEXTS; number++) {
    int32_t text[T + 1];
    for (int t = 0, rest = number; t < T; t++, rest /= 3) text[t] = rest % 3;
    text[T] = -1;
    double p = exact(&c, text), bound = enumerated(&c, text);
    total += p;
    gap = fmax(gap, T * bound + log(p));
    assert_true(T * bound + log(p) >= -1e-9);
    if (number % 8) continue;
    ch_windows w = ch_windows_text(text, T, T);
    w.mask_samples = 200;
    choir_eval_result r;
    test_ok(ch_evaluate(c.model, &w, 1, 0, NULL, NULL, NULL, &r));
    assert_string_equal(r.objective, "masked_diffusion");
    assert_int_equal(r.tokens, T);
    assert_true(r.standard_error > 0 && r.standard_error < 0.2);
    assert_true(fabs(r.loss - bound) < 4.5 * r.standard_error);
    double sum = 0;
    int64_t evaluations = 0;
    for (int i = 0; i < r.ratio_count; i++) {
      assert_true(fabs(r.ratio[i].to - r.ratio[i].from - 0.1) < 1e-12);
      sum += (double)r.ratio[i].evaluations * r.ratio[i].loss, evaluations += r.ratio[i].evaluations;
    }
    assert_true(r.ratio_count == 10 && evaluations == 200);
    assert_true(fabs(sum / 200 - r.loss) < 1e-6); /* the curve's mean is the bound */
    squares += pow((r.loss - bound) / r.standard_error, 2), checked++;
  }
  assert_true(total <= 1 + 1e-6 && total > 0);
  assert_true(gap > 1e-3); /* it is a bound, not the probability */
  double spread = sqrt(squares / checked);
  assert_true(spread > 0.4 && spread < 1.7);
  choir_model_free(c.model);
}

/* Of pool `sequence` a text's evaluation does not depend on the size of batches, bit for bit. */
static void batches_do_not_matter(void **state) {
  choir_config c = masked("masked_diffusion");
  test_ok(choir_config_set(&c, "router.pool", "sequence"));
  choir_model *model = model_fresh(&c);
  int32_t text[MODEL_T * 20];
  choir_eval_result r[3];
  draw_text(text, MODEL_T * 20, 9);
  for (int i = 0; i < 3; i++) {
    ch_windows w = ch_windows_text(text, MODEL_T * 20, MODEL_T);
    w.mask_samples = 2;
    test_ok(ch_evaluate(model, &w, (int[]){1, 8, 5}[i], 0, NULL, NULL, NULL, &r[i]));
    assert_true(fabs(r[i].loss - r[0].loss) < 1e-6 && fabs(r[i].standard_error - r[0].standard_error) < 1e-5);
  }
  choir_model_free(model);
}

/* A few steps on the same sequences lower the bound; with the step's own masks, as training draws them. */
static void trains(void **state) {
  static const char *const objectives[] = {"masked_diffusion", "masked_lm"};
  for (int i = 0; i < 2; i++) {
    choir_config c = masked(objectives[i]);
    c.train.learning_rate = 0.05;
    choir_model *model = model_fresh(&c);
    choir_trainer *trainer;
    choir_trainer_result r;
    int32_t token[MODEL_B * MODEL_T];
    double first = 0, last = 0;
    test_ok(choir_trainer_create(model, NULL, &trainer));
    for (int t = 0; t < MODEL_B * MODEL_T; t++) token[t] = (t % MODEL_T * 7 + 3) % 11;
    for (int step = 0; step < 120; step++) {
      test_ok(choir_trainer_step(trainer, token, NULL, &r));
      if (step < 10) first += r.loss / 10;
      if (step >= 110) last += r.loss / 10;
    }
    if (!(first > 2.5 && last < log(11))) /* 11 different tokens: below that of their frequencies */
      fail_msg("%s: from %g to %g", objectives[i], first, last);
    choir_trainer_free(trainer);
    choir_model_free(model);
  }
}

/* ---- capacity by mask ratio ---- */

typedef struct {
  const int32_t *token;
  double c;
  int masked[2], slots[2]; /* of the two sequences */
} capacities;

static void count_slots(void *context, const choir_routing *r) {
  capacities *s = context;
  for (int i = 0; i < 2; i++) s->slots[i] = 0;
  for (int slot = 0; slot < r->expert_begin[r->experts]; slot++) s->slots[r->slot_token[slot] / MODEL_T]++;
}

/* Experts of a sequence take what the schedule says of its own share of masked tokens. */
static void capacity_goes_by_the_share(void **state) {
  static const struct {
    const char *name;
    double none, half, all;
  } schedules[] = {{"constant", 1, 1, 1},
                   {"linear", 0.5, 1, 1.5},
                   {"linear-reverse", 1.5, 1, 0.5},
                   {"gaussian", 0.0887, 2.0198, 0.0887}};
  for (int i = 0; i < 4; i++) {
    choir_config c = masked("masked_diffusion");
    test_ok(choir_config_set(&c, "router.pool", "sequence"));
    test_ok(choir_config_set(&c, "capacity_schedule", schedules[i].name));
    choir_model *model = model_fresh(&c);
    choir_forward_result r;
    int32_t token[2 * MODEL_T];
    capacities s = {.token = token};
    choir_model_on_routing(model, count_slots, &s);
    for (int half = 0; half < 2; half++) {
      draw_text(token, 2 * MODEL_T, 4);
      for (int t = 0; t < MODEL_T / (1 + half); t++) token[MODEL_T + t] = choir_config_mask_token(&c);
      test_ok(choir_model_forward(model, 2, MODEL_T, token, NULL, 0, &r));
      for (int sequence = 0; sequence < 2; sequence++) {
        double factor = !sequence ? schedules[i].none : half ? schedules[i].half : schedules[i].all;
        assert_int_equal(s.slots[sequence], MODEL_E * ch_router_k(2 * factor, MODEL_T, MODEL_E));
      }
    }
    double mean = 0;
    for (int j = 0; j < 1000; j++) mean += ch_router_scheduled(&c.model.router, 2, (j + 0.5) / 1000) / 1000;
    assert_true(fabs(mean - 2) < 1e-5);
    choir_model_free(model);
  }
}

/* ---- filling gaps ---- */

static int stop_after_three(void *context, const choir_progress *p) {
  assert_true(p->done <= p->total);
  assert_true(p->seconds > 0 && p->seconds < 1000); /* of this call */
  return ++*(int *)context == 3;
}

/* Every way fills all gaps and nothing else, with no mask, and the same for the same seed; at temperature 0 in one pass
 * it takes the likeliest token of each; with one gap a pass in random order it draws as the exact probability says. */
static void fills(void **state) {
  choir_config c = masked("masked_diffusion");
  choir_model *model = model_fresh(&c);
  choir_forward_result r;
  enum { N = 20 };
  int32_t mask = choir_config_mask_token(&c), text[N], before[N];
  static float logits[N * MODEL_V];
  for (int t = 0; t < N; t++) before[t] = t % 3 ? mask : t;
  const choir_fill_options ways[] = {
      {.size = sizeof *ways, .top_p = 1, .temperature = 1},
      {.size = sizeof *ways, .top_p = 0.9, .temperature = 0.7, .steps = 4, .block = 5, .random_order = 1},
      {.size = sizeof *ways, .top_p = 1, .steps = 3, .seed = 3},
      {.size = sizeof *ways, .top_p = 1, .steps = 1000, .block = 1000, .top_k = 2, .temperature = 2}};
  for (int i = 0; i < 4; i++) {
    int32_t again[N];
    memcpy(text, before, sizeof text), memcpy(again, before, sizeof text);
    test_ok(choir_fill(model, N, text, &ways[i]));
    test_ok(choir_fill(model, N, again, &ways[i]));
    assert_memory_equal(text, again, sizeof text);
    for (int t = 0; t < N; t++) assert_true(t % 3 ? text[t] >= 0 && text[t] < mask : text[t] == t);
  }
  memcpy(text, before, sizeof text);
  test_ok(
      choir_fill(model, N, text, &(choir_fill_options){.size = sizeof(choir_fill_options), .top_p = 1, .steps = 1}));
  test_ok(choir_model_forward(model, 1, N, before, logits, 0, &r));
  for (int t = 0; t < N; t++)
    for (int v = 0; v < mask && t % 3; v++) assert_true(logits[t * MODEL_V + v] <= logits[t * MODEL_V + text[t]]);
  int calls = 0;
  memcpy(text, before, sizeof text);
  choir_fill_options stopped = {
      .size = sizeof stopped, .top_p = 1, .temperature = 1, .progress = stop_after_three, .context = &calls};
  test_fails(choir_fill(model, N, text, &stopped), CHOIR_ERROR_INTERRUPTED, "3 of 13 gaps");
  test_fails(
      choir_fill(model, N, text, &(choir_fill_options){.size = sizeof(choir_fill_options), .top_p = 1, .steps = -1}),
      CHOIR_ERROR_ARGUMENT, "steps -1");
  test_fails(choir_fill(model, 0, text, NULL), CHOIR_ERROR_ARGUMENT, "count 0");
  test_fails(choir_fill(model, 1, &(int32_t){-7}, NULL), CHOIR_ERROR_ARGUMENT,
             "token 0 is -7"); /* without a gap, too */
  choir_model_free(model);
}

/* Texts of the tiny model, one gap a pass in random order: as often as their exact probability, given that the mask
 * itself is never drawn. */
static void draws_what_the_model_says(void **state) {
  static tiny c;
  enum { N = 1000 };
  make_tiny(&c, "masked_diffusion");
  for (int code = 0; code < READ; code++) /* without the mask's share */
    for (int t = 0; t < T; t++) {
      double sum = 0;
      for (int v = 0; v < V; v++) sum += exp(c.log_p[code][t][v]);
      for (int v = 0; v < V; v++) c.log_p[code][t][v] -= log(sum);
    }
  int found[TEXTS] = {0};
  for (uint64_t seed = 0; seed < N; seed++) {
    int32_t text[T] = {MASK, MASK, MASK, MASK};
    test_ok(choir_fill(
        c.model, T, text,
        &(choir_fill_options){
            .size = sizeof(choir_fill_options), .temperature = 1, .top_p = 1, .random_order = 1, .seed = seed}));
    found[text[0] + 3 * text[1] + 9 * text[2] + 27 * text[3]]++;
  }
  double chi = 0, total = 0;
  for (int number = 0; number < TEXTS; number++) {
    int32_t text[T];
    for (int t = 0, rest = number; t < T; t++, rest /= 3) text[t] = rest % 3;
    double p = exact(&c, text);
    total += p;
    chi += pow(found[number] - N * p, 2) / (N * p);
  }
  assert_true(fabs(total - 1) < 1e-9);
  assert_true(chi < 80 + 4.5 * sqrt(160));
  choir_model_free(c.model);
}

/* ---- refusals ---- */

static void refuse(const char *key, const char *value, const char *more_key, const char *more, const char *why) {
  choir_config c = model_config("expert_choice");
  test_ok(choir_config_set(&c, key, value));
  if (more_key) test_ok(choir_config_set(&c, more_key, more));
  test_fails(choir_config_check(&c), CHOIR_ERROR_ARGUMENT, why);
}

static void meaningless_settings_are_refused(void **state) {
  refuse("model.attention", "bidirectional", NULL, NULL, "next_token with model.attention bidirectional");
  refuse("train.objective", "masked_lm", NULL, NULL, "masked_lm with model.attention causal");
  refuse("train.mask_schedule", "cosine", NULL, NULL, "mask_schedule is cosine, which train.objective 'next_token'");
  refuse("router.capacity_schedule", "linear", NULL, NULL, "capacity_schedule is linear with train.objective next_tok");
  choir_config c = masked("masked_diffusion");
  choir_model_options run = {.size = sizeof run, .threads = 1};
  choir_model *model;
  choir_session *session;
  choir_forward_result r;
  int32_t token[4] = {1, 2, 3, 4};
  test_ok(choir_model_create(&c, 5, &run, &model));
  test_fails(choir_session_create(model, NULL, &session), CHOIR_ERROR_UNSUPPORTED, "model.attention is bidirectional");
  test_fails(choir_model_forward(model, 1, 4, token, NULL, 1, &r), CHOIR_ERROR_UNSUPPORTED,
             "train.objective is masked");
  assert_int_equal(choir_config_mask_token(&c), MODEL_V - 1);
  choir_model_free(model);
}

TEST_MAIN(NULL, NULL, bound_of_a_tiny_model, batches_do_not_matter, trains, capacity_goes_by_the_share, fills,
          draws_what_the_model_says, meaningless_settings_are_refused)
