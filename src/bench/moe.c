/* Bench case `moe`: one layer forward and backward, where its time goes, and its error at sampled tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/machine.h"
#include "bench/timed.h"
#include "moe/layer.h"

enum { SAMPLES = 12 };

typedef struct {
  ch_timed timed;
  choir_router_options options;
  ch_moe_args args;
  ch_moe_saved saved;
} moe_case;

static int count_of(const ch_bench *b, int key) { return (int)b->value[key]; }

static int make_args(ch_bench *b, moe_case *c) {
  int64_t s[4];
  CH_TRY(ch_bench_sizes(b, 4, s));
  const ch_router *router = ch_router_find(b->word[0]);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  int n = count_of(b, 0), d = count_of(b, 1), h = count_of(b, 2), e = count_of(b, 3);
  c->options = router->defaults;
  CH_TRY(ch_bench_capacity(b, 4, &c->options));
  CH_TRY(router->check(&c->options, n, e, 0));
  c->args = (ch_moe_args){.options = &c->options,
                          .router = router,
                          .n = n,
                          .d = d,
                          .h = h,
                          .e = e,
                          .training = 1,
                          .keep = 1,
                          .aux_scale = (real)c->options.aux_loss_weight};
  int64_t in = (int64_t)n * d, weights = (int64_t)e * d * h;
  real *x, *dout, *wg, *w1, *w2;
  void *token;
  CH_TRY(ch_bench_array(b, in, 1, &x));
  CH_TRY(ch_bench_array(b, in, 1, &dout));
  CH_TRY(ch_bench_array(b, (int64_t)d * e, 1 / sqrt(d), &wg));
  CH_TRY(ch_bench_array(b, weights, 1 / sqrt(d), &w1));
  CH_TRY(ch_bench_array(b, weights, 1 / sqrt(h), &w2));
  CH_TRY(ch_bench_array(b, in, 0, &c->args.out));
  CH_TRY(ch_bench_array(b, in, 0, &c->args.dx));
  CH_TRY(ch_bench_array(b, (int64_t)d * e, 0, &c->args.gradients.router));
  CH_TRY(ch_bench_array(b, weights, 0, &c->args.gradients.w1));
  CH_TRY(ch_bench_array(b, weights, 0, &c->args.gradients.w2));
  CH_TRY(ch_bench_bytes(b, (size_t)n * sizeof(int32_t), &token));
  for (int t = 0; t < n; t++) ((int32_t *)token)[t] = (int32_t)((int64_t)t * 7919 % 32000);
  c->args.x = x;
  c->args.dout = dout;
  c->args.token = token;
  c->args.weights = (ch_moe_weights){.router = wg, .w1 = w1, .w2 = w2};
  return CHOIR_OK;
}

/* Rounded copies of the experts' weights, which in training the optimizer writes. */
static int round_weights(ch_bench *b, moe_case *c, ch_exec *x) {
  int64_t weights = (int64_t)c->args.e * c->args.d * c->args.h;
  void *memory[2];
  const real *from[2] = {c->args.weights.w1, c->args.weights.w2};
  if (b->compute != CH_COMPUTE_BF16) return CHOIR_OK;
  for (int i = 0; i < 2; i++) {
    CH_TRY(ch_bench_bytes(b, (size_t)weights * sizeof(ch_bf16), &memory[i]));
    x->ops->round_bf16(x, &(ch_round_args){.count = weights, .x = from[i], .y = memory[i]});
  }
  c->args.weights.w1_16 = memory[0];
  c->args.weights.w2_16 = memory[1];
  return CHOIR_OK;
}

static void layer(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  ch_moe_forward(x, a, saved);
  ch_moe_backward(x, a, saved);
  ch_arena_release(&x->tape, 0);
}

static void repeat(void *context) {
  moe_case *c = context;
  layer(&c->timed.x, &c->args, &c->saved);
}

/* --- the error: the layer again at a few tokens, on the reference, with the experts that they met --- */

/* A router that hands out part of a routing that was made before. `options` comes first: the layer passes its address
 * on. */
typedef struct {
  choir_router_options options;
  const ch_record *full;
  int token[SAMPLES]; /* ascending, numbers in the full routing */
} replay;

static int replay_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  const replay *p = (const replay *)o;
  int slots = 0;
  (void)e, (void)sequence_length;
  for (int t = 0; t < n; t++) slots += p->full->token_begin[p->token[t] + 1] - p->full->token_begin[p->token[t]];
  return slots;
}

static void replay_route(ch_exec *x, const ch_route_args *a) {
  const replay *p = (const replay *)a->options;
  const ch_record *full = p->full;
  ch_record *r = a->record;
  if (ch_counting(x)) return;
  int slot = 0;
  for (int i = 0; i < a->e; i++) {
    r->expert_begin[i] = slot;
    for (int s = full->expert_begin[i]; s < full->expert_begin[i + 1]; s++)
      for (int t = 0; t < a->n; t++)
        if (p->token[t] == full->slot_token[s]) {
          r->slot_token[slot] = t;
          r->slot_gate[slot++] = full->slot_gate[s];
        }
  }
  r->expert_begin[a->e] = r->slots = slot;
}

/* Gradients of experts: those that hold a sampled token as the reference has them, all others 0. */
static double weight_error(const moe_case *c, const ch_record *sampled, const real *got, const real *want) {
  int64_t size = (int64_t)c->args.d * c->args.h;
  double error = 0;
  for (int i = 0; i < c->args.e; i++) {
    const real *mine = got + i * size;
    int met = sampled->expert_begin[i + 1] > sampled->expert_begin[i], zero = 1;
    for (int64_t j = 0; j < size && !met; j++) zero &= mine[j] == 0;
    error = ch_bench_worse(error, met ? ch_bench_error(mine, want + i * size, size) : zero ? 0 : 1);
  }
  return error;
}

/* Arrays of the small layer: rows of the sampled tokens, gradients of its own, and what the fast one has for them. */
static int make_sample(ch_bench *b, const moe_case *c, const replay *p, ch_moe_args *small, real *got[2]) {
  int64_t d = c->args.d, weights = (int64_t)c->args.e * d * c->args.h;
  real *x, *dout;
  *small = c->args;
  small->n = SAMPLES;
  small->options = &p->options;
  CH_TRY(ch_bench_array(b, SAMPLES * d, 0, &x));
  CH_TRY(ch_bench_array(b, SAMPLES * d, 0, &dout));
  CH_TRY(ch_bench_array(b, SAMPLES * d, 0, &small->out));
  CH_TRY(ch_bench_array(b, SAMPLES * d, 0, &small->dx));
  CH_TRY(ch_bench_array(b, d * c->args.e, 0, &small->gradients.router));
  CH_TRY(ch_bench_array(b, weights, 0, &small->gradients.w1));
  CH_TRY(ch_bench_array(b, weights, 0, &small->gradients.w2));
  for (int i = 0; i < 2; i++) CH_TRY(ch_bench_array(b, SAMPLES * d, 0, &got[i]));
  for (int t = 0; t < SAMPLES; t++) {
    memcpy(x + t * d, c->args.x + p->token[t] * d, (size_t)d * sizeof *x);
    memcpy(dout + t * d, c->args.dout + p->token[t] * d, (size_t)d * sizeof *x);
    memcpy(got[0] + t * d, c->args.out + p->token[t] * d, (size_t)d * sizeof *x);
    memcpy(got[1] + t * d, c->args.dx + p->token[t] * d, (size_t)d * sizeof *x);
  }
  small->x = x;
  small->dout = dout;
  return CHOIR_OK;
}

/* The whole fast layer once more with a cotangent at the sampled tokens alone, so that all its gradients are theirs. */
static int run_sparse(ch_bench *b, moe_case *c, const int *token) {
  const ch_moe_args *a = &c->args;
  real *dout;
  CH_TRY(ch_bench_array(b, (int64_t)a->n * a->d, 0, &dout));
  for (int t = 0; t < SAMPLES; t++)
    memcpy(dout + (int64_t)token[t] * a->d, a->dout + (int64_t)token[t] * a->d, (size_t)a->d * sizeof *dout);
  c->args.dout = dout;
  c->args.aux_scale = 0; /* it is about all tokens */
  repeat(c);
  return CHOIR_OK;
}

static int sample_error(ch_bench *b, moe_case *c) {
  const ch_moe_args *a = &c->args;
  replay p = {.full = &c->saved.record}; /* the tape keeps it until the next forward */
  ch_router router = *a->router;
  ch_moe_args small;
  ch_moe_saved saved;
  ch_exec x;
  real *got[2];
  p.options = c->options;
  p.options.jitter = c->options.jitter = 0;
  for (int t = 0; t < SAMPLES; t++) p.token[t] = (int)((int64_t)t * (a->n - 1) / (SAMPLES - 1));
  CH_TRY(run_sparse(b, c, p.token));
  CH_TRY(make_sample(b, c, &p, &small, got));
  router.max_slots = replay_max_slots;
  router.route = replay_route;
  small.router = &router;
  CH_TRY(ch_exec_init(&x, "reference", CH_COMPUTE_FP32, 0, b->options->threads));
  layer(&x, &small, &saved);
  int code = ch_exec_commit(&x);
  if (!code) {
    layer(&x, &small, &saved);
    int64_t rows = (int64_t)SAMPLES * a->d;
    double error = ch_bench_worse(ch_bench_error(got[0], small.out, rows), ch_bench_error(got[1], small.dx, rows));
    error = ch_bench_worse(error, ch_bench_error(a->gradients.router, small.gradients.router, (int64_t)a->d * a->e));
    error = ch_bench_worse(error, weight_error(c, &saved.record, a->gradients.w1, small.gradients.w1));
    b->result->error = ch_bench_worse(error, weight_error(c, &saved.record, a->gradients.w2, small.gradients.w2));
  }
  ch_exec_free(&x);
  return code;
}

/* What the routing of the last repetition left undone, and how unevenly. */
static int add_loads(ch_bench *b, const moe_case *c) {
  choir_route_stats stats;
  CH_TRY(ch_route_stats_make(&c->saved.record, &c->saved.counts, NULL, &stats));
  ch_bench_loads(b, &c->options, &stats, 1);
  choir_route_stats_free(&stats);
  return CHOIR_OK;
}

static int measure(ch_bench *b, moe_case *c) {
  repeat(c);
  CH_TRY(ch_exec_commit(&c->timed.x));
  CH_TRY(round_weights(b, c, &c->timed.x));
  repeat(c); /* so that the untimed first repetition does not enter the parts */
  ch_timed_reset(&c->timed);
  ch_bench_time(b, repeat, c);
  ch_timed_report(&c->timed, b->result);
  const ch_moe_args *a = &c->args;
  double flops = 12.0 * c->saved.record.slots * a->d * a->h;
  if (ch_router_learned(a->router)) flops += 6.0 * a->n * a->d * a->e;
  ch_bench_rates(b, flops, 0);
  b->result->tokens = a->n;
  CH_TRY(add_loads(b, c));
  snprintf(b->result->note, sizeof b->result->note,
           "forward and backward; error of output and gradients at %d tokens%s", SAMPLES,
           b->compute == CH_COMPUTE_BF16 ? "; weights rounded to bf16 before, as the optimizer does" : "");
  return sample_error(b, c);
}

int ch_bench_moe(ch_bench *b) {
  moe_case c = {0};
  if (b->value[0] < SAMPLES)
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench 'moe': n is %g; it must be at least %d", b->value[0], SAMPLES);
  CH_TRY(make_args(b, &c));
  CH_TRY(ch_exec_init(&c.timed.x, "cpu", b->compute, 0, b->options->threads));
  ch_timed_start(&c.timed);
  int code = measure(b, &c);
  ch_timed_stop(&c.timed);
  ch_exec_free(&c.timed.x);
  return code;
}

int ch_bench_layer_seconds(const ch_bench *b, const ch_bench_layer *l, double *seconds) {
  choir_bench_options once = *b->options;
  choir_bench_result layer;
  char problem[CHOIR_BENCH_TEXT];
  once.repetitions = 2;
  once.seconds = 1e-3;
  snprintf(problem, sizeof problem, "moe n=%.0f d=%.0f h=%.0f e=%.0f c=%.12g compute=%s", l->n, l->d, l->h, l->e, l->c,
           ch_compute_names[b->compute]);
  CH_TRY(choir_bench(problem, &once, &layer));
  *seconds = layer.min_seconds;
  return CHOIR_OK;
}
