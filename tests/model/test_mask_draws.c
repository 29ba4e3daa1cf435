/* Training by masking: which tokens are masked, and the weights that make the mean of losses a bound; and scores of
 * continuations, beside what enumeration gives. */
#include "mask_testing.h"
#include "model/mask.h"

typedef struct {
  int32_t token[MODEL_T], target[MODEL_T];
  float weight[MODEL_T];
  int weighted;
} drawn;

static drawn draw(const choir_config *c, int64_t step, int row, const int32_t *text) {
  drawn d;
  memset(&d, 0, sizeof d);
  ch_mask_training(c, step, row, text, d.token, d.target, d.weight, &d.weighted);
  return d;
}

/* Each sequence of a step has a stratum of its own, spread over micro-batches; the sum of the weights of masked tokens
 * is that of all tokens on average; and the same (seed, step, row) gives the same draws. */
static void diffusion_draws(void **state) {
  choir_config c = masked("masked_diffusion");
  enum { STEPS = 400, ROWS = 2 * MODEL_B };
  c.train.accumulate = 2;
  for (int cosine = 0; cosine < 2; cosine++) {
    c.train.mask_schedule = cosine ? CH_MASK_COSINE : CH_MASK_LINEAR;
    double weights = 0, low = 0;
    for (int64_t step = 0; step < STEPS; step++) {
      int seen[ROWS] = {0};
      for (int row = 0; row < ROWS; row++) {
        int32_t text[MODEL_T];
        draw_text(text, MODEL_T, (uint32_t)row);
        drawn d = draw(&c, step, row, text), again = draw(&c, step, row, text);
        assert_memory_equal(&d, &again, sizeof d);
        assert_true(d.weighted && d.weight[0] > 0);
        double t = 1 / (double)d.weight[0]; /* linear: the probability of a mask, from 0.001 on */
        if (!cosine) seen[(int)((t - CH_MASK_MIN) / (1 - CH_MASK_MIN) * ROWS)]++;
        if (!cosine && row < MODEL_B) low += t < 0.5;
        for (int i = 0; i < MODEL_T; i++) {
          assert_true(d.target[i] < 0 ? d.token[i] == text[i]
                                      : d.token[i] == choir_config_mask_token(&c) && d.target[i] == text[i]);
          if (d.target[i] >= 0) weights += (double)d.weight[i];
        }
      }
      for (int s = 0; s < ROWS && !cosine; s++) assert_int_equal(seen[s], 1);
    }
    double all = STEPS * ROWS * (double)MODEL_T;
    assert_true(fabs(weights / all - 1) < 0.02);
    if (!cosine)
      assert_int_equal((int)low, STEPS * MODEL_B / 2); /* each micro-batch has half of its ratios below 1/2 */
  }
  int32_t text[MODEL_T];
  draw_text(text, MODEL_T, 1);
  drawn d = draw(&c, 3, 2, text), next = draw(&c, 4, 2, text);
  assert_memory_not_equal(&d, &next, sizeof d);
  c.train.seed++;
  next = draw(&c, 3, 2, text);
  assert_memory_not_equal(&d, &next, sizeof d);
}

/* As in BERT 15 % of tokens are predicted: 80 % of these are masked, 10 % replaced and 10 % unchanged. */
static void lm_draws(void **state) {
  choir_config c = masked("masked_lm");
  enum { STEPS = 500 };
  double all = STEPS * MODEL_B * (double)MODEL_T, chosen = 0, hidden = 0, kept = 0;
  for (int64_t step = 0; step < STEPS; step++)
    for (int row = 0; row < MODEL_B; row++) {
      int32_t text[MODEL_T];
      draw_text(text, MODEL_T, (uint32_t)row);
      drawn d = draw(&c, step, row, text);
      assert_int_equal(d.weighted, 0);
      for (int i = 0; i < MODEL_T; i++) {
        if (d.target[i] < 0) assert_int_equal(d.token[i], text[i]);
        if (d.target[i] < 0) continue;
        assert_int_equal(d.target[i], text[i]);
        assert_in_range(d.token[i], 0, MODEL_V - 1);
        chosen++, hidden += d.token[i] == choir_config_mask_token(&c), kept += d.token[i] == text[i];
      }
    }
  assert_true(fabs(chosen / all - 0.15) < 0.004);
  assert_true(fabs(hidden / chosen - 0.8) < 0.012);
  assert_true(fabs(kept / chosen - 0.1 - 0.1 / (MODEL_V - 1)) < 0.012);
}

/* Evaluation masks exactly the number of tokens that the ratio gives, and every subset of that size equally often. */
static void evaluation_draws(void **state) {
  choir_config c = masked("masked_diffusion");
  enum { T = 5, N = 60000 };
  int32_t text[T] = {1, 2, 3, 4, -1}, token[T], target[T];
  int sizes[T] = {0}, choices[16] = {0};
  for (int64_t i = 0; i < N; i++) {
    double ratio = 0;
    int set = 0, k = ch_mask_evaluation(&c, i, N, i, 1, text, T, token, target, &ratio), found = 0;
    assert_true(ratio * N >= (double)i && ratio * N <= (double)i + 1);
    for (int t = 0; t < T; t++) found += target[t] >= 0, set |= (target[t] >= 0) << t;
    assert_int_equal(found, k);
    assert_int_equal(k, (int)ceil(4 * ratio));
    assert_true(token[4] == -1 && target[4] == -1);
    sizes[k]++, choices[set]++;
  }
  for (int k = 1; k <= 4; k++) assert_in_range(sizes[k], N / 4 - 1, N / 4 + 1);
  double given = 0.5; /* a ratio that is given stays */
  assert_int_equal(ch_mask_evaluation(&c, 3, N, 3, 1, text, T, token, target, &given), 2);
  assert_true(given == 0.5);
  const int as_many[] = {0, 4, 6, 4, 1};
  for (int set = 1; set < 16; set++) {
    double want = N / 4.0 / as_many[__builtin_popcount((unsigned)set)];
    assert_true(fabs(choices[set] - want) < 5 * sqrt(want));
  }
}

/* ---- scores: a context of one token, a continuation of three ---- */

enum { CONTEXT = 1, SCORED = T - CONTEXT };

/* The bound of a continuation, in nats: the mean over k, over all choices of k of its tokens, of their mean loss, times
 * their number. With `alone`, instead the sum of each token's with that one masked. */
static double enumerated_score(const tiny *c, const int32_t *text, int alone) {
  const double choose[] = {1, 3, 3, 1};
  double sum = 0;
  for (int set = 1; set < 1 << SCORED; set++) {
    int k = __builtin_popcount((unsigned)set);
    for (int t = 0; t < SCORED; t++)
      if (set >> t & 1 && (!alone || k == 1))
        sum += c->log_p[read_as(text, set << CONTEXT)][CONTEXT + t][text[CONTEXT + t]] / (alone ? 1 : k * choose[k]);
  }
  return sum;
}

static choir_score_request tiny_request(const int32_t *text, int count) {
  return (choir_score_request){.context = {.tokens = text, .count = CONTEXT},
                               .continuation = {.tokens = text + CONTEXT, .count = count}};
}

/* Every request gets the same bits in any order, batch and number of masks; of one token the exact probability. */
static void check_scores(const tiny *c, const char *measure, int samples, choir_score_result *r) {
  static int32_t text[TEXTS][T];
  choir_score_request request[TEXTS];
  choir_score_options o = {.size = sizeof o, .batch = 3, .chunk = 1, .mask_samples = samples};
  choir_score_result again;
  for (int number = 0; number < TEXTS; number++) {
    for (int t = 0, rest = number; t < T; t++, rest /= 3) text[number][t] = rest % 3;
    request[TEXTS - 1 - number] = tiny_request(text[number], SCORED);
  }
  test_ok(choir_score(c->model, NULL, request, TEXTS, &o, &again));
  for (int number = 0; number < TEXTS; number++) request[number] = tiny_request(text[number], SCORED);
  o.batch = 16;
  test_ok(choir_score(c->model, NULL, request, TEXTS, &o, r));
  assert_string_equal(r->measure, measure);
  assert_string_equal(r->routing, "sequence");
  for (int number = 0; number < TEXTS; number++) {
    const choir_scored *s = &r->score[number];
    double sum = 0;
    assert_true(s->log_likelihood == again.score[TEXTS - 1 - number].log_likelihood);
    for (int t = 0; t < SCORED; t++) sum += (double)s->log_probability[t];
    assert_true(fabs(sum - s->log_likelihood) < 1e-5);
    assert_int_equal(s->greedy, -1);
  }
  choir_score_result_clear(&again);
  for (int number = 0; number < TEXTS; number++) request[number] = tiny_request(text[number], 1);
  test_ok(choir_score(c->model, NULL, request, 3, &o, &again));
  for (int number = 0; number < 3; number++) {
    float logits[(CONTEXT + 1) * (V + 1)];
    int32_t read[] = {text[number][0], MASK};
    choir_forward_result ignored;
    double total = 0;
    test_ok(choir_model_forward(c->model, 1, CONTEXT + 1, read, logits, 0, &ignored));
    for (int v = 0; v <= V; v++) total += exp((double)logits[V + 1 + v]);
    assert_true(fabs(again.score[number].log_likelihood + log(total) - (double)logits[V + 1 + text[number][1]]) < 1e-5);
    assert_true(again.score[number].standard_error == 0);
  }
  choir_score_result_clear(&again);
}

/* A score of masked_diffusion is the enumerated bound within its standard error, that of masked_lm the sum of the
 * tokens' log-probabilities, each given all others. */
static void scores(void **state) {
  static tiny c;
  choir_score_result r;
  double squares = 0;
  make_tiny(&c, "masked_diffusion");
  check_scores(&c, CHOIR_SCORE_LOWER_BOUND, 200, &r);
  for (int number = 0; number < TEXTS; number++) {
    int32_t text[T];
    for (int t = 0, rest = number; t < T; t++, rest /= 3) text[t] = rest % 3;
    double error = r.score[number].standard_error, bound = enumerated_score(&c, text, 0);
    assert_true(error > 0 && error < 0.3);
    squares += pow((r.score[number].log_likelihood - bound) / error, 2) / TEXTS;
  }
  if (!(squares > 0.2 && squares < 3)) fail_msg("scores are off by %g standard errors", sqrt(squares));
  choir_score_result_clear(&r);
  choir_model_free(c.model);
  make_tiny(&c, "masked_lm");
  check_scores(&c, CHOIR_SCORE_PSEUDO, 0, &r);
  for (int number = 0; number < TEXTS; number++) {
    int32_t text[T];
    for (int t = 0, rest = number; t < T; t++, rest /= 3) text[t] = rest % 3;
    assert_true(fabs(r.score[number].log_likelihood - enumerated_score(&c, text, 1)) < 1e-5);
    assert_true(r.score[number].standard_error == 0);
  }
  choir_score_result_clear(&r);
  choir_score_request request = tiny_request((const int32_t[]){1, 2}, 1);
  choir_score_options o = {.size = sizeof o, .batch = 1, .chunk = 1, .mask_samples = 4};
  test_fails(choir_score(c.model, NULL, &request, 1, &o, &r), CHOIR_ERROR_ARGUMENT, "whose scores draw nothing");
  request = tiny_request((const int32_t[]){1, MASK}, 1);
  test_fails(choir_score(c.model, NULL, &request, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "outside the vocabulary of 3");
  choir_model_free(c.model);
}

TEST_MAIN(NULL, NULL, scores, diffusion_draws, lm_draws, evaluation_draws)
