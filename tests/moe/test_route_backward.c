/* choir_route_visit and choir_route_backward, for every router: what is shown is what choir_route gives, and gradients
 * are central differences of it. */
#include "choir/router.h"
#include "moe_testing.h"

enum { N = 24, E = 4, CELLS = N * E };
static const double STEP = 1e-2; /* float noise over a smaller step would drown curvature */

typedef struct {
  choir_route_request request;
  float scores[CELLS], dgates[CELLS], gates[CELLS];
  double aux_weight;
} example;

static int32_t ids[N];
static uint8_t valid[N];

static void make(example *x, const ch_router_spec *o, int is_logits, const uint8_t *mask) {
  for (int t = 0; t < N; t++) ids[t] = 3 * t, valid[t] = t % 7 != 5;
  int e = experts_for(o->kind->name, E);
  *x = (example){.aux_weight = 0.7};
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

/* <dgates, gates> + aux_weight * aux_loss. */
static double loss(example *x) {
  const choir_route_request *r = &x->request;
  choir_route_stats stats;
  double sum = 0;
  test_ok(choir_route(r, x->gates, &stats));
  for (int j = 0; j < r->n * r->e; j++) sum += (double)x->dgates[j] * (double)x->gates[j];
  sum += x->aux_weight * stats.aux_loss;
  choir_route_stats_clear(&stats);
  return sum;
}

static int same_choice(const float *a, const float *b, int count) {
  for (int j = 0; j < count; j++)
    if ((a[j] != 0) != (b[j] != 0)) return 0;
  return 1;
}

/* Where one of the two ways changes the choice there is no derivative to compare. */
static void check_gradient(example *x) {
  const choir_route_request *r = &x->request;
  int cells = r->n * r->e, compared = 0;
  float dscores[CELLS], chosen[CELLS];
  double difference = 0, size = 1e-30;
  test_poison(dscores, cells);
  test_ok(choir_route_backward(r, x->dgates, x->aux_weight, dscores));
  loss(x);
  memcpy(chosen, x->gates, sizeof chosen);
  for (int j = 0; j < cells; j++) {
    if (r->valid && !r->valid[j / r->e]) {
      assert_true(dscores[j] == 0);
      continue;
    }
    float kept = x->scores[j];
    x->scores[j] = (float)((double)kept + STEP);
    double up = loss(x);
    int same = same_choice(chosen, x->gates, cells);
    x->scores[j] = (float)((double)kept - STEP);
    double down = loss(x);
    same &= same_choice(chosen, x->gates, cells);
    x->scores[j] = kept;
    if (!same) continue;
    double numeric = (up - down) / (2 * STEP);
    difference += pow(numeric - (double)dscores[j], 2);
    size += pow(numeric, 2);
    compared++;
  }
  double error = sqrt(difference / size), none = size < 1e-20 ? sqrt(difference) : 0;
  if (compared < cells / 3 || !(error < 5e-3 || none < 1e-6) || !isfinite(difference))
    fail_msg("%s, %s: %d of %d compared, error %g", r->config->model.router.kind->name,
             r->is_logits ? "logits" : "scores", compared, cells, error);
}

static void gradients_are_differences(void **state) {
  for (int i = 0; ch_routers[i]; i++)
    for (int kind = 0; kind < 16; kind++) {
      int is_logits = kind & 1, sigmoid = kind >> 3;
      ch_router_spec o = router_options(ch_router_names[i]);
      if (!strcmp(o.kind->name, "kmeans")) continue; /* gates are constants: below */
      example x;
      if (kind & 2 && !ch_router_takes(ch_routers[i], CH_ROUTER_TAKES(normalize_gates))) continue;
      if (sigmoid && !ch_router_takes(ch_routers[i], CH_ROUTER_TAKES(score))) continue;
      o.normalize_gates = kind >> 1 & 1;
      if (sigmoid) o.score = CH_SIGMOID, o.aux_loss_weight = 0;
      make(&x, &o, is_logits, kind & 4 ? valid : NULL);
      check_gradient(&x);
    }
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

TEST_MAIN(NULL, NULL, gradients_are_differences, constant_gates_have_none, shares_of_nothing, shares_of_little,
          padding_stays_out, without_dgates_only_aux, shows_what_it_routed, refuses)
