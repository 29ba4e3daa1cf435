/* The layer of bench case `moe`, and its error: the reference backend computes the layer again for a few tokens,
 * with their experts. */
#include <string.h>

#include "base/error.h"
#include "bench/moe.h"

void ch_bench_moe_results(ch_bench *b, ch_moe_args *a) {
  int64_t d = a->route.d, e = a->route.e, rows = a->route.n * d;
  a->out = ch_bench_zeros(b, rows);
  a->dx = ch_bench_zeros(b, rows);
  a->gradients = (ch_moe_gradients){.router = ch_bench_zeros(b, d * e)};
  a->gradients.w1 = ch_bench_zeros(b, e * d * a->h);
  a->gradients.w2 = ch_bench_zeros(b, e * d * a->h);
}

void ch_bench_moe_layer(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved) {
  ch_moe_forward(x, a, saved);
  ch_moe_backward(x, a, saved);
  ch_arena_release(&x->tape, 0);
}

/* A router that returns part of an earlier routing; both are on the host. `options` is the first member, because the
 * layer passes its address to the router. */
typedef struct {
  ch_router_spec options;
  const void *expert_begin, *slot_token, *slot_gate, *token_begin; /* arrays of the full routing */
  int token[CH_BENCH_SAMPLES];                                     /* ascending indices in the full routing */
} replay;

static int replay_max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
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
  int *begin = CH_AS_HOST(int, a->routing->record.expert_begin),
      *token = CH_AS_HOST(int, a->routing->record.slot_token), slot = 0;
  real *gate = CH_AS_HOST(real, a->routing->record.slot_gate);
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

/* Compares experts' gradients with the reference, or with 0 for an expert without sampled tokens. Raises *error to the
 * largest difference. */
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

/* A copy of one of the layer's arrays for the reference backend. */
static const real CH_DEV *copy_array(ch_bench *b, const real CH_DEV *from, int64_t count) {
  return CH_AS_DEV(const real, ch_bench_read(b, from, (size_t)count * sizeof(real)));
}

/* Allocates the small layer's arrays on the host: rows of the sampled tokens, gradients, and the measured results
 * for these rows. */
static int make_sample(ch_bench *b, const ch_moe_args *a, const replay *p, ch_moe_args *small, real CH_DEV *got[2]) {
  const ch_memory *memory = b->backend->memory;
  int64_t d = a->route.d, weights = (int64_t)a->route.e * d * a->h;
  *small = *a;
  b->memory = &ch_memory_host;
  small->route.weight = copy_array(b, a->route.weight, d * a->route.e);
  small->weights =
      (ch_moe_weights){.w1 = copy_array(b, a->weights.w1, weights), .w2 = copy_array(b, a->weights.w2, weights)};
  small->route.n = CH_BENCH_SAMPLES;
  ch_bench_moe_results(b, small);
  real CH_DEV *x = ch_bench_zeros(b, CH_BENCH_SAMPLES * d), *dout = ch_bench_zeros(b, CH_BENCH_SAMPLES * d);
  for (int i = 0; i < 2; i++) got[i] = ch_bench_zeros(b, CH_BENCH_SAMPLES * d);
  CH_TRY(b->code);
  for (int t = 0; t < CH_BENCH_SAMPLES; t++) {
    const real CH_DEV *from[] = {a->route.x, a->dout, a->out, a->dx};
    real CH_DEV *to[] = {x, dout, got[0], got[1]};
    for (int i = 0; i < 4; i++)
      memory->download(CH_AS_HOST(real, to[i] + t * d), from[i] + p->token[t] * d, (size_t)d * sizeof *x);
  }
  small->route.x = x;
  small->dout = dout;
  return CHOIR_OK;
}

/* Runs the whole measured layer again with a cotangent at the sampled tokens only, so that all of its gradients come
 * from them. */
static int run_sparse(ch_bench *b, ch_exec *x, ch_moe_args *a, ch_moe_saved *saved, const int *token) {
  real CH_DEV *dout = ch_bench_zeros(b, (int64_t)a->route.n * a->route.d);
  CH_TRY(b->code);
  for (int t = 0; t < CH_BENCH_SAMPLES; t++) {
    int64_t row = (int64_t)token[t] * a->route.d;
    b->memory->copy(dout + row, a->dout + row, (size_t)a->route.d * sizeof *dout);
  }
  a->dout = dout;
  a->route.scale.aux = 0; /* the balance loss depends on all tokens */
  ch_bench_moe_layer(x, a, saved);
  return CHOIR_OK;
}

/* Copies the routing, which the tape keeps until the next forward pass. */
static int read_routing(ch_bench *b, const ch_record *r, replay *p) {
  p->expert_begin = ch_bench_read(b, r->expert_begin, ((size_t)r->experts + 1) * sizeof(int));
  p->token_begin = ch_bench_read(b, r->token_begin, ((size_t)r->tokens + 1) * sizeof(int));
  p->slot_token = ch_bench_read(b, r->slot_token, (size_t)r->max_slots * sizeof(int));
  p->slot_gate = ch_bench_read(b, r->slot_gate, (size_t)r->max_slots * sizeof(real));
  return b->code;
}

static int compare_sample(ch_bench *b, const ch_moe_args *a, const ch_moe_args *small, const ch_record *sampled,
                          real CH_DEV *const got[2]) {
  const ch_moe_gradients *mine = &a->gradients, *want = &small->gradients;
  const real CH_DEV *of_tokens[2] = {small->out, small->dx};
  const int *begin = CH_AS_HOST(const int, sampled->expert_begin);
  double *error = &b->result->error;
  for (int i = 0; i < 2; i++)
    *error = ch_bench_worse(*error, ch_bench_error(CH_AS_HOST(const real, got[i]), CH_AS_HOST(const real, of_tokens[i]),
                                                   (int64_t)CH_BENCH_SAMPLES * a->route.d));
  ch_bench_compare(b, mine->router, want->router, (int64_t)a->route.d * a->route.e, error);
  compare_weights(b, a, begin, mine->w1, want->w1, error);
  compare_weights(b, a, begin, mine->w2, want->w2, error);
  return b->code;
}

int ch_bench_moe_sample(ch_bench *b, ch_exec *fast, ch_moe_args *a, ch_moe_saved *saved) {
  replay p = {.options = *a->route.options};
  ch_router router = *a->route.router;
  ch_moe_args small;
  ch_exec x;
  real CH_DEV *got[2];
  p.options.jitter = 0;
  a->route.options = &p.options;
  for (int t = 0; t < CH_BENCH_SAMPLES; t++) p.token[t] = (int)((int64_t)t * (a->route.n - 1) / (CH_BENCH_SAMPLES - 1));
  CH_TRY(run_sparse(b, fast, a, saved, p.token));
  CH_TRY(read_routing(b, &saved->routing.record, &p));
  CH_TRY(make_sample(b, a, &p, &small, got));
  router.max_slots = replay_max_slots;
  router.route = replay_route;
  small.route.router = &router;
  CH_TRY(ch_exec_init(&x, "reference", CH_COMPUTE_FP32, 0, b->options->threads));
  ch_bench_moe_layer(&x, &small, saved);
  int code = ch_exec_commit(&x);
  if (!code) {
    ch_bench_moe_layer(&x, &small, saved);
    code = compare_sample(b, a, &small, &saved->routing.record, got);
  }
  ch_exec_free(&x);
  return code;
}
