/* Routing that prefers cached experts against a naive loop, for every router that ranks experts by scores. */
#include "moe/prefer.h"
#include "moe/route.h"
#include "moe_testing.h"
#include "plugin_routers.h"

enum { N = 61, E = 9, LENGTH = 10 };

typedef struct routed {
  ch_record record;
  ch_route_counts counts;
  double gate[N * E];
} routed;

typedef struct problem {
  ch_router_spec options;
  real score[N * E], shift[E];
  uint8_t valid[N];
} problem;

/* With `ties` scores have few values. A row adds up to 0.9: null experts have the rest. */
static void set_problem(problem *p, const ch_router *router, int ties) {
  ch_rng r = ch_rng_make(9, CH_STREAM_TEST, (uint32_t)ties);
  p->options = router_options(router->name);
  if (!ch_router_choices(&p->options)) p->options.capacity_factor = 3;
  for (int t = 0; t < N; t++) {
    double sum = 0, u[E];
    for (int i = 0; i < E; i++) {
      u[i] = 0.05 + ch_rng_uniform(r, (uint64_t)(t * E + i));
      if (ties) u[i] = 1 + floor(4 * u[i]);
      sum += u[i];
    }
    for (int i = 0; i < E; i++) p->score[t * E + i] = (real)(0.9 * u[i] / sum);
    p->valid[t] = t % LENGTH < 8 || t < 4 * LENGTH;
  }
  for (int i = 0; i < E; i++) p->shift[i] = (real)(0.11 + 0.006 * i);
}

static void route(const problem *p, ch_prefer *prefer, const char *backend, int threads, routed *out) {
  TEST_EXEC(backend, CH_COMPUTE_FP32, threads, {
    ch_routing r;
    ch_route_args a = {.tokens = {.mask = p->valid, .valid = p->valid},
                       .causal = CH_BY_THRESHOLDS,
                       .router_state.thresholds = ch_router_has_thresholds(p->options.kind) ? p->shift : NULL,
                       .prefer = prefer,
                       .routing = &r};
    ch_route_args_set(&a, p->options.kind, &p->options, N, E, LENGTH);
    ch_routing_alloc(&x, &a, (ch_route_tally){0}, &x.tape);
    r.scores = (real *)(uintptr_t)p->score;
    ch_route(&x, &a);
    if (pass_) keep_record(&out->record, &out->counts, &r.record, &r.counts);
    x.tape.used = 0;
  });
  record_gates(&out->record, out->gate);
}

static void routed_free(routed *r) {
  record_free(&r->record);
  counts_free(&r->counts);
}

/* last[i]: when the sequence used the expert, 0: not yet. In the cache: fewer than `size` were used since. */
static int is_cached(const int *last, int expert, int size) {
  int since = 0;
  for (int i = 0; i < E; i++) since += last[i] > last[expert];
  return last[expert] && since < size;
}

static real margin(const problem *p, int t, int expert) {
  real score = p->score[(int64_t)t * E + expert];
  return ch_router_has_thresholds(p->options.kind) ? score - p->shift[expert] : score;
}

/* Rank of an expert: those that the token prefers to it. */
static int rank_of(const problem *p, int t, int expert) {
  int rank = 0;
  for (int i = 0; i < E; i++) {
    real a = margin(p, t, i), b = margin(p, t, expert);
    rank += a > b || (a == b && i < expert);
  }
  return rank;
}

static int is_candidate(const problem *p, int t, int expert, const ch_prefer *prefer) {
  if (ch_router_choices(&p->options)) return rank_of(p, t, expert) < prefer->among;
  return margin(p, t, expert) >= -prefer->lowered;
}

/* used: in the router's own experts of a token, out what it takes. The next expert is a cached candidate of lowest
 * rank, or if there is none, any candidate of lowest rank. */
static void naive_choose(const problem *p, int t, const ch_prefer *prefer, const int *last, int *used) {
  int count = 0, candidates = 0, may[E];
  for (int i = 0; i < E; i++) {
    count += used[i];
    candidates += may[i] = is_candidate(p, t, i, prefer);
  }
  if (candidates <= count || (!ch_router_choices(&p->options) && prefer->lowered == 0)) return;
  for (int i = 0; i < E; i++) used[i] = 0;
  for (; count; count--) {
    int best = -1, best_key = 0;
    for (int i = 0; i < E; i++) {
      int key = rank_of(p, t, i) + (is_cached(last, i, prefer->size) ? 0 : E);
      if (!used[i] && may[i] && (best < 0 || key < best_key)) best = i, best_key = key;
    }
    used[best] = 1;
  }
}

static double naive_gate(const problem *p, int t, int expert, const int *used) {
  double sum = 0, score = (double)p->score[t * E + expert];
  for (int i = 0; i < E; i++)
    if (used[i]) sum += (double)p->score[t * E + i];
  return p->options.normalize_gates || p->options.kind->gates == CHOIR_GATES_SHARE ? score / sum : score;
}

static void check_against_naive(const problem *p, const routed *own, const ch_prefer *prefer, const routed *got) {
  int last[E] = {0}, clock = 0, load[E] = {0};
  ch_ratio hits = {0};
  for (int t = 0; t < N; t++) {
    int used[E];
    if (t % LENGTH == 0) memset(last, 0, sizeof last);
    for (int i = 0; i < E; i++) used[i] = own->gate[t * E + i] != 0;
    naive_choose(p, t, prefer, last, used);
    for (int i = 0; i < E; i++) {
      double want = used[i] ? naive_gate(p, t, i, used) : 0, is = got->gate[t * E + i];
      if (!(fabs(is - want) <= 1e-6) || (is == 0) != (want == 0))
        fail_msg("%s, cache %d, among %d: token %d, expert %d: %g, not %g", p->options.kind->name, prefer->size,
                 prefer->among, t, i, is, want);
      if (!used[i]) continue;
      hits.part += is_cached(last, i, prefer->size);
      hits.whole++;
      last[i] = ++clock;
      load[i]++;
    }
  }
  assert_int_equal(prefer->hits.part, hits.part);
  assert_int_equal(prefer->hits.whole, hits.whole);
  assert_memory_equal(got->counts.demand, load, sizeof load);
}

static void same(const routed *a, const routed *b) {
  size_t slots = (size_t)ch_slots(&a->record);
  assert_int_equal(slots, ch_slots(&b->record));
  assert_memory_equal(a->record.expert_begin, b->record.expert_begin, (E + 1) * sizeof(int));
  assert_memory_equal(a->record.slot_token, b->record.slot_token, slots * sizeof(int));
  assert_memory_equal(a->record.slot_gate, b->record.slot_gate, slots * sizeof(real));
}

/* Any cache, any number of candidates, ties, padding. With few candidates the routing is the router's own, bit for bit,
 * and any number of threads gives the same bits. */
static void check(const problem *p) {
  routed own = {0}, got = {0}, more = {0};
  int changed = 0, experts_choose = !ch_router_choices(&p->options);
  route(p, NULL, "reference", 1, &own);
  for (int size = 1; size <= E; size += 2)
    for (int among = 0; among <= E; among++) {
      ch_prefer prefer = {.size = size, .among = among}, again;
      if (experts_choose) prefer.lowered = (real)among / 128;
      again = prefer;
      route(p, &prefer, "reference", 1, &got);
      check_against_naive(p, &own, &prefer, &got);
      if (among <= !experts_choose) same(&own, &got);
      changed += !!memcmp(own.gate, got.gate, sizeof own.gate);
      route(p, &again, "cpu", 3, &more);
      same(&got, &more);
      assert_int_equal(again.hits.part, prefer.hits.part);
    }
  assert_true(changed > 10);
  routed_free(&own), routed_free(&got), routed_free(&more);
}

static void equals_naive_loop(void **state) {
  static problem p;
  for (int i = 0, found = 0; ch_routers[i] || found < 6; i++) {
    assert_non_null(ch_routers[i]);
    if (is_dense(ch_routers[i]->name) || ch_prefer_check(ch_routers[i])) continue;
    for (int ties = 0; ties < 2; ties++) {
      set_problem(&p, ch_routers[i], ties);
      check(&p);
      if (!ch_router_takes(ch_routers[i], CH_OPTION_normalize_gates)) continue;
      p.options.normalize_gates = 1;
      check(&p);
    }
    found++;
  }
  set_problem(&p, ch_router_find("topk"), 0);
  p.options.null_experts = 3;
  p.options.experts_per_token = 4;
  check(&p);
}

/* The margins that a pass counts, and by how much thresholds go down for so many candidates. */
static void lowered_thresholds(void **state) {
  static problem p;
  static int64_t margins[CH_MARGIN_BINS];
  routed own = {0};
  int64_t tokens = 0;
  set_problem(&p, ch_router_find("expert_choice"), 0);
  ch_prefer prefer = {.size = 2, .margins = margins};
  route(&p, &prefer, "reference", 1, &own);
  for (int t = 0; t < N; t++) tokens += p.valid[t];
  for (int among = 1; among <= E; among++) {
    real lowered = ch_prefer_lowered(margins, tokens, among), less = lowered - (real)1 / (CH_MARGIN_BINS / 2);
    int64_t with = 0, without = 0;
    for (int t = 0; t < N; t++)
      for (int i = 0; p.valid[t] && i < E; i++) {
        with += margin(&p, t, i) >= -lowered;
        without += margin(&p, t, i) >= -less;
      }
    assert_true(lowered >= 0 && with >= among * tokens);
    assert_true(lowered == 0 || without < among * tokens);
  }
  assert_true(ch_prefer_lowered(margins, tokens, 1) == 0 && ch_prefer_lowered(margins, tokens, E) > 0);
  routed_free(&own);
}

static void refusals(void **state) {
  static const char *const names[] = {"hash", "kmeans", "base", "dense", "random", "own_min"};
  test_ok(choir_router_register_experts(&own_min));
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const ch_router *router = ch_router_find(names[i]);
    assert_int_equal(ch_prefer_check(router), CHOIR_ERROR_UNSUPPORTED);
    assert_non_null(strstr(choir_error_message(), names[i]));
  }
}

TEST_MAIN(NULL, NULL, equals_naive_loop, lowered_thresholds, refusals)
