/* Bench case `moe`: one layer forward and backward, and the time of its parts. */
#include "bench/moe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/machine.h"
#include "moe/route_stats.h"

enum { PRODUCTS, ROUTER, DISPATCH, COMBINE, ROUTING, PARTS };

/* An executor that times its ops: a wrapper around the table of ops, so that all code that runs on it is measured
 * without changes. */
typedef struct {
  ch_exec x;           /* must be first: an op gets a pointer to x and finds the other members after it */
  const ch_ops *inner; /* original x.ops; restored so that ch_exec_free frees the right table */
  ch_ops wrapped;
  double begin, seconds[PARTS];
} timed_exec;

#define TIMED(op, args_type, part)                         \
  static void timed_##op(ch_exec *x, const args_type *a) { \
    timed_exec *t = (timed_exec *)x;                       \
    x->memory->synchronise();                              \
    double begin = ch_machine_seconds();                   \
    t->inner->op(x, a);                                    \
    x->memory->synchronise();                              \
    t->seconds[part] += ch_machine_seconds() - begin;      \
  }
TIMED(expert_gemm, ch_expert_gemm_args, PRODUCTS)
TIMED(gemm, ch_gemm_args, ROUTER)
TIMED(gather, ch_gather_args, DISPATCH)
TIMED(combine, ch_combine_args, COMBINE)
TIMED(combine_backward, ch_combine_args, COMBINE)

static void wrap(timed_exec *t) {
  t->inner = t->x.ops;
  t->wrapped = *t->inner;
  t->wrapped.expert_gemm = timed_expert_gemm;
  t->wrapped.gemm = timed_gemm;
  t->wrapped.gather = timed_gather;
  t->wrapped.combine = timed_combine;
  t->wrapped.combine_backward = timed_combine_backward;
  t->x.ops = &t->wrapped;
}

/* Reports the parts of one repetition and the share of time outside products; time outside of ops counts as routing. */
static void report_parts(const timed_exec *t, ch_bench_result *result) {
  static const char *const names[PARTS] = {"expert products, GELU", "router products", "dispatch", "combine",
                                           "routing"};
  double total = ch_machine_seconds() - t->begin, in_ops = 0;
  int runs = result->repetitions + 1; /* the untimed first repetition is included */
  for (int i = 0; i < PARTS; i++) in_ops += t->seconds[i];
  for (int i = 0; i < PARTS; i++) result->part[i] = (ch_bench_part){names[i], t->seconds[i] / runs};
  result->part[ROUTING].seconds += (total - in_ops) / runs;
  result->parts = PARTS;
  result->during_products = 1 - (t->seconds[PRODUCTS] + t->seconds[ROUTER]) / total;
}

typedef struct {
  timed_exec timed;
  ch_router_spec options;
  ch_moe_args args;
  ch_moe_saved saved;
} moe_case;

/* Makes loads uneven for token choice: the logits of expert i = 1 ... e are lowered by skew log i, which for
 * otherwise equal tokens gives Zipf's law with that exponent. Column 0 of x is 1 for this purpose. */
static void skew_loads(ch_bench *b, const ch_route_args *r, double skew) {
  real one = 1, *row = ch_bench_host(b, (size_t)r->e * sizeof *row);
  if (b->code || skew == 0) return;
  for (int i = 0; i < r->e; i++) row[i] = (real)(-skew * log(i + 1.0));
  b->memory->upload((real CH_DEV *)r->weight, row, (size_t)r->e * sizeof *row);
  for (int64_t t = 0; t < r->n; t++) b->memory->upload((real CH_DEV *)r->x + t * r->d, &one, sizeof one);
}

static int make_args(ch_bench *b, moe_case *c) {
  const ch_router *router = ch_router_find(b->word[0]);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  int n = (int)b->size[0], d = (int)b->size[1], h = (int)b->size[2], e = (int)b->size[3];
  int64_t in = (int64_t)n * d, weights = (int64_t)e * d * h;
  c->options = ch_router_default(router);
  CH_TRY(ch_bench_capacity(b, 4, &c->options));
  CH_TRY(router->check(&c->options, n, e, 0));
  if (b->value[5] != 0 && !ch_router_learned(router))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "bench 'moe': skew has no effect with router '%s', which has no scores: leave it out",
                    router->name);
  c->args = (ch_moe_args){.route = {.d = d, .training = 1}, .h = h, .grad_chunks = 1, .keep = 1};
  ch_route_args_set(&c->args.route, router, &c->options, n, e, 0);
  ch_moe_args *a = &c->args;
  a->route.x = ch_bench_drawn(b, in, 1);
  a->dout = ch_bench_drawn(b, in, 1);
  a->route.weight = ch_bench_drawn(b, (int64_t)d * e, 1 / sqrt(d));
  skew_loads(b, &a->route, b->value[5]);
  a->weights.w1 = ch_bench_drawn(b, weights, 1 / sqrt(d));
  a->weights.w2 = ch_bench_drawn(b, weights, 1 / sqrt(h));
  ch_bench_moe_results(b, a);
  int32_t *token = ch_bench_host(b, (size_t)n * sizeof *token);
  for (int t = 0; token && t < n; t++) token[t] = (int32_t)((int64_t)t * 7919 % 32000);
  a->route.tokens.id = ch_bench_put(b, token, (size_t)n * sizeof *token);
  return b->code;
}

/* Makes rounded copies of the experts' weights, which the optimizer writes in training. */
static int round_weights(ch_bench *b, ch_moe_args *a, ch_exec *x) {
  int64_t weights = (int64_t)a->route.e * a->route.d * a->h;
  if (b->compute != CH_COMPUTE_BF16) return CHOIR_OK;
  ch_bf16 CH_DEV *w1 = (ch_bf16 CH_DEV *)ch_bench_ints(b, (weights + 1) / 2), /* two in one */
      *w2 = (ch_bf16 CH_DEV *)ch_bench_ints(b, (weights + 1) / 2);
  CH_TRY(b->code);
  x->ops->round_bf16(x, &(ch_round_args){.count = weights, .x = a->weights.w1, .y = w1});
  x->ops->round_bf16(x, &(ch_round_args){.count = weights, .x = a->weights.w2, .y = w2});
  a->weights.w1_16 = w1;
  a->weights.w2_16 = w2;
  return CHOIR_OK;
}

static void repeat(void *context) {
  moe_case *c = context;
  ch_bench_moe_layer(&c->timed.x, &c->args, &c->saved);
}

static int measure_moe(ch_bench *b, moe_case *c) {
  repeat(c);
  CH_TRY(ch_exec_commit(&c->timed.x));
  CH_TRY(round_weights(b, &c->args, &c->timed.x));
  repeat(c); /* so that the parts do not include the untimed first repetition */
  memset(c->timed.seconds, 0, sizeof c->timed.seconds);
  c->timed.begin = ch_machine_seconds();
  ch_bench_time(b, repeat, c);
  report_parts(&c->timed, b->result);
  const ch_moe_args *a = &c->args;
  choir_route_stats stats; /* statistics of the last repetition */
  CH_TRY(ch_route_stats_make(b->memory, a->route.n, &c->saved.routing, &stats));
  ch_bench_loads(b, &c->options, &stats, 1);
  double flops = 12.0 * (double)stats.assignments * a->route.d * a->h;
  choir_route_stats_clear(&stats);
  if (ch_router_learned(a->route.router)) flops += 6.0 * a->route.n * a->route.d * a->route.e;
  ch_bench_rates(b, flops, 0);
  b->result->tokens = a->route.n;
  snprintf(b->result->note, sizeof b->result->note,
           "forward and backward; error of output and gradients at %d tokens%s", CH_BENCH_SAMPLES,
           b->compute == CH_COMPUTE_BF16 ? "; weights rounded to bf16 before, as the optimizer does" : "");
  return ch_bench_moe_sample(b, &c->timed.x, &c->args, &c->saved);
}

int ch_bench_moe(ch_bench *b) {
  moe_case c = {0};
  if (b->value[0] < CH_BENCH_SAMPLES)
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench 'moe': n is %g; it must be at least %d", b->value[0],
                    CH_BENCH_SAMPLES);
  CH_TRY(make_args(b, &c));
  CH_TRY(ch_exec_init(&c.timed.x, b->backend->name, b->compute, 0, b->options->threads));
  wrap(&c.timed);
  int code = measure_moe(b, &c);
  c.timed.x.ops = c.timed.inner;
  ch_exec_free(&c.timed.x);
  return code;
}
