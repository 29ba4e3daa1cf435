/* parallel.dispatch_dtype = bf16 by law, on one process: every row between tokens and experts is rounded once, and
 * nothing else. tests/train/test_ranks.c compares several processes with one. */
#include "moe_testing.h"

enum { N = 90, D = 24, H = 40, E = 5 };

static int32_t ids[N];
static const char *const backends[] = {"reference", "cpu"};

static layer_case make(const char *router, const char *backend) {
  layer_case c = layer_case_new(router, N, D, H, experts_for(router, E));
  for (int t = 0; t < N; t++) ids[t] = t * t % 31;
  c.token = ids;
  c.backend = backend;
  return c;
}

static void round_all(real *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) x[i] = ch_bf16_value(ch_bf16_round(x[i]));
}

static void same_bits(const char *what, const real *a, const real *b, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (!(a[i] == b[i])) fail_msg("%s, element %d: %.9g and %.9g", what, (int)i, (double)a[i], (double)b[i]);
}

/* Every token has one expert, and its gate is 1: the layer on rounded rows, with its results rounded. */
static void one_row_a_token(void **state) {
  for (int backend = 0; backend < 2; backend++) {
    layer_case c = make("hash", backends[backend]), plain = make("hash", backends[backend]);
    int64_t weights = (int64_t)E * D * H;
    c.dispatch_dtype = CH_COMPUTE_BF16;
    layer_run(&c, 1);
    round_all(plain.x, N * D), round_all(plain.dout, N * D);
    layer_run(&plain, 1);
    assert_memory_not_equal(c.out, plain.out, sizeof(real) * N * D); /* or nothing would be shown */
    assert_memory_not_equal(c.dx, plain.dx, sizeof(real) * N * D);
    round_all(plain.out, N * D), round_all(plain.dx, N * D);
    same_bits("out", c.out, plain.out, N * D);
    same_bits("dx", c.dx, plain.dx, N * D);
    same_bits("dw1", c.dw1, plain.dw1, weights);
    same_bits("dw2", c.dw2, plain.dw2, weights);
    layer_case_free(&c), layer_case_free(&plain);
  }
}

/* Experts that compute in bf16 round what comes to them anyway: their gradients are the same. What they send back is
 * another number than before; of routing nothing changes. */
static void bf16_experts_round_inputs_once(void **state) {
  for (int router = 0; ch_routers[router]; router++) {
    const char *name = ch_router_names[router];
    layer_case c[2];
    for (int dispatch_dtype = 0; dispatch_dtype < 2; dispatch_dtype++) {
      c[dispatch_dtype] = make(name, "cpu");
      c[dispatch_dtype].compute = CH_COMPUTE_BF16;
      c[dispatch_dtype].dispatch_dtype = dispatch_dtype ? CH_COMPUTE_BF16 : CH_COMPUTE_FP32;
      layer_run(&c[dispatch_dtype], 1);
    }
    int64_t weights = (int64_t)c->e * D * H;
    if (!same_selection(&c[0], &c[1].record, c[1].counts.demand)) fail_msg("%s: another selection", name);
    same_bits(name, c[0].dw1, c[1].dw1, weights);
    same_bits(name, c[0].dw2, c[1].dw2, weights);
    assert_memory_not_equal(c[0].out, c[1].out, sizeof(real) * N * D);
    assert_memory_not_equal(c[0].dx, c[1].dx, sizeof(real) * N * D);
    layer_case_free(&c[0]), layer_case_free(&c[1]);
  }
}

/* Near the layer that rounds nothing, bit for bit the same on any number of threads, and on what `valid` leaves. */
static void close_and_independent_of_threads(void **state) {
  static uint8_t mask[N];
  for (int t = 0; t < N; t++) mask[t] = t % 7 != 2;
  for (int router = 0; ch_routers[router]; router++)
    for (int backend = 0; backend < 2; backend++) {
      layer_case c = make(ch_router_names[router], backends[backend]), other = make(ch_router_names[router], "cpu");
      layer_case plain = make(ch_router_names[router], backends[backend]);
      c.valid = other.valid = plain.valid = mask;
      c.dispatch_dtype = other.dispatch_dtype = CH_COMPUTE_BF16;
      layer_run(&c, 1), layer_run(&plain, 1);
      test_close(c.out, plain.out, N * D, 2e-2);
      test_close(c.dx, plain.dx, N * D, 2e-2);
      other.threads = 3;
      layer_run(&other, 1);
      if (backend) same_bits("out of 3 threads", c.out, other.out, N * D);
      if (backend) same_bits("dx of 3 threads", c.dx, other.dx, N * D);
      layer_case_free(&c), layer_case_free(&other), layer_case_free(&plain);
    }
}

TEST_MAIN(NULL, NULL, one_row_a_token, bf16_experts_round_inputs_once, close_and_independent_of_threads)
