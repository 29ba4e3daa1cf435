/* Models that are trained by masking, and texts for them. */
#ifndef CH_TESTS_MASK_TESTING_H
#define CH_TESTS_MASK_TESTING_H

#include "model/config.h"
#include "model_testing.h"

static inline choir_config masked(const char *objective) {
  choir_config c = model_config("expert_choice");
  test_set(&c, "attention=bidirectional objective=%s", objective);
  return c;
}

/* Tokens of a text: never the mask. */
static inline void draw_text(int32_t *text, int count, uint32_t sub) {
  model_tokens(text, count, sub);
  for (int i = 0; i < count; i++) text[i] %= MODEL_V - 1;
}

/* ---- a model so small that everything about it can be enumerated: 3 tokens, texts of 4 ---- */

enum { V = 3, T = 4, TEXTS = 81, READ = 256, MASK = V };

typedef struct {
  choir_model *model;
  double log_p[READ][T][V]; /* of every text with masks, in base 4 */
} tiny;

static inline void make_tiny(tiny *c, const char *objective) {
  choir_config config = masked(objective);
  test_set(&config, "vocab_size=%d experts=2 sequence_length=%d batch_sequences=1 router.pool=sequence", V + 1, T);
  test_set(&config, "head_scale=0.25"); /* far from uniform */
  choir_model_options run = {.size = sizeof run, .threads = 1};
  test_ok(choir_model_create(&config, 5, &run, &c->model));
  for (int code = 0; code < READ; code++) {
    int32_t token[T];
    float logits[T * (V + 1)];
    choir_forward_result r;
    for (int t = 0, rest = code; t < T; t++, rest /= 4) token[t] = rest % 4;
    test_ok(choir_model_forward(c->model, 1, T, token, logits, 0, &r));
    assert_true(isnan(r.loss));
    for (int t = 0; t < T; t++) {
      double sum = 0;
      for (int v = 0; v <= V; v++) sum += exp((double)logits[t * (V + 1) + v]);
      for (int v = 0; v < V; v++) c->log_p[code][t][v] = (double)logits[t * (V + 1) + v] - log(sum);
    }
  }
}

/* The text with the tokens of `set` masked. */
static inline int read_as(const int32_t *text, int set) {
  int code = 0;
  for (int t = T - 1; t >= 0; t--) code = 4 * code + (set >> t & 1 ? MASK : text[t]);
  return code;
}

#endif
