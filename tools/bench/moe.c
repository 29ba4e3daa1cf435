/* Bench case `moe`: one layer forward and backward, where its time goes, and its error at sampled tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/machine.h"
#include "bench/timed.h"
#include "moe/layer.h"
#include "moe/route_stats.h"

enum { SAMPLES = 12 };

typedef struct {
  ch_timed timed;
  choir_router_options options;
  ch_moe_args args;
  ch_moe_saved saved;
  int64_t slots; /* of the last repetition */
} moe_case;

/* Arrays for what the layer writes. */
static void make_results(ch_bench *b, ch_moe_args *a) {
  int64_t d = a->route.d, e = a->route.e, rows = a->route.n * d;
  a->out = ch_bench_zeros(b, rows);
  a->dx = ch_bench_zeros(b, rows);
  a->gradients = (ch_moe_gradients){.router = ch_bench_zeros(b, d * e)};
  a->gradients.w1 = ch_bench_zeros(b, e * d * a->h);
  a->gradients.w2 = ch_bench_zeros(b, e * d * a->h);
}

static int make_args(ch_bench *b, moe_case *c) {
  const ch_router *router = ch_router_find(b->word[0]);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  int n = (int)b->size[0], d = (int)b->size[1], h = (int)b->size[2], e = (int)b->size[3];
  int64_t in = (int64_t)n * d, weights = (int64_t)e * d * h;
  c->options = router->defaults;
  CH_TRY(ch_bench_capacity(b, 4, &c->options));
  CH_TRY(router->check(&c->options, n, e, 0));
  c->args = (ch_moe_args){.route = {.router = router,
                                    .options = &c->options,
                                    .n = n,
                                    .e = e,
                                    .d = d,
                                    .training = 1,
                                    .aux_scale = (real)c->options.aux_loss_weight},
                          .h = h,
                          .shards = 1,
                          .keep = 1};
  ch_moe_args *a = &c->args;
  a->route.x = ch_bench_drawn(b, in, 1);
  a->dout = ch_bench_drawn(b, in, 1);
  a->route.weight = ch_bench_drawn(b, (int64_t)d * e, 1 / sqrt(d));
  a->weights.w1 = ch_bench_drawn(b, weights, 1 / sqrt(d));
  a->weights.w2 = ch_bench_drawn(b, weights, 1 / sqrt(h));
  make_results(b, a);
  int32_t *token = ch_bench_host(b, (size_t)n * sizeof *token);
  for (int t = 0; token && t < n; t++) token[t] = (int32_t)((int64_t)t * 7919 % 32000);
  a->route.token = ch_bench_put(b, token, (size_t)n * sizeof *token);
  return b->code;
}

/* Rounded copies of the experts' weights, which in training the optimizer writes. */
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

/* A router that hands out part of a routing that was made before; both are on the host. `options` comes first: the
 * layer passes its address on. */
typedef struct {
  choir_router_options options;
  const void *expert_begin, *slot_token, *slot_gate, *token_begin; /* of the full routing */
  int token[SAMPLES];                                              /* ascending, numbers in the full routing */
} replay;

static int replay_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  const replay *p = (const replay *)o;
  const int *begin = p->token_begin;
  int slots = 0;
  (void)e, (void)sequence_length;
  for (int t = 0; t < n; t++) slots += begin[p->token[t] + 1] - begin[p->token[t]];
  return slots;
}

static void replay_route(ch_exec *x, const ch_route_args *a) {
  const replay *p = (const replay *)a->options;
  const int *expert_begin = p->expert_begin, *slot_token = p->slot_token;
  const real *slot_gate = p->slot_gate;
  int *begin = CH_AS_HOST(int, a->record->expert_begin), *token = CH_AS_HOST(int, a->record->slot_token), slot = 0;
  real *gate = CH_AS_HOST(real, a->record->slot_gate);
  if (ch_counting(x)) return;
  for (int i = 0; i < a->e; i++) {
    begin[i] = slot;
    for (int s = expert_begin[i]; s < expert_begin[i + 1]; s++)
      for (int t = 0; t < a->n; t++)
        if (p->token[t] == slot_token[s]) {
          token[slot] = t;
          gate[slot++] = slot_gate[s];
        }
  }
  begin[a->e] = slot;
  ch_router_demand_is_load(x, a);
}

/* Gradients of experts: those that hold a sampled token as the reference has them, all others 0. The larger of that and
 * *error goes to *error. */
static void compare_weights(ch_bench *b, const ch_moe_args *a, const int *begin, const real CH_DEV *got,
                            const real CH_DEV *wanted, double *error) {
  int64_t size = (int64_t)a->route.d * a->h;
  const real *want = CH_AS_HOST(const real, wanted);
  const real *mine = ch_bench_read(b, got, (size_t)a->route.e * (size_t)size * sizeof *want);
  for (int i = 0; mine && i < a->route.e; i++, mine += size, want += size) {
    int met = begin[i + 1] > begin[i], zero = 1;
    for (int64_t j = 0; j < size && !met; j++) zero &= mine[j] == 0;
    *error = ch_bench_worse(*error, met ? ch_bench_error(mine, want, size) : zero ? 0 : 1);
  }
}

/* An array of the layer where the reference can read it. */
static const real CH_DEV *copy(ch_bench *b, const real CH_DEV *from, int64_t count) {
  return CH_AS_DEV(const real, ch_bench_read(b, from, (size_t)count * sizeof(real)));
}

/* Arrays of the small layer, on the host: rows of the sampled tokens, gradients of its own, and what the fast one has
 * for them. */
static int make_sample(ch_bench *b, const ch_moe_args *a, const replay *p, ch_moe_args *small, real CH_DEV *got[2]) {
  const ch_memory *memory = b->backend->memory;
  int64_t d = a->route.d, weights = (int64_t)a->route.e * d * a->h;
  *small = *a;
  b->memory = &ch_memory_host;
  small->route.weight = copy(b, a->route.weight, d * a->route.e);
  small->weights = (ch_moe_weights){.w1 = copy(b, a->weights.w1, weights), .w2 = copy(b, a->weights.w2, weights)};
  small->route.n = SAMPLES;
  small->route.options = &p->options;
  make_results(b, small);
  real CH_DEV *x = ch_bench_zeros(b, SAMPLES * d), *dout = ch_bench_zeros(b, SAMPLES * d);
  for (int i = 0; i < 2; i++) got[i] = ch_bench_zeros(b, SAMPLES * d);
  CH_TRY(b->code);
  for (int t = 0; t < SAMPLES; t++) {
    const real CH_DEV *from[] = {a->route.x, a->dout, a->out, a->dx};
    real CH_DEV *to[] = {x, dout, got[0], got[1]};
    for (int i = 0; i < 4; i++)
      memory->get(CH_AS_HOST(real, to[i] + t * d), from[i] + p->token[t] * d, (size_t)d * sizeof *x);
  }
  small->route.x = x;
  small->dout = dout;
  return CHOIR_OK;
}

/* The whole fast layer once more with a cotangent at the sampled tokens alone, so that all its gradients are theirs. */
static int run_sparse(ch_bench *b, moe_case *c, const int *token) {
  const ch_moe_args *a = &c->args;
  real CH_DEV *dout = ch_bench_zeros(b, (int64_t)a->route.n * a->route.d);
  CH_TRY(b->code);
  for (int t = 0; t < SAMPLES; t++) {
    int64_t row = (int64_t)token[t] * a->route.d;
    b->memory->copy(dout + row, a->dout + row, (size_t)a->route.d * sizeof *dout);
  }
  c->args.dout = dout;
  c->args.route.aux_scale = 0; /* it is about all tokens */
  repeat(c);
  return CHOIR_OK;
}

/* The tape keeps the routing until the next forward. */
static int read_routing(ch_bench *b, const ch_record *r, replay *p) {
  p->expert_begin = ch_bench_read(b, r->expert_begin, ((size_t)r->experts + 1) * sizeof(int));
  p->token_begin = ch_bench_read(b, r->token_begin, ((size_t)r->tokens + 1) * sizeof(int));
  p->slot_token = ch_bench_read(b, r->slot_token, (size_t)r->max_slots * sizeof(int));
  p->slot_gate = ch_bench_read(b, r->slot_gate, (size_t)r->max_slots * sizeof(real));
  return b->code;
}

static int compare(ch_bench *b, const ch_moe_args *a, const ch_moe_args *small, const ch_record *sampled,
                   real CH_DEV *const got[2]) {
  const ch_moe_gradients *mine = &a->gradients, *want = &small->gradients;
  const real CH_DEV *of_tokens[2] = {small->out, small->dx};
  const int *begin = CH_AS_HOST(const int, sampled->expert_begin);
  double *error = &b->result->error;
  for (int i = 0; i < 2; i++)
    *error = ch_bench_worse(*error, ch_bench_error(CH_AS_HOST(const real, got[i]), CH_AS_HOST(const real, of_tokens[i]),
                                                   (int64_t)SAMPLES * a->route.d));
  ch_bench_compare(b, mine->router, want->router, (int64_t)a->route.d * a->route.e, error);
  compare_weights(b, a, begin, mine->w1, want->w1, error);
  compare_weights(b, a, begin, mine->w2, want->w2, error);
  return b->code;
}

static int sample_error(ch_bench *b, moe_case *c) {
  const ch_moe_args *a = &c->args;
  replay p = {0};
  ch_router router = *a->route.router;
  ch_moe_args small;
  ch_moe_saved saved;
  ch_exec x;
  real CH_DEV *got[2];
  p.options = c->options;
  p.options.jitter = c->options.jitter = 0;
  for (int t = 0; t < SAMPLES; t++) p.token[t] = (int)((int64_t)t * (a->route.n - 1) / (SAMPLES - 1));
  CH_TRY(run_sparse(b, c, p.token));
  CH_TRY(read_routing(b, &c->saved.routing.record, &p));
  CH_TRY(make_sample(b, a, &p, &small, got));
  router.max_slots = replay_max_slots;
  router.route = replay_route;
  router.on_host = 0;
  small.route.router = &router;
  CH_TRY(ch_exec_init(&x, "reference", CH_COMPUTE_FP32, 0, b->options->threads));
  layer(&x, &small, &saved);
  int code = ch_exec_commit(&x);
  if (!code) {
    layer(&x, &small, &saved);
    code = compare(b, a, &small, &saved.routing.record, got);
  }
  ch_exec_free(&x);
  return code;
}

/* Reports what the routing of the last repetition left undone, and how unevenly. */
static int add_loads(ch_bench *b, moe_case *c) {
  choir_route_stats stats;
  CH_TRY(ch_route_stats_make(b->memory, c->args.route.n, &c->saved.routing, &stats));
  c->slots = stats.assignments;
  ch_bench_loads(b, &c->options, &stats, 1);
  choir_route_stats_free(&stats);
  return CHOIR_OK;
}

static int measure(ch_bench *b, moe_case *c) {
  repeat(c);
  CH_TRY(ch_exec_commit(&c->timed.x));
  CH_TRY(round_weights(b, &c->args, &c->timed.x));
  repeat(c); /* so that the untimed first repetition does not enter the parts */
  ch_timed_reset(&c->timed);
  ch_bench_time(b, repeat, c);
  ch_timed_report(&c->timed, b->result);
  const ch_moe_args *a = &c->args;
  CH_TRY(add_loads(b, c));
  double flops = 12.0 * (double)c->slots * a->route.d * a->h;
  if (ch_router_learned(a->route.router)) flops += 6.0 * a->route.n * a->route.d * a->route.e;
  ch_bench_rates(b, flops, 0);
  b->result->tokens = a->route.n;
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
  CH_TRY(ch_exec_init(&c.timed.x, b->backend->name, b->compute, 0, b->options->threads));
  ch_timed_start(&c.timed);
  int code = measure(b, &c);
  ch_timed_stop(&c.timed);
  ch_exec_free(&c.timed.x);
  return code;
}

int ch_bench_layer_seconds(const ch_bench *b, double n, double d, double h, double e, double c, double *seconds) {
  ch_bench_options once = *b->options;
  ch_bench_result layer;
  char problem[CH_BENCH_TEXT];
  once.repetitions = 2;
  once.seconds = 1e-3;
  once.backend = b->backend->name;
  ch_format(problem, sizeof problem, "moe n=%.0f d=%.0f h=%.0f e=%.0f c=%.12g compute=%s", n, d, h, e, c,
            ch_compute_names[b->compute]);
  CH_TRY(ch_bench_run(problem, &once, &layer));
  *seconds = layer.min_seconds;
  return CHOIR_OK;
}
