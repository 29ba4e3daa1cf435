/* A router or a whole MoE layer, planned and run for real on poisoned memory, with everything it left copied out. */
#ifndef CH_TESTS_MOE_TESTING_H
#define CH_TESTS_MOE_TESTING_H

#include "cpu/define.h"
#include "moe/layer.h"
#include "testing.h"

typedef struct {
  ch_router_spec options;
  int n, d, h, e, T;
  const uint8_t *valid;
  const int32_t *token;
  int training, out_acc, threads;
  int discard; /* forward keeps nothing for backward */
  int causal, by_threshold;
  const real *thresholds;
  const char *backend;
  ch_compute compute, dispatch_dtype;
  uint64_t seed, rng_base;
  uint32_t sub;                           /* of the random numbers */
  ch_activation activation;               /* of experts; a gated activation needs w3 */
  real *x, *router, *w1, *w2, *w3, *dout; /* in */
  real aux_scale;
  real *out, *dx, *drouter, *dw1, *dw2, *dw3; /* out */
  ch_record record;
  ch_route_counts counts;
  real *scores, *dscores;
} layer_case;

static inline ch_router_spec router_options(const char *name) {
  ch_router_spec o = test_router(name);
  o.jitter = 0;
  return o;
}

/* Tests of all routers go by the registry: for (i = 0; ch_routers[i]; i++). */
static inline int is_dense(const char *router) { return !strcmp(router, "dense"); }

/* Experts that a router can be tested with, `most` if it takes as many. */
static inline int experts_for(const char *router, int max) { return is_dense(router) ? 1 : max; }

/* Fresh random weights and input; the same for the same sizes. */
static inline layer_case layer_case_new(const char *router, int n, int d, int h, int e) {
  int64_t weights = (int64_t)e * d * h, in = (int64_t)n * d;
  layer_case c = {.options = router_options(router),
                  .n = n,
                  .d = d,
                  .h = h,
                  .e = e,
                  .training = 1,
                  .threads = 2,
                  .backend = "reference",
                  .seed = 5,
                  .sub = 3,
                  .aux_scale = (real)0.7,
                  .x = test_new_normal(in, 1),
                  .router = test_new_normal((int64_t)d * e, 2),
                  .w1 = test_new_normal(weights, 3),
                  .w2 = test_new_normal(weights, 4),
                  .w3 = test_new_normal(weights, 6),
                  .dout = test_new_normal(in, 5),
                  .out = test_new(in),
                  .dx = test_new(in),
                  .drouter = test_new((int64_t)d * e),
                  .dw1 = test_new(weights),
                  .dw2 = test_new(weights),
                  .dw3 = test_new(weights),
                  .scores = test_new((int64_t)n * e)};
  for (int64_t i = 0; i < (int64_t)d * e; i++) c.router[i] /= (real)sqrt(d);
  for (int64_t i = 0; i < weights; i++) {
    c.w1[i] /= (real)sqrt(d);
    c.w3[i] /= (real)sqrt(d);
    c.w2[i] /= (real)sqrt(h);
  }
  return c;
}

static inline void record_free(ch_record *r) {
  free(r->expert_begin);
  free(r->slot_token);
  free(r->slot_gate);
  free(r->token_begin);
  free(r->token_slot);
  *r = (ch_record){0};
}

static inline void counts_free(ch_route_counts *counts) {
  free(counts->demand);
  free(counts->cutoff);
  free(counts->dropped);
  free(counts->aux_loss);
}

static inline void layer_case_free(layer_case *c) {
  real *arrays[] = {c->x,       c->router, c->w1,  c->w2,     c->dout, c->out, c->dx,
                    c->drouter, c->dw1,    c->dw2, c->scores, c->w3,   c->dw3};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
  record_free(&c->record);
  counts_free(&c->counts);
}

/* A routing alone, whose scores are to be filled. */
static inline layer_case choice_case(const char *router, int n, int e) {
  return (layer_case){.options = router_options(router),
                      .n = n,
                      .e = e,
                      .training = 1,
                      .threads = 2,
                      .backend = "cpu",
                      .scores = test_new((int64_t)n * e)};
}

static inline void *copy_of(const void *p, size_t bytes) {
  void *copy = malloc(bytes ? bytes : 1);
  if (!copy) abort();
  return memcpy(copy, p, bytes);
}

/* The record outlives the arena that it came from. */
static inline void keep_record(ch_record *kept, ch_route_counts *kept_counts, const ch_record *r,
                               const ch_route_counts *counts) {
  record_free(kept);
  counts_free(kept_counts);
  *kept = *r;
  kept->expert_begin = copy_of(r->expert_begin, sizeof(int) * (size_t)(r->experts + 1));
  kept->slot_token = copy_of(r->slot_token, sizeof(int) * (size_t)ch_slots(r));
  kept->slot_gate = copy_of(r->slot_gate, sizeof(real) * (size_t)ch_slots(r));
  kept->token_begin = copy_of(r->token_begin, sizeof(int) * (size_t)(r->tokens + 1));
  kept->token_slot = copy_of(r->token_slot, sizeof(int) * (size_t)ch_slots(r));
  *kept_counts = *counts;
  kept_counts->demand = copy_of(counts->demand, sizeof(int) * (size_t)r->experts);
  kept_counts->cutoff = copy_of(counts->cutoff, sizeof(real) * (size_t)r->experts);
  kept_counts->dropped = copy_of(counts->dropped, sizeof *counts->dropped);
  kept_counts->aux_loss = copy_of(counts->aux_loss, sizeof *counts->aux_loss);
}

/* Bytes of 0xff: NaN as a number, -1 as an index. */
static inline void poison_arenas(ch_exec *x) {
  memset(x->tape.base, 0xff, x->tape.size);
  memset(x->scratch.base, 0xff, x->scratch.size);
}

/* The routing of a case, of its router alone or within the layer. */
static inline ch_route_args case_route(const layer_case *c) {
  const ch_router *router = c->options.kind;
  assert_non_null(router);
  ch_route_args a = {.tokens = {.mask = c->valid, .valid = c->valid, .id = c->token},
                     .training = c->training,
                     .by_threshold = c->by_threshold,
                     .draws.base = c->rng_base,
                     .router_state.thresholds = c->thresholds};
  ch_route_args_set(&a, router, &c->options, c->n, c->e, c->T);
  a.scale = (ch_route_scale){c->aux_scale, 0};
  return a;
}

static inline ch_moe_args layer_args(layer_case *c) {
  ch_moe_args a = {.route = case_route(c),
                   .h = c->h,
                   .grad_chunks = 1,
                   .keep = !c->discard,
                   .activation = c->activation,
                   .weights = {.w1 = c->w1, .w2 = c->w2, .w3 = c->w3},
                   .out = c->out,
                   .out_acc = c->out_acc,
                   .dout = c->dout,
                   .dx = c->dx,
                   .gradients = {.router = c->drouter, .w1 = c->dw1, .w2 = c->dw2, .w3 = c->dw3}};
  a.route.d = c->d;
  a.route.draws.rng = (ch_rng){.seed = c->seed, .sub = c->sub};
  a.route.causal = c->causal;
  a.route.x = c->x;
  a.route.weight = c->router;
  return a;
}

/* Forward, and in training backward when `backward` asks for it; gradients are set, over poison. */
static inline void layer_run(layer_case *c, int backward) {
  ch_exec x;
  ch_moe_saved saved;
  ch_moe_args a = layer_args(c);
  int64_t weights = (int64_t)c->e * c->d * c->h, in = (int64_t)c->n * c->d;
  test_ok(ch_exec_init(&x, test_backend(c->backend), c->compute, 1, c->threads));
  x.dispatch_dtype = c->dispatch_dtype;
  for (int pass = 0; pass < 2; pass++) {
    if (pass) {
      test_ok(ch_exec_commit(&x));
      poison_arenas(&x);
      if (!c->out_acc) test_poison(c->out, in);
      if (backward) test_poison(c->dx, in);
      test_poison(c->dw1, weights);
      test_poison(c->dw2, weights);
      test_poison(c->dw3, weights);
      test_poison(c->drouter, (int64_t)c->d * c->e);
    }
    ch_moe_forward(&x, &a, &saved);
    if (pass) {
      keep_record(&c->record, &c->counts, &saved.routing.record, &saved.routing.counts);
      if (saved.routing.scores && a.keep) memcpy(c->scores, saved.routing.scores, sizeof(real) * (size_t)(c->n * c->e));
    }
    if (backward) ch_moe_backward(&x, &a, &saved);
    assert_int_equal(x.scratch.used, 0);
    x.tape.used = 0;
  }
  ch_exec_free(&x);
}

/* Only the router of the case, on c->scores: fills record and counts; with dgate (by slot), dscores too. */
static inline void router_run(layer_case *c, real *dgate) {
  ch_exec x;
  const ch_router *router = c->options.kind;
  assert_non_null(router);
  test_ok(ch_exec_init(&x, test_backend(c->backend), c->compute, 1, c->threads));
  for (int pass = 0; pass < 2; pass++) {
    if (pass) {
      test_ok(ch_exec_commit(&x));
      poison_arenas(&x);
      if (c->dscores) test_poison(c->dscores, (int64_t)c->n * c->e);
    }
    const int scored = ch_router_scored(router);
    ch_routing r = {.logits = scored ? NULL : c->scores,
                    .scores = scored ? c->scores : NULL,
                    .dgate = dgate,
                    .dscores = c->dscores};
    ch_routing_new(&x, &x.tape, &r, c->n, c->e,
                   c->causal ? c->n * c->e : router->max_slots(&c->options, c->n, c->e, c->T));
    if (router->loss == CHOIR_LOSS_OWN) r.dloss = CH_NEW(&x.tape, real, (int64_t)c->n * c->e);
    r.counts.capacity = -1;
    ch_route_args a = case_route(c);
    if (!pass) a.tokens.mask = NULL;
    a.draws.rng = ch_rng_make(c->seed, CH_STREAM_SECOND_EXPERT, 3);
    a.routing = &r;
    if (c->causal && router->causal)
      router->causal(&x, &a);
    else
      router->route(&x, &a);
    x.ops->index(&x, &(ch_index_args){.record = &r.record});
    if (dgate && router->backward) router->backward(&x, &a);
    assert_int_equal(x.scratch.used, 0);
    if (pass) keep_record(&c->record, &c->counts, &r.record, &r.counts);
    x.tape.used = 0;
  }
  ch_exec_free(&x);
}

/* Gates [n,e] of a record, 0 where it has no slot. */
static inline void record_gates(const ch_record *r, double *gate) {
  for (int j = 0; j < r->tokens * r->experts; j++) gate[j] = 0;
  for (int i = 0; i < r->experts; i++)
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++)
      gate[r->slot_token[s] * r->experts + i] = (double)r->slot_gate[s];
}

static inline int same_selection(const layer_case *c, const ch_record *r, const int *demand) {
  return ch_slots(&c->record) == ch_slots(r) &&
         !memcmp(c->record.slot_token, r->slot_token, sizeof(int) * (size_t)ch_slots(r)) &&
         !memcmp(c->record.expert_begin, r->expert_begin, sizeof(int) * (size_t)(r->experts + 1)) &&
         !memcmp(c->counts.demand, demand, sizeof(int) * (size_t)r->experts);
}

/* Like test_gradient, but leaves out probes where the step changes who is selected: there the loss jumps. Most must
 * stay. */
static inline double moe_gradient(layer_case *c, double (*loss)(layer_case *), real *x, int64_t count,
                                  const real *gradient, int probes) {
  const double step = 1e-5;
  double difference = 0, size = 1e-30;
  int skipped = 0;
  ch_record record = {0};
  ch_route_counts counts = {0};
  loss(c);
  keep_record(&record, &counts, &c->record, &c->counts);
  for (int p = 0; p < probes; p++) {
    int64_t i = (int64_t)ch_rng_below(ch_rng_make(7, CH_STREAM_TEST, 98), (uint64_t)p, (uint64_t)count);
    real kept = x[i];
    x[i] = (real)((double)kept + step);
    double up = loss(c);
    int same = same_selection(c, &record, counts.demand);
    x[i] = (real)((double)kept - step);
    double down = loss(c);
    same &= same_selection(c, &record, counts.demand);
    x[i] = kept;
    if (!same) {
      skipped++;
      continue;
    }
    double numeric = (up - down) / (2 * step);
    if (!isfinite(numeric) || !isfinite((double)gradient[i])) return (double)NAN;
    difference += (numeric - (double)gradient[i]) * (numeric - (double)gradient[i]);
    size += numeric * numeric;
  }
  record_free(&record);
  counts_free(&counts);
  assert_true(skipped * 4 <= probes);
  return sqrt(difference / size);
}

#endif
