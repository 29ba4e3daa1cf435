/* The block of today, for tests: everything that configs can have otherwise than the paper, at once. */
#ifndef CH_TESTS_MODERN_H
#define CH_TESTS_MODERN_H

#include "choir/config.h"
#include "testing.h"

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

#endif
