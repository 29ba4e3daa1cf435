/* What tests of whole models share. */
#ifndef CH_TESTS_MODERN_H
#define CH_TESTS_MODERN_H

#include "choir/choir.h"
#include "testing.h"

/* The block of today: everything that configs can have otherwise than the paper, at once. */
static inline void test_modern(choir_config *c) {
  test_ok(choir_config_set(c, "model.position", "rope"));
  test_ok(choir_config_set(c, "model.rope_theta", "100"));
  test_ok(choir_config_set(c, "model.rope_fraction", "0.65")); /* of 16 columns 10, of 22 14, of 32 20 */
  test_ok(choir_config_set(c, "model.kv_heads", "1"));
  test_ok(choir_config_set(c, "model.qk_norm", "true"));
  test_ok(choir_config_set(c, "model.tied", "false"));
  test_ok(choir_config_set(c, "model.embed_scale", "0.7"));
  test_ok(choir_config_set(c, "model.head_scale", "0.3"));
}

/* Thresholds of every layer: first, first + step, ... for its experts, where the router keeps any. */
static inline void test_thresholds(choir_model *model, double first, double step) {
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    float value[64];
    choir_parameter p;
    test_ok(choir_model_parameter_at(model, i, &p));
    if (!strstr(p.name, "moe.thresholds")) continue;
    assert_in_range(p.shape[0], 1, 64);
    for (int e = 0; e < p.shape[0]; e++) value[e] = (float)(first + step * e);
    test_ok(choir_model_set_parameter(model, i, value));
  }
}

#endif
