/* The tests of generation share a small model whose sizes fill no vector. */
#ifndef CH_TESTS_INFER_TESTING_H
#define CH_TESTS_INFER_TESTING_H

#include "choir/choir.h"
#include "model/config.h"
#include "modern.h"
#include "testing.h"

enum { B = 3, T = 21, V = 50 };

static inline choir_model_options test_run_options(const char *backend, const char *compute) {
  return (choir_model_options){
      .size = sizeof(choir_model_options), .backend = backend, .compute = compute, .emulate_bf16 = 1, .threads = 2};
}

/* Sizes that fill no vector. Thresholds are such that a token meets about two of seven experts. Router "modern" is
 * expert_choice in a model with the block of today. */
static inline choir_model *test_model(const char *router, const char *compute) {
  int modern = !strcmp(router, "modern");
  if (modern) router = "expert_choice";
  choir_config c;
  choir_model *model;
  choir_model_options run = test_run_options("cpu", compute);
  ch_config_default(&c);
  test_set(&c,
           "vocab_size=%d layers=4 d_model=66 d_hidden=91 d_expert=75 heads=3 sequence_length=%d batch_sequences=%d", V,
           T, B);
  c.model.experts = strcmp(router, "dense") ? 7 : 1;
  c.model.router = test_router(router);
  if (modern) {
    test_modern(&c);
    test_set(&c,
             "activation=swiglu expert_activation=swiglu router.score=sigmoid dense_layers=1 moe_every=1 "
             "shared_experts=1");
  }
  test_ok(choir_model_create(&c, 5, &run, &model));
  test_thresholds(model, 0.15, 0.01);
  test_ok(choir_model_set_routing(model, "threshold"));
  return model;
}

static inline void test_tokens(int32_t *token, int count) {
  for (int i = 0; i < count; i++) token[i] = (int32_t)ch_rng_below(ch_rng_make(1, CH_STREAM_TEST, 3), (uint64_t)i, V);
}

/* The call fails with that code, and a message that says so. */
#define test_refused(call, code, part)                                 \
  do {                                                                 \
    int got_ = (call);                                                 \
    if (got_ != (code) || !strstr(choir_error_message(), (part)))      \
      fail_msg("%s: got %d (%s)", #call, got_, choir_error_message()); \
  } while (0)

#endif
