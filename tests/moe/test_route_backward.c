/* Laws of choir_route_visit and choir_route_backward: what is shown is what choir_route gives. Gradients are held
 * against vectors/ and choir.torch, in Python, and in double against differences (grad_routers.c). */
#include "choir/router.h"
#include "moe_testing.h"

enum { N = 24, E = 4, CELLS = N * E };

typedef struct {
  choir_route_request request;
  float scores[CELLS], dgates[CELLS], gates[CELLS];
} example;

static int32_t ids[N];
static uint8_t valid[N];

static void make(example *x, const ch_router_spec *o, int is_logits, const uint8_t *mask) {
  for (int t = 0; t < N; t++) ids[t] = 3 * t, valid[t] = t % 7 != 5;
  int e = experts_for(o->kind->name, E);
  *x = (example){.request.n = 0};
  test_normal(x->scores, N * e, 1);
  test_normal(x->dgates, N * e, 2);
  for (int j = 0; j < N * e && !is_logits; j++) x->scores[j] = 0.2f + 0.1f * fabsf(x->scores[j]);
  x->request = (choir_route_request){.config = test_config_of(o),
                                     .n = N,
                                     .e = e,
                                     .scores = x->scores,
                                     .is_logits = is_logits,
                                     .tokens = ids,
                                     .valid = mask,
                                     .training = 1,
                                     .seed = 3};
}

static void constant_gates_have_none(void **state) {
  for (int i = 0; ch_routers[i]; i++) {
    ch_router_spec o = router_options(ch_router_names[i]);
    example x;
    float dscores[CELLS];
    if (ch_routers[i]->backward) continue;
    make(&x, &o, 1, NULL);
    test_poison(dscores, CELLS);
    test_ok(choir_route_backward(&x.request, x.dgates, 1, dscores));
    for (int j = 0; j < N * x.request.e; j++) assert_true(dscores[j] == 0);
  }
}

/* Padding may hold anything. */
static void padding_stays_out(void **state) {
  ch_router_spec o = router_options("expert_choice");
  example x;
  float clean[CELLS], dirty[CELLS];
  make(&x, &o, 1, valid);
  test_ok(choir_route_backward(&x.request, x.dgates, 0, clean));
  for (int t = 0; t < N; t++)
    for (int i = 0; i < E && !valid[t]; i++) x.scores[t * E + i] = NAN;
  test_ok(choir_route_backward(&x.request, x.dgates, 0, dirty));
  assert_memory_equal(clean, dirty, sizeof clean);
}

/* A token with scores of 0 alone has gates that are its scores, not shares of them. */
static void shares_of_nothing(void **state) {
  ch_router_spec o = router_options("gshard_top2");
  example x;
  float dscores[CELLS];
  o.capacity_factor = 2; /* room for all */
  make(&x, &o, 0, NULL);
  for (int i = 0; i < E; i++) x.scores[i] = 0;
  test_ok(choir_route_backward(&x.request, x.dgates, 0, dscores));
  for (int j = 0; j < CELLS; j++) assert_true(isfinite(dscores[j]));
  for (int i = 0; i < E; i++) assert_true(dscores[i] == (i < 2 ? x.dgates[i] : 0)); /* of equal ones the first two */
}

/* Shares do not change where all scores are a power of 2 smaller, and their gradient grows by as much. */
static void shares_of_little(void **state) {
  enum { SMALLER = -100 };
  ch_router_spec o = router_options("gshard_top2");
  example x;
  float large[CELLS], small[CELLS];
  make(&x, &o, 0, NULL);
  test_ok(choir_route_backward(&x.request, x.dgates, 0, large));
  for (int j = 0; j < CELLS; j++) x.scores[j] = ldexpf(x.scores[j], SMALLER);
  test_ok(choir_route_backward(&x.request, x.dgates, 0, small));
  for (int j = 0; j < CELLS; j++) assert_true(small[j] == ldexpf(large[j], -SMALLER));
}

static void without_dgates_only_aux(void **state) {
  ch_router_spec o = router_options("switch_top1");
  example x;
  float dscores[CELLS], zero[CELLS];
  make(&x, &o, 1, NULL);
  test_ok(choir_route_backward(&x.request, NULL, 0.5, dscores));
  memset(x.dgates, 0, sizeof x.dgates);
  test_ok(choir_route_backward(&x.request, x.dgates, 0.5, zero));
  assert_memory_equal(dscores, zero, sizeof zero);
  test_ok(choir_route_backward(&x.request, NULL, 0, zero));
  for (int j = 0; j < CELLS; j++) assert_true(zero[j] == 0);
  assert_true(test_error(dscores, zero, CELLS) > 0);
}

typedef struct {
  float gates[CELLS];
  int64_t load[E], slots;
  int calls;
  choir_certificate certificate;
} shown;

static void show(void *context, const choir_routing *r) {
  shown *s = context;
  memset(s, 0, sizeof *s);
  s->calls++;
  s->slots = r->expert_begin[r->experts];
  s->certificate = r->certificate;
  for (int i = 0; i < r->experts; i++)
    for (int j = r->expert_begin[i]; j < r->expert_begin[i + 1]; j++) {
      assert_int_equal(choir_routing_expert(r, j), i);
      s->gates[r->slot_token[j] * r->experts + i] = r->slot_gate[j];
      s->load[i]++;
    }
  assert_int_equal(r->token_begin[r->tokens], s->slots);
}

static void shows_what_it_routed(void **state) {
  for (int i = 0; ch_routers[i]; i++) {
    ch_router_spec o = router_options(ch_router_names[i]);
    choir_route_stats stats;
    example x;
    shown s = {.calls = 0};
    make(&x, &o, 1, NULL);
    test_ok(choir_route_visit(&x.request, show, &s));
    test_ok(choir_route(&x.request, x.gates, &stats));
    assert_int_equal(s.calls, 1);
    assert_memory_equal(s.gates, x.gates, sizeof(float) * (size_t)(N * x.request.e));
    assert_int_equal(s.slots, stats.assignments);
    assert_int_equal(s.certificate.assignments, stats.certificate.assignments);
    for (int k = 0; k < x.request.e; k++) assert_int_equal(s.load[k], stats.load[k]);
    choir_route_stats_clear(&stats);
  }
}

static void refuses(void **state) {
  ch_router_spec o = router_options("expert_choice");
  example x;
  float dscores[CELLS];
  make(&x, &o, 1, NULL);
  test_fails(choir_route_backward(&x.request, x.dgates, 0, NULL), CHOIR_ERROR_ARGUMENT, "NULL");
  test_fails(choir_route_visit(&x.request, NULL, NULL), CHOIR_ERROR_ARGUMENT, "NULL");
  x.request.reserved[3] = 1;
  test_fails(choir_route_backward(&x.request, x.dgates, 0, dscores), CHOIR_ERROR_UNSUPPORTED, "choir_route_request");
  x.request.reserved[3] = 0;
  x.scores[3] = NAN;
  test_fails(choir_route_backward(&x.request, x.dgates, 0, dscores), CHOIR_ERROR_NUMERIC, "scores[0,3]");
}

TEST_MAIN(NULL, NULL, constant_gates_have_none, shares_of_nothing, shares_of_little, padding_stays_out,
          without_dgates_only_aux, shows_what_it_routed, refuses)
