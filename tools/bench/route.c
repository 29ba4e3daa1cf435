/* Bench case `route`: a router alone, from logits to gates and back, and the share that its time is of a layer's. */
#include "moe/route.h"

#include <stdio.h>

#include "base/error.h"
#include "bench/cases.h"

typedef struct {
  choir_router_options options;
  const ch_router *router;
  ch_record record;
  ch_route_counts counts;
  ch_route_args args;
} route_case;

/* Softmax, choice, gates, the index by tokens; then from gates back to logits. */
static void run_route(ch_exec *x, const void *args) {
  route_case *c = (route_case *)args;
  ch_route_args *a = &c->args;
  ch_softmax_args softmax = {.n = a->n, .m = a->e, .x = a->logits, .y = (real CH_DEV *)a->scores};
  if (a->scores) x->ops->softmax(x, &softmax);
  ch_route_only(x, a);
  x->ops->index(x, &(ch_index_args){.record = a->record});
  if (!c->router->backward) return;
  c->router->backward(x, a);
  softmax.dy = softmax.dx = a->dscores;
  if (a->scores) x->ops->softmax_backward(x, &softmax);
}

/* Arrays of a record and of counts: the case's own, so that they can be compared when the executor is gone. */
static int make_record(ch_bench *b, route_case *c, int n, int e, int slots) {
  ch_record *r = &c->record;
  real CH_DEV *both; /* a double and an int64_t, zero */
  *r = (ch_record){.tokens = n, .experts = e, .max_slots = slots, .load = -1};
  CH_TRY(ch_bench_ints(b, e + 1, &r->expert_begin));
  CH_TRY(ch_bench_ints(b, slots, &r->slot_token));
  CH_TRY(ch_bench_ints(b, n + 1, &r->token_begin));
  CH_TRY(ch_bench_ints(b, slots, &r->token_slot));
  CH_TRY(ch_bench_ints(b, e, &c->counts.demand));
  CH_TRY(ch_bench_array(b, e, 0, &c->counts.cutoff));
  CH_TRY(ch_bench_array(b, 2 * (int64_t)(sizeof(double) / sizeof(real)), 0, &both));
  c->counts.aux_loss = (double CH_DEV *)both;
  c->counts.dropped = (int64_t CH_DEV *)(c->counts.aux_loss + 1);
  return ch_bench_array(b, slots, 0, &r->slot_gate);
}

static int find_router(ch_bench *b, route_case *c, int n, int e) {
  if (!(c->router = ch_router_find(b->word[0]))) return CHOIR_ERROR_ARGUMENT;
  if (!ch_router_learned(c->router) || ch_router_has_centroids(c->router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "bench case 'route': router '%s' learns no affinities", b->word[0]);
  c->options = c->router->defaults;
  CH_TRY(ch_bench_capacity(b, 2, &c->options));
  return c->router->check(&c->options, n, e, 0);
}

int ch_bench_make_route(ch_bench *b, int small, ch_bench_work *w) {
  int64_t s[2];
  real CH_DEV *logits, *scores = NULL, *dgate, *dscores;
  route_case *c = NULL;
  CH_TRY(ch_bench_sizes(b, 2, s));
  int n = (int)(small ? ch_bench_least(s[0], 2048) : s[0]), e = (int)s[1];
  int64_t cells = (int64_t)n * e;
  CH_TRY(ch_bench_host(b, sizeof *c, &c));
  CH_TRY(find_router(b, c, n, e));
  int slots = c->router->max_slots(&c->options, n, e, 0);
  CH_TRY(make_record(b, c, n, e, slots));
  CH_TRY(ch_bench_array(b, cells, 1, &logits)); /* as wide as those of a fresh layer */
  if (ch_router_scored(c->router)) CH_TRY(ch_bench_array(b, cells, 0, &scores));
  CH_TRY(ch_bench_array(b, slots, 1, &dgate));
  CH_TRY(ch_bench_array(b, cells, 0, &dscores));
  c->args = (ch_route_args){.router = c->router,
                            .options = &c->options,
                            .n = n,
                            .e = e,
                            .logits = logits,
                            .scores = scores,
                            .training = 1,
                            .record = &c->record,
                            .counts = &c->counts,
                            .dgate = dgate,
                            .dscores = dscores,
                            .aux_scale = (real)c->options.aux_loss_weight};
  /* softmax reads and writes, selection reads, gates' gradients are written, softmax's backward reads two, writes one
   */
  *w = (ch_bench_work){.run = run_route,
                       .args = c,
                       .out = {c->record.slot_gate, dscores},
                       .out_count = {slots, cells},
                       .bytes = 7.0 * sizeof(real) * (double)cells,
                       .selection = c->record.slot_token,
                       .selection_count = slots};
  return CHOIR_OK;
}

/* A layer of so many tokens would take long: one with fewer experts has experts as full, and its time goes by tokens.
 */
int ch_bench_route(ch_bench *b) {
  enum { LAYER_TOKENS = 8192 };
  ch_bench_result *r = b->result;
  double n = b->value[0], e = b->value[1], parts = 1, layer;
  CH_TRY(ch_bench_against_reference(b));
  while (n / parts > LAYER_TOKENS && e / parts >= 2) parts *= 2;
  ch_bench_layer small = {
      .n = (int)(n / parts), .e = (int)(e / parts), .d = b->value[3], .h = b->value[4], .c = b->value[2]};
  CH_TRY(ch_bench_layer_seconds(b, &small, &layer));
  layer *= n / small.n;
  r->tokens = (int64_t)n;
  r->layer_share = r->min_seconds / layer;
  ch_bench_figure(b, "ms of the layer", 1e3 * layer);
  snprintf(r->note, sizeof r->note, "without the product X Wg%s; error at n=%.0f",
           parts > 1 ? "; the layer's time is that of one with fewer experts, each as full, times tokens" : "",
           n < 2048 ? n : 2048);
  if (parts > 1) ch_bench_figure(b, "measured with tokens", small.n);
  if (parts > 1) ch_bench_figure(b, "and experts", small.e);
  return CHOIR_OK;
}
