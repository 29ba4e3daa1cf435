/* Models that are trained by masking, and texts for them. */
#ifndef CH_TESTS_MASK_TESTING_H
#define CH_TESTS_MASK_TESTING_H

#include "model/config.h"
#include "model_testing.h"

static inline choir_config masked(const char *objective) {
  choir_config c = model_config("expert_choice");
  test_ok(choir_config_set(&c, "model.attention", "bidirectional"));
  test_ok(choir_config_set(&c, "train.objective", objective));
  return c;
}

/* Tokens of a text: never the mask. */
static inline void draw_text(int32_t *text, int count, uint32_t sub) {
  model_tokens(text, count, sub);
  for (int i = 0; i < count; i++) text[i] %= MODEL_V - 1;
}

#endif
