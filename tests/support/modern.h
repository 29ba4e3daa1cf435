/* What tests of whole models share. */
#ifndef CH_TESTS_MODERN_H
#define CH_TESTS_MODERN_H

#include "choir/choir.h"
#include "testing.h"

/* The block of today: everything that configs can have otherwise than the paper, at once. */
static inline void test_modern(choir_config *c) {
  /* rope turns of 16 columns 10, of 22 14, of 32 20 */
  test_set(c,
           "position=rope rope_theta=100 rope_fraction=0.65 kv_heads=1 qk_norm=true tied=false embed_scale=0.7 "
           "head_scale=0.3");
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
