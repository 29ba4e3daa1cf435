/* A routing record on the heap, for tests of single ops. */
#ifndef CH_TESTS_RECORD_TESTING_H
#define CH_TESTS_RECORD_TESTING_H

#include "cpu/define.h"
#include "op/backend.h"
#include "testing.h"

static inline ch_record new_record(int n, int e, int max_slots) {
  return (ch_record){.tokens = n,
                     .experts = e,
                     .max_slots = max_slots,
                     .load = -1,
                     .expert_begin = calloc((size_t)e + 1, sizeof(int)),
                     .slot_token = calloc((size_t)max_slots + 1, sizeof(int)),
                     .slot_gate = test_new_normal(max_slots, 1),
                     .token_begin = calloc((size_t)n + 1, sizeof(int)),
                     .token_slot = calloc((size_t)max_slots + 1, sizeof(int))};
}

static inline void free_record(ch_record *r) {
  free(r->expert_begin), free(r->slot_token), free(r->slot_gate), free(r->token_begin), free(r->token_slot);
}

/* Nothing of it may be left from before. */
static inline void poison_record(ch_record *r) {
  memset(r->expert_begin, 0xff, ((size_t)r->experts + 1) * sizeof(int));
  memset(r->slot_token, 0xff, (size_t)r->max_slots * sizeof(int));
  memset(r->slot_gate, 0xff, (size_t)r->max_slots * sizeof(real));
}

/* The record of the pairs with keep[t,i]: by experts, then by tokens. Gates stay. */
static inline void record_from(ch_record *r, const uint8_t *keep) {
  int slot = 0;
  for (int i = 0; i < r->experts; i++) {
    r->expert_begin[i] = slot;
    for (int t = 0; t < r->tokens; t++)
      if (keep[t * r->experts + i]) r->slot_token[slot++] = t;
  }
  r->expert_begin[r->experts] = slot;
}

/* The same experts and tokens; gates are not looked at. */
static inline void same_slots(const ch_record *a, const ch_record *b) {
  assert_memory_equal(a->expert_begin, b->expert_begin, ((size_t)a->experts + 1) * sizeof(int));
  assert_memory_equal(a->slot_token, b->slot_token, (size_t)ch_slots(a) * sizeof(int));
}

/* The body with every number of threads on both backends; `x` is the executor, `pass_` 1 when it is for real. */
#define EVERYWHERE(...)                               \
  for (int backend_ = 0; backend_ < 2; backend_++)    \
    for (int threads_ = 1; threads_ <= 3; threads_++) \
  TEST_EXEC(backend_ ? "cpu" : "reference", CH_COMPUTE_FP32, threads_, __VA_ARGS__)

#endif
