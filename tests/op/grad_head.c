/* The head's gradients by central differences, in double: rows over two chunks, some without a target, in pairs too. */
#include "testing.h"

enum { N = 140, D = 6, V = 11 };

typedef struct {
  ch_exec x;
  ch_head_args a;
} head_case;

static double head_loss(void *context) {
  head_case *c = context;
  ch_head_args forward = c->a;
  forward.dx = forward.dw = NULL;
  *forward.loss_sum = *forward.consistency_sum = (double)NAN;
  c->x.ops->head(&c->x, &forward);
  double consistency = forward.paired ? (double)forward.consistency * *forward.consistency_sum : 0;
  return (double)c->a.weight * *forward.loss_sum + consistency;
}

static void check(int paired, int weighted) {
  int32_t target[N];
  float weight[N];
  double loss, disagreement;
  for (int i = 0; i < N; i++) target[i] = i % (N / 2) % 5 == 3 ? -1 : i % (N / 2) * 7 % V;
  for (int i = 0; i < N; i++) weight[i] = (float)(i % 9) / 3; /* some are 0 */
  head_case c;
  c.a = (ch_head_args){.n = N,
                       .d = D,
                       .V = V,
                       .scale = 0.4,
                       .x = test_new_normal(N * D, 1),
                       .w = test_new_normal(V * D, 2),
                       .target = target,
                       .loss_sum = &loss,
                       .weight = 1.7,
                       .row_weight = weighted ? weight : NULL,
                       .paired = paired,
                       .consistency_sum = &disagreement,
                       .consistency = 2.3,
                       .dx = test_new(N * D),
                       .dw = test_new_normal(V * D, 3),
                       .accumulate = 1};
  real *before = test_new_normal(V * D, 3);
  test_poison(c.a.dx, N * D);
  TEST_EXEC("reference", CH_COMPUTE_FP32, 2, {
    c.x = x;
    x.ops->head(&x, &c.a);
    if (pass_) {
      for (int i = 0; i < V * D; i++) c.a.dw[i] -= before[i];
      assert_true(test_gradient(head_loss, &c, (real *)c.a.x, N * D, c.a.dx, N * D) <= 1e-7);
      assert_true(test_gradient(head_loss, &c, (real *)c.a.w, V * D, c.a.dw, V * D) <= 1e-7);
    }
  });
  free((real *)c.a.x), free((real *)c.a.w), free(c.a.dx), free(c.a.dw), free(before);
}

static void head_gradients(void **state) { (void)state, check(0, 0), check(0, 1); }
static void paired_gradients(void **state) { (void)state, check(1, 0); }

TEST_MAIN(NULL, NULL, head_gradients, paired_gradients)
