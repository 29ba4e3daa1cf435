/* Whole prompts: what comes out does not depend on what goes through beside it, and is what a session would give. */
#include "infer/sample.h"
#include "infer_testing.h"

enum { PROMPTS = 7, TOKENS = 30 };

/* Prompts of 1, 4, 7, ... tokens. */
static void make_prompts(choir_prompt *prompt, int32_t *token) {
  test_tokens(token, PROMPTS * TOKENS);
  for (int i = 0; i < PROMPTS; i++) prompt[i] = (choir_prompt){.tokens = token + i * TOKENS, .count = 1 + 3 * i};
}

static choir_generate_options options_of(int batch, int chunk) {
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  o.max_tokens = 25, o.temperature = 1.5, o.top_k = 20, o.top_p = 0.95, o.seed = 11;
  o.batch = batch, o.chunk = chunk;
  return o;
}

static void same_tokens(const choir_generated *a, const choir_generated *b) {
  assert_int_equal(a->count, b->count);
  assert_memory_equal(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens);
}

/* Any batch, any chunk, any threads; and a prompt's number, not its neighbours, decides what it draws. */
static void batches_do_not_matter(void **state) {
  static const int cuts[][2] = {{1, 512}, {2, 512}, {3, 4}, {7, 1}, {100, 10}};
  choir_model *model = test_model("expert_choice", "fp32");
  choir_prompt prompt[PROMPTS];
  int32_t token[PROMPTS * TOKENS];
  choir_generate_result want, got;
  make_prompts(prompt, token);
  choir_generate_options o = options_of(1, 512);
  test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &want));
  for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
    o = options_of(cuts[c][0], cuts[c][1]);
    test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &got));
    assert_int_equal(got.count, PROMPTS);
    assert_int_equal(got.tokens, PROMPTS * 25);
    assert_int_equal(got.prompt_tokens, want.prompt_tokens);
    assert_true(got.prompt_seconds > 0 && got.seconds > 0);
    for (int i = 0; i < PROMPTS; i++) {
      same_tokens(&got.sequences[i], &want.sequences[i]);
      assert_int_equal(got.sequences[i].end, CHOIR_END_LENGTH);
      assert_int_equal(got.sequences[i].prompt_count, prompt[i].count);
      assert_string_equal(got.sequences[i].text, "");
    }
    choir_generate_result_clear(&got);
  }
  prompt[0] = prompt[3]; /* the same prompt with another number draws otherwise, and the others as before */
  test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &got));
  for (int i = 1; i < PROMPTS; i++) same_tokens(&got.sequences[i], &want.sequences[i]);
  assert_true(memcmp(got.sequences[0].tokens, got.sequences[3].tokens, 25 * sizeof(int32_t)) != 0);
  choir_generate_result_clear(&got);
  o.seed++;
  test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &got));
  assert_true(memcmp(got.sequences[3].tokens, want.sequences[3].tokens, 25 * sizeof(int32_t)) != 0);
  choir_generate_result_clear(&got);
  /* behind the half of what came, the other half: a draw is of its position in prompt and text together */
  int32_t longer[1 + 10] = {token[0]};
  memcpy(longer + 1, want.sequences[0].tokens, 10 * sizeof *longer);
  o.seed--, o.max_tokens = 15;
  test_ok(choir_generate(model, NULL, &(choir_prompt){.tokens = longer, .count = 11}, 1, &o, &got));
  assert_memory_equal(got.sequences[0].tokens, want.sequences[0].tokens + 10, 15 * sizeof *longer);
  choir_generate_result_clear(&got);
  choir_generate_result_clear(&want);
  choir_model_free(model);
}

/* Greedy, by hand: each token is the likeliest of what forward says about all before it. */
static void greedy_follows_forward(void **state) {
  for (const char *const *router = choir_router_names(); *router; router++) {
    choir_model *model = test_model(*router, "fp32");
    int32_t token[TOKENS];
    choir_generate_options o = options_of(1, 512);
    choir_generate_result r;
    choir_forward_result forward;
    float logits[TOKENS * V];
    o.temperature = 0;
    test_tokens(token, TOKENS);
    test_ok(choir_generate(model, NULL, &(choir_prompt){.tokens = token, .count = 5}, 1, &o, &r));
    for (int length = 5; length < TOKENS; length++) {
      test_ok(choir_model_forward(model, 1, length, token, logits, 0, &forward));
      const float *row = logits + (length - 1) * V;
      token[length] = r.sequences[0].tokens[length - 5];
      for (int v = 0; v < V; v++) /* within rounding */
        if (row[v] > row[token[length]] + 1e-5f) fail_msg("%s: token %d is not the likeliest", *router, length);
    }
    choir_generate_result_clear(&r);
    choir_model_free(model);
  }
}

typedef struct {
  int texts, asked, max, done[PROMPTS], order;
} seen;

static int on_event(void *context, const choir_event *e) {
  seen *s = context;
  assert_in_range(e->text->sequence, 0, PROMPTS - 1);
  if (e->kind == CHOIR_EVENT_END) {
    assert_int_equal(s->done[e->text->sequence], 0);
    assert_non_null(e->text->generated->text);
    s->done[e->text->sequence] = ++s->order;
    return 0;
  }
  assert_non_null(e->text->text);
  assert_int_equal(e->text->size, 0);
  return ++s->texts == s->max;
}

static int on_progress(void *context, const choir_progress *p) {
  seen *s = context;
  assert_true(p->total == PROMPTS && p->done == s->order);
  assert_true(p->seconds > 0 && p->seconds < 1000); /* of this call */
  return ++s->asked == -s->max;
}

/* Callbacks: a text for each token, each sequence done once; either may end it all, and what there is comes back. */
static void callbacks(void **state) {
  choir_model *model = test_model("hash", "fp32");
  choir_prompt prompt[PROMPTS];
  int32_t token[PROMPTS * TOKENS];
  choir_generate_result all, r;
  make_prompts(prompt, token);
  choir_generate_options o = options_of(3, 6);
  test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &all));
  for (int max = -20; max <= 60; max += 20) { /* below 0: so many questions to stop; above: texts; 0: neither */
    seen s = {.max = max};
    o.event = on_event, o.progress = on_progress, o.context = &s;
    test_ok(choir_generate(model, NULL, prompt, PROMPTS, &o, &r));
    int interrupted = 0, tokens = 0;
    for (int i = 0; i < PROMPTS; i++) {
      const choir_generated *g = &r.sequences[i];
      assert_true(s.done[i] > 0);
      interrupted += g->end == CHOIR_END_INTERRUPTED;
      assert_true(g->count <= 25 && (g->end == CHOIR_END_INTERRUPTED || g->count == 25));
      if (g->count) assert_memory_equal(g->tokens, all.sequences[i].tokens, (size_t)g->count * sizeof(int32_t));
      tokens += g->count;
    }
    assert_int_equal(r.tokens, tokens);
    assert_int_equal(interrupted > 0, max != 0);
    if (!max) assert_int_equal(s.texts, PROMPTS * 25);
    choir_generate_result_clear(&r);
  }
  choir_generate_result_clear(&all);
  choir_model_free(model);
}

static void refusals(void **state) {
  choir_model *model = test_model("expert_choice", "fp32");
  const int32_t good[] = {1, 2}, bad[] = {1, V};
  const choir_prompt prompts[] = {{.tokens = good, .count = 2}, {.tokens = bad, .count = 2}, {.tokens = good}};
  const choir_prompt text = {.text = "a"};
  static const char *const none[] = {"", NULL}, *const some[] = {"x", NULL};
  choir_generate_result r;
  choir_generate_options o;
#define refuse(change, prompt, count, code, part)                                               \
  do {                                                                                          \
    o = options_of(2, 8);                                                                       \
    change;                                                                                     \
    test_refused(choir_generate(model, NULL, prompt, count, &o, &r), CHOIR_ERROR_##code, part); \
  } while (0)
  refuse(o.max_tokens = 0, prompts, 1, ARGUMENT, "max_tokens is 0");
  refuse(o.max_tokens = 1 << 26, prompts, 1, ARGUMENT, "together at most");
  refuse(o.temperature = -1, prompts, 1, ARGUMENT, "temperature is -1");
  refuse(o.temperature = NAN, prompts, 1, ARGUMENT, "temperature is");
  refuse(o.temperature = INFINITY, prompts, 1, ARGUMENT, "temperature is inf");
  refuse(o.top_k = -1, prompts, 1, ARGUMENT, "top_k is -1");
  refuse(o.top_p = 0, prompts, 1, ARGUMENT, "top_p is 0");
  refuse(o.top_p = 1.0000001, prompts, 1, ARGUMENT, "top_p is 1.0000001");
  refuse(o.top_p = 1.5, prompts, 1, ARGUMENT, "top_p is 1.5");
  refuse(o.batch = 0, prompts, 1, ARGUMENT, "batch is 0");
  refuse(o.chunk = 0, prompts, 1, ARGUMENT, "chunk is 0");
  refuse(o.stops = none, prompts, 1, ARGUMENT, "stop text is empty");
  refuse(o.stops = some, prompts, 1, ARGUMENT, "need a tokenizer");
  refuse(o.seed = 0, prompts, 0, ARGUMENT, "no prompts");
  refuse(o.seed = 0, prompts, 2, ARGUMENT, "prompt 2 of 2: token 1 is 50, outside");
  refuse(o.seed = 0, prompts + 2, 1, ARGUMENT, "prompt 1 of 1: empty");
  refuse(o.seed = 0, &text, 1, ARGUMENT, "no tokenizer");
  choir_generate_result by_thresholds; /* of a model with its own routing */
  test_ok(choir_model_set_routing(model, "batch"));
  test_ok(choir_generate(model, NULL, prompts, 1, NULL, &by_thresholds));
  assert_string_equal(by_thresholds.routing, "threshold");
  assert_string_equal(choir_model_routing(model), "batch");
  choir_generate_result_clear(&by_thresholds);
  choir_parameter p;
  test_ok(choir_model_parameter_at(model, 0, &p));
  p.data[1] = NAN;
  refuse(o.seed = 0, prompts, 1, NUMERIC, "not finite");
#undef refuse
  assert_null(r.sequences);
  choir_model_free(model);
}

TEST_MAIN(NULL, NULL, batches_do_not_matter, greedy_follows_forward, callbacks, refusals)
