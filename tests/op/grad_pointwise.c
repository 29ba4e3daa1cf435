/* Gradients of the reference's pointwise ops, norms and embedding against central differences in double. */
#include "testing.h"

enum { N = 5, D = 7, COUNT = N * D, V = 4 };

/* One op under test: `forward` reads what the args point to and writes out; the loss is <out, cotangent>. */
typedef struct {
  ch_exec *x;
  void (*forward)(void *context);
  const real *out, *cotangent;
  ch_softmax_args softmax;
  ch_sigmoid_args sigmoid;
  ch_activate_args activate;
  ch_rmsnorm_args norm;
  ch_embedding_args embedding;
} problem;

static double loss(void *context) {
  problem *p = context;
  p->forward(p);
  return test_dot(p->out, p->cotangent, COUNT);
}

static void softmax_forward(void *context) {
  problem *p = context;
  p->x->ops->softmax(p->x, &p->softmax);
}

static void test_softmax(void **state) {
  real *in = test_new_normal(COUNT, 1), *y = test_new(COUNT), *dy = test_new_normal(COUNT, 2), *dx = test_new(COUNT);
  test_poison(dx, COUNT);
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    problem p = {.x = &x, .forward = softmax_forward, .out = y, .cotangent = dy};
    for (int nulls = 0; nulls <= 4; nulls += 4) {
      p.softmax = (ch_softmax_args){.n = N, .m = D, .nulls = nulls, .x = in, .y = y, .dy = dy, .dx = dx};
      x.ops->softmax(&x, &p.softmax);
      x.ops->softmax_backward(&x, &p.softmax);
      if (pass_) test_gradient_agrees(__func__, loss, &p, in, COUNT, dx);
    }
  });
  free(in), free(y), free(dy), free(dx);
}

static void sigmoid_forward(void *context) {
  problem *p = context;
  p->x->ops->sigmoid(p->x, &p->sigmoid);
}

static void test_sigmoid(void **state) {
  real *in = test_new_normal(COUNT, 1), *y = test_new(COUNT), *dy = test_new_normal(COUNT, 2), *dx = test_new(COUNT);
  test_poison(dx, COUNT);
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    problem p = {.x = &x, .forward = sigmoid_forward, .out = y, .cotangent = dy};
    p.sigmoid = (ch_sigmoid_args){.count = COUNT, .x = in, .y = y, .dy = dy, .dx = dx};
    x.ops->sigmoid(&x, &p.sigmoid);
    x.ops->sigmoid_backward(&x, &p.sigmoid);
    if (pass_) test_gradient_agrees(__func__, loss, &p, in, COUNT, dx);
  });
  free(in), free(y), free(dy), free(dx);
}

static void gelu_forward(void *context) {
  problem *p = context;
  p->x->ops->activate(p->x, &p->activate);
}

static void test_gelu(void **state) {
  real *in = test_new_normal(COUNT, 3), *u = test_new_normal(COUNT, 4), *y = test_new(COUNT);
  real *dy = test_new_normal(COUNT, 5), *dx = test_new(COUNT), *du = test_new(COUNT);
  for (int i = 0; i < COUNT; i++) in[i] *= 2;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    problem p = {.x = &x, .forward = gelu_forward, .out = y, .cotangent = dy};
    p.activate = (ch_activate_args){.count = COUNT, .x = in, .u = u, .y = y, .dy = dy, .dx = dx, .du = du};
    test_poison(dx, COUNT);
    x.ops->activate_backward(&x, &p.activate);
    if (pass_) test_gradient_agrees(__func__, loss, &p, in, COUNT, dx);
    for (int activation = CH_GEGLU; activation <= CH_SWIGLU; activation++) {
      p.activate.activation = (ch_activation)activation;
      test_poison(dx, COUNT), test_poison(du, COUNT);
      x.ops->activate_backward(&x, &p.activate);
      if (pass_)
        test_gradient_agrees(__func__, loss, &p, in, COUNT, dx), test_gradient_agrees(__func__, loss, &p, u, COUNT, du);
    }
  });
  free(in), free(u), free(y), free(dy), free(dx), free(du);
}

static void norm_forward(void *context) {
  problem *p = context;
  p->x->ops->rmsnorm(p->x, &p->norm);
}

/* dw and, with dx_acc, dx start from known values: what the op adds is what remains. */
static void test_rmsnorm(void **state) {
  real *in = test_new_normal(COUNT, 6), *w = test_new_normal(D, 7), *y = test_new(COUNT), *rstd = test_new(N);
  real *dy = test_new_normal(COUNT, 8), *dx = test_new(COUNT), *dw = test_new(D);
  for (int accumulate = 0; accumulate < 2; accumulate++)
    TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
      problem p = {.x = &x, .forward = norm_forward, .out = y, .cotangent = dy};
      p.norm = (ch_rmsnorm_args){.n = N,
                                 .d = D,
                                 .eps = (real)0.1,
                                 .x = in,
                                 .w = w,
                                 .y = y,
                                 .rstd = rstd,
                                 .dy = dy,
                                 .dx = dx,
                                 .dw = dw,
                                 .dx_acc = accumulate};
      for (int i = 0; i < COUNT; i++) dx[i] = accumulate ? 3 : (real)NAN;
      for (int j = 0; j < D; j++) dw[j] = 5;
      x.ops->rmsnorm(&x, &p.norm);
      x.ops->rmsnorm_backward(&x, &p.norm);
      for (int i = 0; accumulate && i < COUNT; i++) dx[i] -= 3;
      for (int j = 0; j < D; j++) dw[j] -= 5;
      if (pass_)
        test_gradient_agrees(__func__, loss, &p, in, COUNT, dx), test_gradient_agrees(__func__, loss, &p, w, D, dw);
    });
  free(in), free(w), free(y), free(rstd), free(dy), free(dx), free(dw);
}

static void embedding_forward(void *context) {
  problem *p = context;
  p->x->ops->embedding(p->x, &p->embedding);
}

static void test_embedding(void **state) {
  static const int32_t token[N] = {2, 0, 2, 3, 2}; /* repeated, and 1 missing */
  real *w = test_new_normal(V * D, 9), *y = test_new(COUNT), *dy = test_new_normal(COUNT, 10), *dw = test_new(V * D);
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    problem p = {.x = &x, .forward = embedding_forward, .out = y, .cotangent = dy};
    p.embedding =
        (ch_embedding_args){.n = N, .d = D, .V = V, .scale = 3, .token = token, .w = w, .x = y, .dx = dy, .dw = dw};
    for (int j = 0; j < V * D; j++) dw[j] = 5;
    x.ops->embedding_backward(&x, &p.embedding);
    for (int j = 0; j < V * D; j++) dw[j] -= 5;
    if (pass_) test_gradient_agrees(__func__, loss, &p, w, V * D, dw);
  });
  free(w), free(y), free(dy), free(dw);
}

TEST_MAIN(NULL, NULL, test_softmax, test_sigmoid, test_gelu, test_rmsnorm, test_embedding)
