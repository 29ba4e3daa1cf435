/* The forms of gemm and expert_gemm against each other: NT and TN are NN's gradients. In double. */
#include "testing.h"

static const ch_ops *reference(ch_exec *x, int threads) {
  test_ok(ch_exec_init(x, "reference", CH_COMPUTE_FP32, 0, threads));
  test_ok(ch_exec_commit(x));
  return x->ops;
}

/* loss = <cotangent, C>, C = alpha op(A) op(B) on strided arrays. */
typedef struct {
  ch_exec *x;
  ch_gemm_args g;
  const real *cotangent;
  int64_t rows;
} gemm_case;

static double gemm_loss(void *context) {
  gemm_case *c = context;
  test_poison(c->g.c, c->g.m * c->g.ldc);
  c->x->ops->gemm(c->x, &c->g);
  double loss = 0;
  for (int64_t i = 0; i < c->g.m; i++) loss += test_dot(c->cotangent + i * c->g.n, c->g.c + i * c->g.ldc, c->g.n);
  return loss;
}

/* dA and dB of every combination of transpositions, each itself a gemm that accumulates onto what stands there. */
static void gemm_gradients(void **state) {
  ch_exec x;
  const ch_ops *ops = reference(&x, 2);
  enum { M = 5, N = 7, K = 11, LD = 16 };
  for (int form = 0; form < 4; form++) {
    int ta = form & 1, tb = form >> 1;
    real *a = test_new_normal(LD * LD, 1), *b = test_new_normal(LD * LD, 2), *c = test_new(M * LD);
    real *cotangent = test_new_normal(M * N, 3);
    gemm_case t = {&x,
                   {.m = M,
                    .n = N,
                    .k = K,
                    .trans_a = ta,
                    .trans_b = tb,
                    .a = a,
                    .b = b,
                    .c = c,
                    .lda = LD,
                    .ldb = LD,
                    .ldc = LD,
                    .alpha = 0.7},
                   cotangent,
                   M};
    real *da = test_new_normal(LD * LD, 4), *db = test_new_normal(LD * LD, 5);
    real *da0 = test_new_normal(LD * LD, 4), *db0 = test_new_normal(LD * LD, 5);
    ch_gemm_args ga = {.m = ta ? K : M,
                       .n = ta ? M : K,
                       .k = N,
                       .trans_a = ta && tb,
                       .trans_b = ta || !tb,
                       .a = ta ? b : cotangent,
                       .b = ta ? cotangent : b,
                       .c = da,
                       .lda = ta ? LD : 0,
                       .ldb = ta ? 0 : LD,
                       .ldc = LD,
                       .alpha = 0.7,
                       .accumulate = 1};
    ch_gemm_args gb = {.m = tb ? N : K,
                       .n = tb ? K : N,
                       .k = M,
                       .trans_a = tb || !ta,
                       .trans_b = tb && ta,
                       .a = tb ? cotangent : a,
                       .b = tb ? a : cotangent,
                       .c = db,
                       .lda = tb ? 0 : LD,
                       .ldb = tb ? LD : 0,
                       .ldc = LD,
                       .alpha = 0.7,
                       .accumulate = 1};
    ops->gemm(&x, &ga);
    ops->gemm(&x, &gb);
    for (int i = 0; i < LD * LD; i++) da[i] -= da0[i], db[i] -= db0[i];
    assert_true(test_gradient(gemm_loss, &t, a, LD * LD, da, LD * LD) <= 1e-8);
    assert_true(test_gradient(gemm_loss, &t, b, LD * LD, db, LD * LD) <= 1e-8);
    free(a), free(b), free(c), free(cotangent), free(da), free(db), free(da0), free(db0);
  }
  ch_exec_free(&x);
}

typedef struct {
  ch_exec *x;
  ch_expert_gemm_args g;
  const real *cotangent;
} expert_case;

static double expert_loss(void *context) {
  expert_case *c = context;
  int64_t count = c->g.begin[c->g.experts] * c->g.n;
  test_poison(c->g.c, count);
  c->x->ops->expert_gemm(c->x, &c->g);
  return test_dot(c->cotangent, c->g.c, count);
}

/* dA of NN is NT and the other way round; dW of NN is TN on (A, dC), that of NT is TN on (dC, A). */
static void expert_gradients(void **state) {
  ch_exec x;
  const ch_ops *ops = reference(&x, 2);
  enum { E = 4, ROWS = 9, N = 6, K = 5 };
  const int begin[E + 1] = {0, 3, 3, 4, ROWS};
  for (int nt = 0; nt < 2; nt++) {
    real *a = test_new_normal(ROWS * K, 1), *w = test_new_normal(E * N * K, 2), *c = test_new(ROWS * N);
    real *cotangent = test_new_normal(ROWS * N, 3), *da = test_new(ROWS * K), *dw = test_new(E * N * K);
    ch_expert_gemm_args g = {.form = nt ? CH_NT : CH_NN,
                             .experts = E,
                             .begin = begin,
                             .max_rows = ROWS,
                             .n = N,
                             .k = K,
                             .a = a,
                             .c = c,
                             .w = w};
    expert_case t = {&x, g, cotangent};
    test_poison(da, ROWS * K);
    ops->expert_gemm(&x, &(ch_expert_gemm_args){.form = nt ? CH_NN : CH_NT,
                                                .experts = E,
                                                .begin = begin,
                                                .max_rows = ROWS,
                                                .n = K,
                                                .k = N,
                                                .a = cotangent,
                                                .c = da,
                                                .w = w});
    ops->expert_gemm(&x, &(ch_expert_gemm_args){.form = CH_TN,
                                                .experts = E,
                                                .begin = begin,
                                                .max_rows = ROWS,
                                                .n = nt ? K : N,
                                                .k = nt ? N : K,
                                                .a = nt ? cotangent : a,
                                                .c = nt ? a : cotangent,
                                                .w = dw});
    assert_true(test_gradient(expert_loss, &t, a, ROWS * K, da, ROWS * K) <= 1e-8);
    assert_true(test_gradient(expert_loss, &t, w, E * N * K, dw, E * N * K) <= 1e-8);
    free(a), free(w), free(c), free(cotangent), free(da), free(dw);
  }
  ch_exec_free(&x);
}

TEST_MAIN(NULL, NULL, gemm_gradients, expert_gradients)
