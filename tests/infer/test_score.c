/* Log-likelihoods of continuations: against an independent reference, and against themselves in every batch, chunk and
 * order. */
#include "infer_testing.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"

static choir_model *load(const char *router, const char *backend, int threads) {
  char path[512];
  choir_model *model;
  choir_model_options run = test_run_options(backend, "fp32");
  run.threads = threads;
  snprintf(path, sizeof path, VECTORS "model/%s", router);
  test_ok(choir_model_load(path, &run, &model, NULL));
  test_ok(choir_model_set_routing(model, "threshold"));
  return model;
}

/* Requests of a file of vectors, and what the reference says of them. */
typedef struct {
  choir_tensors *file;
  const int32_t *tokens, *contexts, *totals, *greedy;
  const double *log_probability;
  int count, length;
} vectors;

static const choir_tensor *tensor(const choir_tensors *file, const char *router, const char *name) {
  char whole[64];
  snprintf(whole, sizeof whole, "%s.%s", router, name);
  const choir_tensor *t = choir_tensors_find(file, whole);
  assert_non_null(t);
  return t;
}

static vectors open_vectors(const char *router) {
  vectors v = {0};
  test_ok(choir_tensors_load(VECTORS "scores.safetensors", 1, &v.file));
  const choir_tensor *t = tensor(v.file, router, "tokens");
  v.tokens = t->data;
  v.count = (int)t->shape[0];
  v.length = (int)t->shape[1];
  v.contexts = tensor(v.file, router, "contexts")->data;
  v.totals = tensor(v.file, router, "totals")->data;
  v.greedy = tensor(v.file, router, "greedy")->data;
  v.log_probability = tensor(v.file, router, "log_probability")->data;
  return v;
}

static choir_score_request request_of(const vectors *v, int i) {
  const int32_t *row = v->tokens + i * v->length;
  return (choir_score_request){
      .context = {.tokens = row, .count = v->contexts[i]},
      .continuation = {.tokens = row + v->contexts[i], .count = v->totals[i] - v->contexts[i]}};
}

static void check_vectors(const char *router, const char *backend) {
  vectors v = open_vectors(router);
  choir_model *model = load(router, backend, 2);
  choir_score_request request[64];
  choir_score_result r;
  int greedy = 0;
  for (int i = 0; i < v.count; i++) request[i] = request_of(&v, i);
  test_ok(choir_score(model, NULL, request, v.count, NULL, &r));
  assert_int_equal(r.count, v.count);
  for (int i = 0; i < v.count; i++) {
    const choir_scored *s = &r.score[i];
    double sum = 0;
    assert_int_equal(s->count, request[i].continuation.count);
    assert_memory_equal(s->tokens, request[i].continuation.tokens, (size_t)s->count * sizeof *s->tokens);
    for (int t = 0; t < s->count; t++) {
      double want = v.log_probability[i * v.length + v.contexts[i] + t];
      sum += want;
      if (!(fabs((double)s->log_probability[t] - want) <= 2e-5))
        fail_msg("%s, request %d, token %d: %g, not %g", router, i, t, (double)s->log_probability[t], want);
    }
    if (!(fabs(s->log_likelihood - sum) <= 5e-5))
      fail_msg("%s, request %d: %g, not %g", router, i, s->log_likelihood, sum);
    assert_int_equal(s->greedy, v.greedy[i]);
    greedy += s->greedy;
  }
  assert_true(greedy > 0 && greedy < v.count); /* or the flag shows nothing */
  choir_score_result_clear(&r);
  choir_model_free(model);
  choir_tensors_free(v.file);
}

static void against_the_reference(void **state) {
  check_vectors("expert_choice", "cpu");
  check_vectors("expert_choice", "reference");
  check_vectors("gshard_top2", "cpu");
  check_vectors("dense", "cpu");
}

/* ---- nothing else matters */

enum { REQUESTS = 60, LONGEST = 20 };

/* Random requests, of which many begin alike, some are the same, and some contexts are another one's beginning. */
static void make_requests(int32_t *tokens, choir_score_request *request) {
  ch_rng rng = ch_rng_make(4, CH_STREAM_TEST, 0);
  uint64_t draw = 0;
  for (int i = 0; i < REQUESTS; i++) {
    int32_t *row = tokens + i * 2 * LONGEST;
    int from = i ? (int)ch_rng_below(rng, draw++, (uint64_t)i) : 0, like = i ? (int)ch_rng_below(rng, draw++, 30) : 0;
    for (int t = 0; t < 2 * LONGEST; t++)
      row[t] = t < like ? tokens[from * 2 * LONGEST + t] : (int32_t)ch_rng_below(rng, draw++, V);
    int context = 1 + (int)ch_rng_below(rng, draw++, LONGEST);
    if (i % 3) context = request[from].context.count;
    request[i] = (choir_score_request){
        .context = {.tokens = row, .count = context},
        .continuation = {.tokens = row + context, .count = 1 + (int)ch_rng_below(rng, draw++, LONGEST - 1)}};
  }
}

/* Scores of all requests in an order of their own, in the requests' order. */
static void score_in_order(choir_model *model, const choir_score_request *request, uint64_t order, int batch, int chunk,
                           choir_score_result *out) {
  choir_score_request shuffled[REQUESTS];
  choir_score_result r;
  choir_score_options o = {.size = sizeof o, .batch = batch, .chunk = chunk};
  ch_rng rng = ch_rng_make(order, CH_STREAM_TEST, 1);
  for (int i = 0; i < REQUESTS; i++)
    shuffled[order ? ch_rng_permute(rng, (uint64_t)i, REQUESTS) : (uint64_t)i] = request[i];
  test_ok(choir_score(model, NULL, shuffled, REQUESTS, &o, &r));
  *out = r;
  out->score = malloc(REQUESTS * sizeof *out->score);
  for (int i = 0; i < REQUESTS; i++)
    out->score[i] = r.score[order ? ch_rng_permute(rng, (uint64_t)i, REQUESTS) : (uint64_t)i];
  free(r.score);
}

static void same_scores(const choir_score_result *a, const choir_score_result *b, const char *what) {
  for (int i = 0; i < REQUESTS; i++) {
    const choir_scored *x = &a->score[i], *y = &b->score[i];
    if (x->count != y->count || x->greedy != y->greedy ||
        memcmp(&x->log_likelihood, &y->log_likelihood, sizeof x->log_likelihood) ||
        memcmp(x->log_probability, y->log_probability, (size_t)x->count * sizeof(float)))
      fail_msg("%s: request %d has %.17g and %.17g", what, i, x->log_likelihood, y->log_likelihood);
  }
}

static void any_batch(void **state) {
  static const char *const routers[] = {"expert_choice", "capped_expert_choice", "gshard_top2", "hash", "dense"};
  static const struct { int batch, chunk; } cuts[] = {{1, 1}, {1, 512}, {2, 3}, {7, 16}, {60, 512}, {200, 7}};
  int32_t tokens[REQUESTS * 2 * LONGEST];
  choir_score_request request[REQUESTS];
  make_requests(tokens, request);
  for (int k = 0; k < 5; k++) {
    choir_model *model = test_model(routers[k], k ? "fp32" : "bf16");
    choir_score_result want, got;
    score_in_order(model, request, 0, 16, 512, &want);
    for (uint64_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
      score_in_order(model, request, c, cuts[c].batch, cuts[c].chunk, &got);
      same_scores(&want, &got, routers[k]);
      choir_score_result_clear(&got);
    }
    choir_score_result_clear(&want);
    choir_model_free(model);
  }
}

/* Fewer tokens go through the model than the requests have: with one slot what is common to neighbours goes once. */
static void shares_beginnings(void **state) {
  choir_model *model = test_model("expert_choice", "fp32");
  int32_t context[LONGEST], labels[4] = {3, 1, 4, 15}, longer[2][3] = {{3, 9, 9}, {3, 9, 10}};
  choir_score_request request[6];
  choir_score_result r;
  test_tokens(context, LONGEST);
  for (int i = 0; i < 4; i++)
    request[i] = (choir_score_request){.context = {.tokens = context, .count = LONGEST},
                                       .continuation = {.tokens = &labels[i], .count = 1}};
  choir_score_options o = {.size = sizeof o, .batch = 1, .chunk = 64};
  test_ok(choir_score(model, NULL, request, 4, &o, &r));
  assert_int_equal(r.tokens, LONGEST); /* labels themselves never go in */
  assert_true(r.seconds > 0);
  choir_score_result_clear(&r);
  for (int i = 0; i < 2; i++) {
    request[4 + i] = request[0];
    request[4 + i].continuation = (choir_prompt){.tokens = longer[i], .count = 3};
  }
  test_ok(choir_score(model, NULL, request, 6, &o, &r));
  assert_int_equal(r.tokens, LONGEST + 2 + 2);
  choir_score_result_clear(&r);
  choir_model_free(model);
}

static int stop(void *context, const choir_progress *p) {
  *(int64_t *)context = p->done;
  assert_true(p->seconds > 0 && p->seconds < 1000); /* of this call */
  return 1;
}

static void refusals(void **state) {
  choir_model *model = test_model("expert_choice", "fp32");
  int32_t tokens[4] = {1, 2, 3, V};
  choir_score_request good = {.context = {.tokens = tokens, .count = 2},
                              .continuation = {.tokens = tokens, .count = 3}};
  choir_score_request bad = good;
  choir_score_result r;
  int64_t done = -1;
  test_refused(choir_score(model, NULL, &good, 0, NULL, &r), CHOIR_ERROR_ARGUMENT, "no requests");
  bad.continuation.count = 0;
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "request 1 of 1");
  bad.continuation.count = 4;
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "vocabulary");
  bad = good;
  bad.context.tokens = tokens + 3, bad.context.count = 1;
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "token 0 is 50, outside");
  bad.context.count = -1;
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "request 1 of 1");
  bad.context.count = 0;
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "empty context");
  bad.context = (choir_prompt){.count = 2};
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "tokens is NULL");
  bad.context = (choir_prompt){.text = "a"};
  test_refused(choir_score(model, NULL, &bad, 1, NULL, &r), CHOIR_ERROR_ARGUMENT, "tokenizer");
  test_refused(
      choir_score(model, NULL, &good, 1, &(choir_score_options){.size = sizeof(choir_score_options), .chunk = 1}, &r),
      CHOIR_ERROR_ARGUMENT, "batch is 0");
  test_refused(
      choir_score(model, NULL, &good, 1, &(choir_score_options){.size = sizeof(choir_score_options), .batch = 1}, &r),
      CHOIR_ERROR_ARGUMENT, "chunk is 0");
  test_refused(
      choir_score(model, NULL, &good, 1,
                  &(choir_score_options){
                      .size = sizeof(choir_score_options), .batch = 1, .chunk = 1, .progress = stop, .context = &done},
                  &r),
      CHOIR_ERROR_INTERRUPTED, "stopped after 0 of 1 requests");
  assert_int_equal(done, 0);
  assert_null(r.score);
  test_ok(choir_model_set_routing(model, "batch"));
  test_ok(choir_score(model, NULL, &good, 1, NULL, &r));
  assert_string_equal(r.routing, "threshold");
  choir_score_result_clear(&r);
  choir_parameter p;
  test_ok(choir_model_parameter_at(model, 0, &p));
  p.data[3 * p.shape[1]] = NAN;
  test_refused(choir_score(model, NULL, &good, 1, NULL, &r), CHOIR_ERROR_NUMERIC, "not finite");
  choir_model_free(model);
}

TEST_MAIN(NULL, NULL, against_the_reference, any_batch, shares_beginnings, refusals)
