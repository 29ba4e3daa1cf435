/* The MoE layer against naive loops and by law, on both backends. */
#include "moe_testing.h"
#include "naive_layer.h"
#include "naive_routing.h"

enum { N = 90, D = 24, H = 40, E = 5, MANY = 4096 }; /* tokens: few for naive loops, and enough for several threads */

static int32_t ids[MANY];
static uint8_t mask[N];
static const char *const backends[] = {"reference", "cpu"};

static int set_up(void **state) {
  for (int t = 0; t < MANY; t++) ids[t] = t * t % 31;
  for (int t = 0; t < N; t++) mask[t] = t % 7 != 2;
  return 0;
}

static layer_case make_of(int n, const char *router, const char *backend) {
  layer_case c = layer_case_new(router, n, D, H, experts_for(router, E));
  c.token = ids;
  c.backend = backend;
  return c;
}

static layer_case make(const char *router, const char *backend) { return make_of(N, router, backend); }

static void naive_layer(const layer_case *c, real *out) {
  static real scores[N * E];
  static double gate[N * E];
  for (int t = 0; t < c->n; t++) naive_scores(c, t, scores + t * c->e);
  naive_routing q = {.o = &c->options,
                     .n = c->n,
                     .e = c->e,
                     .T = c->T,
                     .scores = scores,
                     .token = c->token,
                     .valid = c->valid,
                     .training = c->training,
                     .rng = ch_rng_make(c->seed, CH_STREAM_SECOND_EXPERT, 3),
                     .rng_base = c->rng_base,
                     .gate = gate};
  naive_route(&q);
  for (int t = 0; t < c->n; t++)
    for (int i = 0; i < c->e; i++)
      if (gate[t * c->e + i] > 0) naive_expert(c, t, i, gate[t * c->e + i], out + t * D);
}

/* Training and evaluation, padding, out_acc on top of something, and gates on what experts read. */
static void equals_naive_loops(void **state) {
  for (int backend = 0; backend < 2; backend++)
    for (int router = 0; ch_routers[router]; router++)
      for (int variant = 0; variant < 64; variant++) {
        if (variant & 32 && (variant & 12 || !ch_router_takes(ch_routers[router], CH_OPTION_gate_on))) continue;
        if (variant & 8 && !ch_router_takes(ch_routers[router], CH_OPTION_score)) continue;
        layer_case c = make(ch_router_names[router], backends[backend]);
        if (variant & 8) c.options.score = CH_SIGMOID;
        if (variant & 32) c.options.gate_on = CH_GATE_INPUT;
        if (variant & 16) c.activation = variant & 1 ? CH_SWIGLU : CH_GEGLU;
        c.training = variant & 1;
        c.valid = variant & 2 ? mask : NULL;
        c.discard = !c.training;
        c.out_acc = (variant & 4) != 0;
        c.options.random_second = 1;
        c.options.eval_capacity_factor = is_dense(c.options.kind->name) ? 1 : 1.5;
        real *want = test_new(N * D);
        for (int pass = 0; c.out_acc && pass < 2; pass++) test_normal(pass ? want : c.out, N * D, 70);
        naive_layer(&c, want);
        layer_run(&c, 0);
        test_close(c.out, want, N * D, 2e-6);
        for (int t = 0; t < N && c.valid && !c.out_acc; t++)
          for (int j = 0; j < D && !c.valid[t]; j++) assert_true(c.out[t * D + j] == 0);
        free(want);
        layer_case_free(&c);
      }
}

static void same_bits(const real *a, const real *b, int64_t count) {
  assert_memory_equal(a, b, sizeof(real) * (size_t)count);
}

static void same_layer_bits(const layer_case *a, const layer_case *b) {
  int64_t weights = (int64_t)a->e * D * H;
  same_bits(a->out, b->out, (int64_t)a->n * D);
  same_bits(a->dx, b->dx, (int64_t)a->n * D);
  same_bits(a->dw1, b->dw1, weights);
  same_bits(a->dw2, b->dw2, weights);
  if (ch_gated(a->activation)) same_bits(a->dw3, b->dw3, weights);
  same_bits(a->drouter, b->drouter, (int64_t)D * a->e);
}

/* Few tokens on both backends, and as many as ops share among threads. */
static void threads_change_nothing(void **state) {
  for (int way = 0; way < 3; way++)
    for (int router = 0; ch_routers[router]; router++) {
      const char *backend = backends[way > 0];
      const int n = way < 2 ? N : MANY;
      layer_case one = make_of(n, ch_router_names[router], backend);
      if (ch_router_takes(ch_routers[router], CH_OPTION_jitter)) one.options.jitter = 0.1;
      one.options.random_second = 1;
      one.threads = 1;
      one.activation = router % 2 ? CH_SWIGLU : CH_GELU;
      layer_run(&one, 1);
      for (int threads = 2; threads < 4; threads++) {
        layer_case more = make_of(n, ch_router_names[router], backend);
        more.options = one.options;
        more.activation = one.activation;
        more.threads = threads;
        layer_run(&more, 1);
        same_layer_bits(&one, &more);
        layer_case_free(&more);
      }
      layer_case_free(&one);
    }
}

/* expert_choice with one expert and c = 1, and hash with one expert, are the dense layer, except that the gate's
 * gradient is 0, since the softmax of one score is 1. */
static void one_expert_is_the_dense_layer(void **state) {
  for (int backend = 0; backend < 2; backend++) {
    layer_case dense = make("dense", backends[backend]), other;
    layer_run(&dense, 1);
    for (int hash = 0; hash < 2; hash++) {
      other = layer_case_new(hash ? "hash" : "expert_choice", N, D, H, 1);
      other.backend = backends[backend];
      other.token = ids;
      other.options.capacity_factor = 1;
      layer_run(&other, 1);
      test_close(other.out, dense.out, N * D, 5e-7);
      test_close(other.dx, dense.dx, N * D, 1e-6);
      test_close(other.dw1, dense.dw1, D * H, 1e-6);
      test_close(other.dw2, dense.dw2, D * H, 1e-6);
      layer_case_free(&other);
    }
    layer_case_free(&dense);
  }
}

/* Tokens in another order come out in that order (the capacity of token choice goes by order, so it must be wide). */
static void permuting_tokens_permutes_the_output(void **state) {
  ch_rng r = ch_rng_make(3, CH_STREAM_TEST, 80);
  for (int router = 0; router < 3; router++) {
    layer_case a = make(ch_router_names[router], "reference"), b = make(ch_router_names[router], "reference");
    a.options.capacity_factor = b.options.capacity_factor = router ? E : 2;
    for (int t = 0; t < N; t++) {
      int64_t to = (int64_t)ch_rng_permute(r, (uint64_t)t, N);
      memcpy(b.x + to * D, a.x + t * D, D * sizeof(real));
      memcpy(b.dout + to * D, a.dout + t * D, D * sizeof(real));
    }
    layer_run(&a, 1);
    layer_run(&b, 1);
    for (int t = 0; t < N; t++) {
      int64_t to = (int64_t)ch_rng_permute(r, (uint64_t)t, N);
      test_close(b.out + to * D, a.out + t * D, D, 1e-6);
      test_close(b.dx + to * D, a.dx + t * D, D, 1e-5);
    }
    layer_case_free(&a);
    layer_case_free(&b);
  }
}

/* Padded tokens anywhere change nothing: outputs and every gradient, bit for bit on the reference. */
static void padding_changes_nothing(void **state) {
  uint8_t valid[2 * N] = {0};
  int32_t padded_ids[2 * N] = {0};
  for (int router = 0; ch_routers[router]; router++) {
    int e = experts_for(ch_router_names[router], E), place[N];
    layer_case a = make(ch_router_names[router], "reference"),
               b = layer_case_new(ch_router_names[router], 2 * N, D, H, e);
    memcpy(b.router, a.router, sizeof(real) * (size_t)(D * e));
    for (int t = 0, p = 0; t < N; t++, p++) {
      p += t % 3 == 0; /* padding before this token */
      place[t] = p;
      valid[p] = 1;
      padded_ids[p] = ids[t];
      memcpy(b.x + p * D, a.x + t * D, D * sizeof(real));
      memcpy(b.dout + p * D, a.dout + t * D, D * sizeof(real));
    }
    b.valid = valid;
    b.token = padded_ids;
    a.training = b.training = strcmp(ch_router_names[router], "random") != 0; /* which draws by place in training */
    layer_run(&a, 1);
    layer_run(&b, 1);
    for (int t = 0; t < N; t++) {
      same_bits(b.out + place[t] * D, a.out + t * D, D);
      same_bits(b.dx + place[t] * D, a.dx + t * D, D);
    }
    same_bits(b.dw1, a.dw1, (int64_t)e * D * H);
    same_bits(b.dw2, a.dw2, (int64_t)e * D * H);
    same_bits(b.drouter, a.drouter, D * e);
    layer_case_free(&a);
    layer_case_free(&b);
  }
}

/* Jitter: in training only, within bounds, other factors with every token that went before. */
static void jitter_is_for_training(void **state) {
  layer_case plain = make("switch_top1", "reference"), c = make("switch_top1", "reference");
  layer_run(&plain, 0);
  c.options.jitter = 0.01;
  c.training = 0;
  layer_run(&c, 0);
  same_bits(c.scores, plain.scores, N * E);
  c.training = 1;
  layer_run(&c, 0);
  double error = test_error(c.scores, plain.scores, N * E);
  assert_true(error > 1e-4 && error < 0.02);
  real *first = copy_of(c.scores, sizeof(real) * N * E);
  c.rng_base = N;
  layer_run(&c, 0);
  assert_true(test_error(c.scores, first, N * E) > 1e-4);
  free(first);
  layer_case_free(&plain);
  layer_case_free(&c);
}

/* bf16 rounds the inputs of expert products only: close, and the same experts. */
static void bf16_is_close(void **state) {
  layer_case exact = make("expert_choice", "cpu"), rounded = make("expert_choice", "cpu");
  rounded.compute = CH_COMPUTE_BF16;
  layer_run(&exact, 1);
  layer_run(&rounded, 1);
  same_bits(exact.scores, rounded.scores, N * E);
  test_close(rounded.out, exact.out, N * D, 0.02);
  test_close(rounded.dx, exact.dx, N * D, 0.03);
  test_close(rounded.dw1, exact.dw1, (int64_t)E * D * H, 0.03);
  test_close(rounded.dw2, exact.dw2, (int64_t)E * D * H, 0.03);
  layer_case_free(&exact);
  layer_case_free(&rounded);
}

TEST_MAIN(set_up, NULL, equals_naive_loops, threads_change_nothing, one_expert_is_the_dense_layer,
          permuting_tokens_permutes_the_output, padding_changes_nothing, jitter_is_for_training, bf16_is_close)
