/* Attention's gradients by central differences, in double, with a random cotangent. */
#include "testing.h"

enum { B = 2, T = 13, H = 4, DH = 4, LD = H * DH + 5, BUCKETS = 8, MAX_DISTANCE = 10 };

typedef struct {
  ch_exec x;
  ch_attention_args a;
} attention_case;

static double attention_loss(void *context) {
  attention_case *c = context;
  test_poison(c->a.out, B * T * LD);
  for (int64_t row = 0; row < B * T; row++)
    for (int i = H * DH; i < LD; i++) c->a.out[row * LD + i] = 0;
  c->x.ops->attention(&c->x, &c->a);
  return test_dot(c->a.dout, c->a.out, B * T * LD);
}

static void setup(attention_case *c, int kv_heads, int biased, int bidirectional) {
  int64_t count = B * T * LD;
  c->a = (ch_attention_args){.B = B,
                             .T = T,
                             .H = H,
                             .dh = DH,
                             .kv_heads = kv_heads,
                             .bidirectional = bidirectional,
                             .ld = LD,
                             .kv_ld = LD,
                             .scale = 0.5,
                             .q = test_new_normal(count, 1),
                             .k = test_new_normal(count, 2),
                             .v = test_new_normal(count, 3),
                             .rel_bias = biased ? test_new_normal(BUCKETS * H, 4) : NULL,
                             .buckets = BUCKETS,
                             .max_distance = MAX_DISTANCE,
                             .out = test_new(count),
                             .lse = test_new(B * H * T),
                             .dout = test_new_normal(count, 5),
                             .dq = test_new(count),
                             .dk = test_new(count),
                             .dv = test_new(count),
                             .drel_bias = test_new_normal(BUCKETS * H, 6)};
  test_poison(c->a.dq, count), test_poison(c->a.dk, count), test_poison(c->a.dv, count);
  for (int64_t row = 0; row < B * T; row++) /* columns that belong to nobody */
    for (int i = 0; i < LD; i++) {
      if (i >= H * DH) c->a.dq[row * LD + i] = 0;
      if (i >= ch_kv_heads(H, kv_heads) * DH) c->a.dk[row * LD + i] = c->a.dv[row * LD + i] = 0;
    }
  test_ok(ch_exec_init(&c->x, "reference", CH_COMPUTE_FP32, 0, 2));
  c->x.ops->attention(&c->x, &c->a);
  c->x.ops->attention_backward(&c->x, &c->a);
  test_ok(ch_exec_commit(&c->x));
}

static void check(int kv_heads, int biased, int bidirectional) {
  attention_case c;
  setup(&c, kv_heads, biased, bidirectional);
  real *before = test_new_normal(BUCKETS * H, 6);
  int64_t count = B * T * LD;
  attention_loss(&c); /* out and lse, which backward reads */
  c.x.ops->attention_backward(&c.x, &c.a);
  for (int i = 0; i < BUCKETS * H; i++) c.a.drel_bias[i] -= before[i];
  assert_true(test_gradient(attention_loss, &c, (real *)c.a.q, count, c.a.dq, 150) <= 1e-7);
  assert_true(test_gradient(attention_loss, &c, (real *)c.a.k, count, c.a.dk, 150) <= 1e-7);
  assert_true(test_gradient(attention_loss, &c, (real *)c.a.v, count, c.a.dv, 150) <= 1e-7);
  if (biased)
    assert_true(test_gradient(attention_loss, &c, (real *)c.a.rel_bias, BUCKETS * H, c.a.drel_bias, BUCKETS * H) <=
                1e-7);
  ch_exec_free(&c.x);
  real *arrays[] = {(real *)c.a.q,    (real *)c.a.k, (real *)c.a.v, (real *)c.a.rel_bias,
                    (real *)c.a.dout, c.a.out,       c.a.lse,       c.a.dq,
                    c.a.dk,           c.a.dv,        c.a.drel_bias, before};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
}

static void attention_gradients(void **state) { (void)state, check(0, 1, 0); }
static void shared_keys(void **state) { (void)state, check(2, 1, 0), check(1, 0, 0); }
static void both_ways(void **state) { (void)state, check(0, 1, 1), check(2, 1, 1), check(1, 0, 1); }

TEST_MAIN(NULL, NULL, attention_gradients, shared_keys, both_ways)
