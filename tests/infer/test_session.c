/* Sessions: their logits against whole passes, and against themselves however tokens are cut and batched. */
#include "infer/session.h"
#include "infer_testing.h"
#include "npy/npy.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"
static choir_model *load(const char *router, const char *backend) {
  char path[512];
  choir_model *model;
  choir_model_options run = test_run_options(backend, "fp32");
  snprintf(path, sizeof path, VECTORS "model/%s", router);
  test_ok(choir_model_load(path, &run, &model, NULL));
  test_ok(choir_model_set_routing(model, "threshold"));
  return model;
}

static choir_session *session_of(choir_model *model, int slots, int length, int chunk) {
  choir_session *session;
  test_ok(choir_session_create(
      model,
      &(choir_session_options){.size = sizeof(choir_session_options), .slots = slots, .length = length, .chunk = chunk},
      &session));
  return session;
}

/* All tokens of tokens.npy in one call that is cut into chunks of all sizes: what forward says. */
static void check_against_forward(const char *router, const char *backend, const ch_npy *tokens) {
  choir_model *model = load(router, backend);
  int slots = (int)tokens->shape[0], length = (int)tokens->shape[1];
  int64_t vocabulary = choir_model_config(model)->model.vocab_size, count = slots * length * vocabulary;
  real *want = test_new(count), *got = test_new(count), *last = test_new(slots * vocabulary);
  int counts[16];
  choir_forward_result result;
  test_ok(choir_model_forward(model, slots, length, tokens->data, want, 0, &result));
  for (int b = 0; b < slots; b++) counts[b] = length;
  for (int chunk = 1; chunk <= 2 * slots * length; chunk += 1 + chunk / 3) {
    choir_session *s = session_of(model, slots, length, chunk);
    test_poison(got, count);
    test_poison(last, slots * vocabulary);
    test_ok(choir_session_advance(s, counts, tokens->data, last, got));
    test_close(got, want, count, 1e-5);
    for (int b = 0; b < slots; b++)
      assert_memory_equal(last + b * vocabulary, got + ((b + 1) * length - 1) * vocabulary,
                          (size_t)vocabulary * sizeof(real));
    choir_session_free(s);
  }
  free(want), free(got), free(last);
  choir_model_free(model);
}

static void equals_forward(void **state) {
  ch_npy tokens;
  test_ok(ch_npy_read(VECTORS "tokens.npy", CH_NPY_INT32, 2, &tokens));
  for (const char *const *router = choir_router_names(); *router; router++) {
    char path[512];
    snprintf(path, sizeof path, VECTORS "model/%s/config.json", *router);
    FILE *there = fopen(path, "r");
    if (!there) continue; /* a router without an independent reference */
    fclose(there);
    check_against_forward(*router, "cpu", &tokens);
    check_against_forward(*router, "reference", &tokens);
  }
  ch_npy_free(&tokens);
}

/* Sequences of different lengths come in random pieces, pause, start over: logits behind each token as [B,T,V]. */
static void advance_randomly(choir_model *model, int chunk, uint32_t sub, const int32_t *token, real *out) {
  choir_session *s = session_of(model, B, T + 5, chunk);
  ch_rng rng = ch_rng_make(9, CH_STREAM_TEST, sub);
  real *all = test_new(B * T * V);
  int counts[B];
  int32_t now[B * T];
  uint64_t draw = 0;
  for (int left = B * T; left > 0;) {
    int n = 0;
    for (int b = 0; b < B; b++) {
      int length = choir_session_length(s, b), max = T - length;
      counts[b] = (int)ch_rng_below(rng, draw++, (uint64_t)(max < 6 ? max : 6) + 1);
      for (int i = 0; i < counts[b]; i++) now[n++] = token[b * T + length + i];
    }
    if (!n) continue;
    test_ok(choir_session_advance(s, counts, now, NULL, all));
    left -= n;
    for (int b = 0, row = 0; b < B; row += counts[b++])
      memcpy(out + ((int64_t)b * T + choir_session_length(s, b) - counts[b]) * V, all + row * V,
             (size_t)counts[b] * V * sizeof *out);
    int again = (int)ch_rng_below(rng, draw++, B), to = choir_session_length(s, again) / 2;
    if (ch_rng_below(rng, draw++, 4) == 0) { /* what is forgotten comes again, and must give the same */
      left += choir_session_length(s, again) - to;
      test_ok(choir_session_rewind(s, again, to));
    }
  }
  free(all);
  choir_session_free(s);
}

/* Takes all routers, and the block of today. */
static const char *const *kinds(void) {
  enum { MAX = 63 };
  static const char *all[MAX + 1];
  const char *const *router = choir_router_names();
  int count = 0;
  while (router[count] && count < MAX - 1) all[count] = router[count], count++;
  all[count] = "modern";
  return all;
}

/* The same bits in pieces of any size, alone or beside others, for every router, and for every instruction set; near to
 * forward, in fp32: elsewhere choices flip. */
static void check_cuts(const char *routing, const char *compute) {
  static const char *const isas[] = {"generic", "avx2", "avx512"};
  int32_t token[B * T];
  test_tokens(token, B * T);
  int64_t count = B * T * V;
  real *want = test_new(count), *got = test_new(count), *alone = test_new(T * V);
  int checked = 0;
  for (int isa = 0; isa < 3; isa++)
    for (const char *const *router = kinds(); *router; router++) {
      if (isa < 2 && strcmp(*router, "expert_choice") && strcmp(*router, "modern"))
        continue; /* one router shows what the others have in common */
      setenv("CHOIR_ISA", isas[isa], 1);
      choir_model *model = test_model(*router, compute);
      choir_forward_result result;
      if (routing && choir_model_set_routing(model, routing)) { /* the router has no such routing */
        choir_model_free(model);
        continue;
      }
      checked++;
      for (uint32_t sub = 0; sub < 4; sub++) {
        test_poison(got, count);
        advance_randomly(model, sub ? 1 + 3 * (int)sub : 64, sub, token, got);
        if (!sub) memcpy(want, got, (size_t)count * sizeof *want);
        if (memcmp(want, got, (size_t)count * sizeof *want)) fail_msg("%s, %s: cuts differ", *router, isas[isa]);
      }
      for (int b = 0; b < B; b++) {
        choir_session *s = session_of(model, 1, T, T);
        test_ok(choir_session_advance(s, (int[]){T}, token + b * T, NULL, alone));
        assert_memory_equal(alone, want + b * T * V, T * V * sizeof *alone);
        choir_session_free(s);
      }
      if (!strcmp(compute, "fp32")) {
        test_ok(choir_model_forward(model, B, T, token, got, 0, &result));
        test_close(want, got, count, 1e-5);
      }
      choir_model_free(model);
    }
  assert_true(checked >= 5); /* expert_choice on three instruction sets, two others on one */
  unsetenv("CHOIR_ISA");
  free(want), free(got), free(alone);
}

static void cuts_do_not_matter(void **state) {
  check_cuts(NULL, "fp32");
  check_cuts(NULL, "bf16");
}

/* Routers that look at nothing in evaluation are served by their own rule too, whatever that is. */
static void own_rule_equals_forward(void **state) {
  int32_t token[B * T];
  test_tokens(token, B * T);
  real *want = test_new(B * T * V), *got = test_new(B * T * V);
  int served = 0;
  for (const char *const *router = choir_router_names(); *router; router++) {
    choir_model *model = test_model(*router, "fp32");
    choir_forward_result result;
    test_ok(choir_model_set_routing(model, "batch"));
    if (!choir_model_looks_across_tokens(model)) {
      choir_session *s = session_of(model, B, T, 10);
      test_ok(choir_session_advance(s, (int[]){T, T, T}, token, NULL, got));
      test_ok(choir_model_forward(model, B, T, token, want, 0, &result));
      test_close(got, want, B * T * V, 1e-5);
      choir_session_free(s);
      served++;
    }
    choir_model_free(model);
  }
  assert_in_range(served, 2, 100);
  free(want), free(got);
}

/* bf16: as near to forward as rounding leaves it. Dense, because choices may flip. */
static void bf16_is_near(void **state) {
  int32_t token[B * T];
  test_tokens(token, B * T);
  real *want = test_new(B * T * V), *got = test_new(B * T * V);
  choir_model *model = test_model("dense", "bf16");
  choir_forward_result result;
  choir_session *s = session_of(model, B, T, 10); /* before any pass of the model: it is the session that rounds */
  test_ok(choir_session_advance(s, (int[]){T, T, T}, token, NULL, got));
  test_ok(choir_model_forward(model, B, T, token, want, 0, &result));
  double error = test_error(got, want, B * T * V);
  if (!(error < 0.02)) fail_msg("error %g", error);
  choir_session_free(s);
  choir_model_free(model);
  free(want), free(got);
}

/* However few tokens come, the plan for a whole chunk has room; nobody writes behind it. */
static void plans_hold(void **state) {
  enum { CHUNK = 70 };
  int32_t token[CHUNK];
  test_tokens(token, CHUNK);
  for (const char *const *router = kinds(); *router; router++) {
    choir_model *model = test_model(*router, "bf16");
    choir_session *s = session_of(model, 2, CHUNK, CHUNK);
    for (int n = 1; n <= CHUNK; n++) {
      test_ok(choir_session_advance(s, (int[]){n / 2, n - n / 2}, token, NULL, NULL));
      assert_int_equal(s->x.tape.used + s->x.scratch.used, 0);
      test_ok(choir_session_rewind(s, 0, 0));
      test_ok(choir_session_rewind(s, 1, 0));
    }
    choir_session_free(s);
    choir_model_free(model);
  }
}

/* Logits go to slots that got tokens, also where a call is cut; rows of others stay as they are. */
static void logits_of_other_slots_are_kept(void **state) {
  choir_model *model = test_model("dense", "fp32");
  const int32_t token[] = {1, 2, 3};
  float last[3 * V], all[3 * V];
  for (int chunk = 1; chunk <= 3; chunk++) {
    choir_session *s = session_of(model, 3, 4, chunk);
    for (int v = 0; v < 3 * V; v++) last[v] = 77;
    test_ok(choir_session_advance(s, (int[]){1, 0, 2}, token, last, all));
    assert_memory_equal(last, all, V * sizeof *last);
    assert_memory_equal(last + 2 * V, all + 2 * V, V * sizeof *last);
    for (int v = 0; v < V; v++) assert_true(last[V + v] == 77);
    choir_session_free(s);
  }
  choir_model_free(model);
}

static void refusals(void **state) {
  choir_model *model = test_model("expert_choice", "fp32");
  choir_session *s;
  float logits[V];
  const int32_t token[] = {1, 2, V, -1};
  test_refused(
      choir_session_create(
          model, &(choir_session_options){.size = sizeof(choir_session_options), .slots = 0, .length = 4, .chunk = 4},
          &s),
      CHOIR_ERROR_ARGUMENT, "slots is 0");
  test_refused(
      choir_session_create(
          model,
          &(choir_session_options){.size = sizeof(choir_session_options), .slots = 1, .length = 1 << 30, .chunk = 4},
          &s),
      CHOIR_ERROR_ARGUMENT, "length is");
  test_refused(
      choir_session_create(model,
                           &(choir_session_options){
                               .size = sizeof(choir_session_options), .slots = 65536, .length = 1 << 26, .chunk = 4},
                           &s),
      CHOIR_ERROR_MEMORY, "caches of keys and values");
  int experts = model->config.model.experts;
  model->config.model.experts = 1024; /* times 2^20 tokens: scores that an int does not count twice */
  test_refused(
      choir_session_create(
          model,
          &(choir_session_options){.size = sizeof(choir_session_options), .slots = 1, .length = 4, .chunk = 1 << 20},
          &s),
      CHOIR_ERROR_ARGUMENT, "1048576 tokens and 1024 experts");
  model->config.model.experts = experts;
  test_refused(
      choir_session_create(
          model,
          &(choir_session_options){.size = sizeof(choir_session_options), .slots = 1, .length = 4, .chunk = 1 << 21},
          &s),
      CHOIR_ERROR_ARGUMENT, "chunk is 2097152; must be 1 to 1048576");
  s = session_of(model, 1, 3, 8);
  test_refused(choir_session_advance(s, (int[]){1}, NULL, logits, NULL), CHOIR_ERROR_ARGUMENT, "tokens is NULL");
  test_refused(choir_session_advance(s, (int[]){4}, token, logits, NULL), CHOIR_ERROR_ARGUMENT, "4 more do not fit");
  test_refused(choir_session_advance(s, (int[]){3}, token, logits, NULL), CHOIR_ERROR_ARGUMENT,
               "token 2 of slot 0 is 50");
  test_refused(choir_session_advance(s, (int[]){1}, token + 3, logits, NULL), CHOIR_ERROR_ARGUMENT, "is -1");
  test_refused(choir_session_advance(s, (int[]){-1}, token, logits, NULL), CHOIR_ERROR_ARGUMENT, "do not fit");
  assert_int_equal(choir_session_length(s, 0), 0);
  test_ok(choir_session_advance(s, (int[]){2}, token, logits, NULL));
  test_refused(choir_session_rewind(s, 0, 3), CHOIR_ERROR_ARGUMENT, "cannot be cut to 3");
  test_refused(choir_session_rewind(s, 0, -1), CHOIR_ERROR_ARGUMENT, "cannot be cut to -1");
  test_refused(choir_session_rewind(s, 1, 0), CHOIR_ERROR_ARGUMENT, "slot 1 does not exist");
  assert_int_equal(choir_session_length(s, 1), -1);
  choir_session_free(s);
  choir_model_free(model);
  model = test_model("expert_choice", "fp32");
  choir_config fresh = *choir_model_config(model);
  choir_model_free(model);
  test_ok(choir_model_create(&fresh, 1, NULL, &model));
  test_refused(choir_session_create(model, NULL, &s), CHOIR_ERROR_UNSUPPORTED, "train the model first");
  assert_null(s);
  choir_model_free(model);
  model = test_model("hash", "fp32");
  test_ok(choir_model_set_routing(model, "batch")); /* which is causal here */
  test_ok(choir_session_create(model, NULL, &s));
  choir_session_free(s);
  choir_model_free(model);
}

/* Whatever routing a model is loaded with, a session routes by thresholds where it must, and leaves the model's alone.
 */
static void takes_thresholds(void **state) {
  enum { COUNT = 7 };
  const int32_t token[COUNT] = {3, 1, 4, 1, 5, 9, 2};
  const char *const routings[] = {"batch", "position", "threshold"};
  choir_model *model = load("expert_choice", "cpu");
  int V = choir_model_config(model)->model.vocab_size;
  real *want = test_new(COUNT * V), *got = test_new(COUNT * V);
  for (int i = 0; i < 3; i++) {
    test_ok(choir_model_set_routing(model, routings[i]));
    choir_session *s = session_of(model, 1, COUNT, COUNT);
    assert_string_equal(choir_session_routing(s), "threshold");
    assert_string_equal(choir_model_routing(model), routings[i]);
    test_ok(choir_session_advance(s, (int[]){COUNT}, token, NULL, i ? got : want));
    if (i) assert_memory_equal(got, want, (size_t)(COUNT * V) * sizeof(real));
    choir_session_free(s);
  }
  assert_null(choir_session_routing(NULL));
  free(want), free(got);
  choir_model_free(model);
  (void)state;
}

TEST_MAIN(NULL, NULL, takes_thresholds, equals_forward, cuts_do_not_matter, own_rule_equals_forward, bf16_is_near,
          plans_hold, logits_of_other_slots_are_kept, refusals)
