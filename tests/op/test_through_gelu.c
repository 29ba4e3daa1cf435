/* expert_gemm through GELU is the product and GELU one after the other, bit for bit: of floats, and in bf16 of what was
 * rounded. Over shapes, instruction sets, numbers of threads, many rows and few, and outputs in the place of inputs. */
#include "variants.h"

static const int even[] = {0, 50, 100, 150, 200}, uneven[] = {0, 0, 1, 300, 300, 317, 400, 400}, large[] = {0, 700},
                 few[] = {0, 3, 3, 4, 4}, nobody[] = {0, 0, 0};
typedef struct {
  const int *begin;
  int experts;
  int64_t n, k;
} size;
static const size sizes[] = {
    {even, 4, 96, 64}, {uneven, 7, 130, 33}, {large, 1, 1500, 40}, {few, 4, 200, 64}, {nobody, 2, 64, 64}};

/* Names the pass: forward (C is x, y = gelu(x)) or backward (C is dy, and dx and y are made of it and x). */
typedef struct {
  size s;
  ch_compute compute;
  int backward, invariant, in_place;
} problem;

/* An op leaves x or dx here, and y: floats, which are bf16 where compute is. */
typedef struct {
  real *c, *y;
} outputs;

static outputs new_outputs(int64_t count) {
  outputs o = {test_new(count), test_new(count)};
  test_poison(o.c, count), test_poison(o.y, count);
  return o;
}

static void round_all(real *x, int64_t count) {
  for (int64_t i = 0; i < count; i++) x[i] = ch_bf16_value(ch_bf16_round(x[i]));
}

static ch_expert_gemm_args product(const problem *p, const real *a, const real *w) {
  return (ch_expert_gemm_args){.form = CH_NN,
                               .experts = p->s.experts,
                               .begin = p->s.begin,
                               .max_rows = p->s.begin[p->s.experts] + 5,
                               .n = p->s.n,
                               .k = p->s.k,
                               .a = a,
                               .w = (real *)(uintptr_t)w};
}

/* One op after the other. */
static void apart(ch_exec *x, const problem *p, const ch_expert_gemm_args *product, const real *pre, outputs *o) {
  int64_t count = p->s.begin[p->s.experts] * p->s.n;
  ch_expert_gemm_args g = *product;
  g.c = o->c;
  x->ops->expert_gemm(x, &g);
  ch_activate_args gelu = {.count = count, .x = p->backward ? pre : o->c, .y = o->y, .dy = o->c, .dx = o->c};
  if (ch_counting(x)) return;
  if (p->compute == CH_COMPUTE_BF16 && !p->backward) round_all(o->c, count);
  (p->backward ? x->ops->activate_backward : x->ops->activate)(x, &gelu);
  if (p->compute == CH_COMPUTE_BF16) round_all(o->c, count), round_all(o->y, count);
}

/* By one op, with floats. */
static void through(ch_exec *x, const problem *p, const ch_expert_gemm_args *product, const real *pre, outputs *o) {
  int64_t count = p->s.begin[p->s.experts] * p->s.n;
  ch_expert_gemm_args g = *product;
  g.c = o->c;
  if (p->backward) memcpy(o->y, pre, (size_t)count * sizeof *pre);
  ch_activate_args gelu = {.count = count, .x = p->backward ? p->in_place ? o->y : pre : o->c, .y = o->y};
  if (!p->backward && p->in_place) gelu.y = o->c;
  if (p->backward) gelu.dy = gelu.dx = o->c;
  g.activate = &gelu;
  x->ops->expert_gemm(x, &g);
  if (!p->backward && p->in_place && !ch_counting(x)) memcpy(o->y, o->c, (size_t)count * sizeof *o->y);
}

/* By one op, with rounded arrays. */
static void through_rounded(ch_exec *x, const problem *p, const ch_expert_gemm_args *product, const real *pre,
                            outputs *o) {
  int64_t count = p->s.begin[p->s.experts] * p->s.n;
  ch_expert_gemm_args g = *product;
  ch_bf16 *x16 = malloc((size_t)(3 * count + 1) * sizeof *x16), *y16 = p->in_place ? x16 : x16 + count;
  if (!x16) abort();
  memset(x16, 0xff, (size_t)(3 * count) * sizeof *x16); /* NaN */
  for (int64_t i = 0; i < count && p->backward; i++) x16[i] = ch_bf16_round(pre[i]);
  ch_activate_args gelu = {.count = count, .x16 = x16, .y16 = y16, .dx16 = p->backward ? x16 + 2 * count : NULL};
  g.activate = &gelu;
  x->ops->expert_gemm(x, &g);
  const ch_bf16 *c = p->backward ? gelu.dx16 : x16;
  for (int64_t i = 0; i < count && !ch_counting(x); i++) o->c[i] = ch_bf16_value(c[i]), o->y[i] = ch_bf16_value(y16[i]);
  free(x16);
}

static void check(const problem *p) {
  int64_t rows = p->s.begin[p->s.experts], count = rows * p->s.n, bytes = count * (int64_t)sizeof(real);
  real *a = test_new_normal(rows * p->s.k, 1), *w = test_new_normal(p->s.experts * p->s.n * p->s.k, 2);
  real *pre = test_new_normal(count, 3);
  int rounds = p->compute == CH_COMPUTE_BF16, gone = p->in_place && !p->backward; /* x is */
  if (rounds) round_all(pre, count);
  ch_expert_gemm_args g = product(p, a, w);
  outputs want = new_outputs(count);
  TEST_EXEC("cpu", p->compute, 1, x.batch_invariant = p->invariant, apart(&x, p, &g, pre, &want));
  for (int threads = 1; threads <= 3; threads += 2) {
    outputs got = new_outputs(count);
    TEST_EXEC("cpu", p->compute, threads, x.batch_invariant = p->invariant,
              (rounds ? through_rounded : through)(&x, p, &g, pre, &got));
    if (!gone) assert_memory_equal(got.c, want.c, (size_t)bytes);
    assert_memory_equal(got.y, want.y, (size_t)bytes);
    free(got.c), free(got.y);
  }
  free(want.c), free(want.y), free(a), free(w), free(pre);
}

static void all_of_them(void **state) {
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    test_use_isa(test_isas[isa]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      for (int which = 0; which < 16; which++)
        check(&(problem){sizes[i], (ch_compute)(which & 1), which >> 1 & 1, which >> 2 & 1, which >> 3});
  }
  unsetenv("CHOIR_ISA");
}

/* Checks a gate: C is u or dy, of floats in either compute type, and outputs stand in the places of inputs. */
static void check_gated(const problem *p, ch_activation activation) {
  int64_t rows = p->s.begin[p->s.experts], count = rows * p->s.n;
  size_t bytes = (size_t)count * sizeof(real);
  real *a = test_new_normal(rows * p->s.k, 1), *w = test_new_normal(p->s.experts * p->s.n * p->s.k, 2);
  real *gate = test_new_normal(count, 3), *up = test_new_normal(count, 4), *want[3], *got[3];
  ch_expert_gemm_args g = product(p, a, w);
  for (int i = 0; i < 3; i++) want[i] = test_new(count), got[i] = test_new(count);
  TEST_EXEC("cpu", p->compute, 1, {
    x.batch_invariant = p->invariant;
    g.c = want[1];
    x.ops->expert_gemm(&x, &g);
    ch_activate_args then = {.activation = activation, .count = count, .x = gate, .u = p->backward ? up : want[1]};
    then.y = want[0];
    if (p->backward) then.dy = then.dx = want[1], then.du = want[2];
    (p->backward ? x.ops->activate_backward : x.ops->activate)(&x, &then);
  });
  for (int threads = 1; threads <= 3; threads += 2) {
    memcpy(got[0], gate, bytes), memcpy(got[2], up, bytes);
    ch_activate_args then = {.activation = activation, .count = count, .x = got[0], .u = got[p->backward ? 2 : 1]};
    then.y = got[0];
    if (p->backward) then.dy = then.dx = got[1], then.du = got[2];
    g.c = got[1];
    g.activate = &then;
    TEST_EXEC("cpu", p->compute, threads, x.batch_invariant = p->invariant, x.ops->expert_gemm(&x, &g));
    g.activate = NULL;
    for (int i = 0; i < 2 + p->backward; i++) assert_memory_equal(got[i], want[i], bytes);
  }
  for (int i = 0; i < 3; i++) free(want[i]), free(got[i]);
  free(a), free(w), free(gate), free(up);
}

static void gates(void **state) {
  for (int isa = 0; isa < TEST_ISAS; isa++) {
    test_use_isa(test_isas[isa]);
    for (size_t i = 1; i < sizeof sizes / sizeof *sizes; i += 2) /* uneven and few rows */
      for (int which = 0; which < 16; which++)
        check_gated(&(problem){sizes[i], (ch_compute)(which & 1), which >> 1 & 1, which >> 2 & 1, 1},
                    which & 8 ? CH_SWIGLU : CH_GEGLU);
  }
  unsetenv("CHOIR_ISA");
}

/* The reference, in floats: the product of the reference, through its GELU. */
static void reference(void **state) {
  for (int backward = 0; backward < 2; backward++) {
    problem p = {.s = sizes[1], .compute = CH_COMPUTE_FP32, .backward = backward};
    int64_t rows = p.s.begin[p.s.experts], count = rows * p.s.n;
    real *a = test_new_normal(rows * p.s.k, 1), *w = test_new_normal(p.s.experts * p.s.n * p.s.k, 2);
    real *pre = test_new_normal(count, 3);
    ch_expert_gemm_args g = product(&p, a, w);
    outputs want = new_outputs(count), got = new_outputs(count), fast = new_outputs(count);
    TEST_EXEC("reference", CH_COMPUTE_FP32, 2, apart(&x, &p, &g, pre, &want));
    TEST_EXEC("reference", CH_COMPUTE_FP32, 2, through(&x, &p, &g, pre, &got));
    TEST_EXEC("cpu", CH_COMPUTE_FP32, 2, through(&x, &p, &g, pre, &fast));
    assert_memory_equal(got.c, want.c, (size_t)count * sizeof(real));
    assert_memory_equal(got.y, want.y, (size_t)count * sizeof(real));
    test_close(fast.c, want.c, count, 1e-5);
    test_close(fast.y, want.y, count, 1e-5);
    outputs *each[] = {&want, &got, &fast};
    for (int i = 0; i < 3; i++) free(each[i]->c), free(each[i]->y);
    free(a), free(w), free(pre);
  }
}

TEST_MAIN(NULL, NULL, all_of_them, gates, reference)
