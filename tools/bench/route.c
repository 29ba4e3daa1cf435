/* Bench cases `route`, a router forward and backward, from logits to gates, and `assign`, a solver of assignments:
 * the time alone, and as a share of a whole layer's. */
#include "moe/route.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/text.h"
#include "bench/cases.h"

static void make_scores(ch_exec *x, ch_bench_work *w) {
  const ch_route_args *a = &w->route;
  ch_softmax_args softmax = {.n = a->n, .m = a->e, .x = a->routing->logits, .y = (real CH_DEV *)a->routing->scores};
  if (a->routing->scores) x->ops->softmax(x, &softmax);
}

/* Runs softmax, selection, gates and the index by tokens; then backward from gates to logits. */
static void run_route(ch_exec *x, ch_bench_work *w) {
  const ch_route_args *a = &w->route;
  make_scores(x, w);
  a->router->route(x, a);
  x->ops->index(x, &(ch_index_args){.record = &a->routing->record});
  if (!a->router->backward) return;
  a->router->backward(x, a);
  if (a->routing->scores)
    x->ops->softmax_backward(x, &(ch_softmax_args){.n = a->n,
                                                   .m = a->e,
                                                   .x = a->routing->logits,
                                                   .y = (real CH_DEV *)a->routing->scores,
                                                   .dy = a->routing->dscores,
                                                   .dx = a->routing->dscores});
}

static void run_choice(ch_exec *x, ch_bench_work *w) { w->route.router->route(x, &w->route); }

/* Allocates random logits [n,e], with the standard deviation of a newly initialized layer, and the router's output
 * arrays. The case owns the arrays, because results are compared after the executor is freed. */
static int make_choice(ch_bench *b, const ch_router *router, ch_bench_work *w) {
  int n = (int)b->size[0], e = (int)b->size[1];
  CH_TRY(router->check(&w->router, n, e, 0));
  ch_bench_record(b, n, e, router->max_slots(&w->router, n, e, 0), 0, &w->routing.record);
  w->run = run_choice;
  w->routing.counts = (ch_route_counts){.demand = ch_bench_ints(b, e), .cutoff = ch_bench_zeros(b, e)};
  w->routing.counts.aux_loss = (double CH_DEV *)ch_bench_zeros(b, 2 * (int64_t)(sizeof(double) / sizeof(real)));
  w->routing.counts.dropped = (int64_t CH_DEV *)(w->routing.counts.aux_loss + 1);
  w->route = (ch_route_args){.training = 1, .routing = &w->routing};
  ch_route_args_set(&w->route, router, &w->router, n, e, 0);
  w->routing.logits = ch_bench_drawn(b, (int64_t)n * e, 1);
  if (ch_router_scored(router)) w->routing.scores = ch_bench_zeros(b, (int64_t)n * e);
  return b->code;
}

int ch_bench_make_route(ch_bench *b, ch_bench_work *w) {
  const ch_router *router = ch_router_find(b->word[0]);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  if (!ch_router_learned(router) || ch_router_has_centroids(router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench case 'route': router '%s' learns no affinities", router->name);
  w->router = ch_router_default(router);
  CH_TRY(ch_bench_capacity(b, 2, &w->router));
  CH_TRY(make_choice(b, router, w));
  int64_t cells = b->size[0] * b->size[1], slots = w->routing.record.max_slots;
  w->run = run_route;
  w->routing.dgate = ch_bench_drawn(b, slots, 1);
  w->routing.dscores = ch_bench_zeros(b, cells);
  w->out[0] = w->routing.record.slot_gate, w->out_count[0] = slots;
  w->out[1] = w->routing.dscores, w->out_count[1] = cells;
  w->selection = w->routing.record.slot_token, w->selection_count = slots;
  /* softmax reads and writes; selection reads; gradients of gates are written; softmax's backward reads two arrays
   * and writes one */
  w->bytes = 7.0 * sizeof(real) * (double)cells;
  return b->code;
}

/* The minimum time of a layer with expert choice, forward and backward, which a router's time is compared with. */
static int layer_seconds(const ch_bench *b, double n, double d, double h, double e, double c, double *seconds) {
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

/* A layer of so many tokens would take long: with fewer experts its experts have the same load, and its time grows
 * in proportion to the tokens. */
int ch_bench_route(ch_bench *b) {
  enum { LAYER_TOKENS = 8192 };
  ch_bench_result *r = b->result;
  double n = b->value[0], e = b->value[1], parts = 1, layer;
  CH_TRY(ch_bench_against_reference(b));
  while (n / parts > LAYER_TOKENS && e / parts >= 2) parts *= 2;
  int tokens = (int)(n / parts), experts = (int)(e / parts);
  CH_TRY(layer_seconds(b, tokens, b->value[3], b->value[4], experts, b->value[2], &layer));
  layer *= n / tokens;
  r->tokens = (int64_t)n;
  r->layer_share = r->min_seconds / layer;
  ch_bench_figure(b, "ms of the layer", 1e3 * layer);
  snprintf(r->note, sizeof r->note, "without the product X Wg%s; error at n=%.0f",
           parts > 1 ? "; the layer's time is that of one with fewer experts, each as full, times tokens" : "",
           (double)b->size[0]);
  if (parts > 1) ch_bench_figure(b, "measured with tokens", tokens);
  if (parts > 1) ch_bench_figure(b, "and experts", experts);
  return CHOIR_OK;
}

/* Solver "base" is that of router base; the other solvers belong to router capped_expert_choice. */
int ch_bench_make_assign(ch_bench *b, ch_bench_work *w) {
  int base = !strcmp(b->word[0], "base");
  const ch_router *router = ch_router_find(base ? "base" : "capped_expert_choice");
  w->router = ch_router_default(router);
  w->router.capacity_factor = b->value[2];
  w->router.cap = (int)b->value[3];
  if (!base) w->router.solver = ch_word_number(ch_router_solvers, b->word[0]);
  w->begin = make_scores;
  w->bytes = (double)sizeof(real) * (double)(b->size[0] * b->size[1]);
  return make_choice(b, router, w);
}

int ch_bench_assign(ch_bench *b) {
  ch_bench_ready c = {0};
  ch_bench_result *r = b->result;
  double d = b->value[4], h = b->value[5], layer = 0;
  int code = ch_bench_time_work(b, &c);
  if (!code) code = layer_seconds(b, b->value[0], d, h, b->value[1], b->value[2], &layer);
  const choir_certificate certificate = c.work.routing.counts.certificate;
  ch_exec_free(&c.x);
  CH_TRY(code);
  r->tokens = b->size[0];
  r->error = fabs(certificate.gap);
  r->layer_share = r->min_seconds / layer;
  ch_format(r->note, sizeof r->note,
            "layer of d=%.0f h=%.0f: %.1f ms; the error is the certificate's gap; over cap: %lld tokens", d, h,
            1e3 * layer, (long long)certificate.over_cap);
  return CHOIR_OK;
}
