/* Bench case `assign`: a router that solves an assignment, alone, and the share that its time is of a whole layer's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "bench/cases.h"
#include "moe/route.h"
#include "moe/router.h"

typedef struct {
  ch_exec x;
  choir_router_options options;
  const ch_router *router;
  ch_record record;
  ch_route_counts counts;
  ch_route_args args;
} assign_case;

/* Solver "base" is the router of that name, others those of capped_expert_choice. */
static int make_args(ch_bench *b, assign_case *c) {
  int64_t s[2], count;
  real CH_DEV *scores;
  CH_TRY(ch_bench_sizes(b, 2, s));
  int base = !strcmp(b->word[0], "base");
  c->router = ch_router_find(base ? "base" : "capped_expert_choice");
  c->options = c->router->defaults;
  c->options.capacity_factor = b->value[2];
  c->options.cap = (int)b->value[3];
  if (!base) snprintf(c->options.solver, sizeof c->options.solver, "%.*s", CHOIR_NAME_BYTES - 1, b->word[0]);
  CH_TRY(c->router->check(&c->options, (int)s[0], (int)s[1], 0));
  count = s[0] * s[1];
  CH_TRY(ch_bench_array(b, count, 1, &scores)); /* logits; as wide as those of a fresh layer */
  c->args = (ch_route_args){.router = c->router,
                            .options = &c->options,
                            .n = (int)s[0],
                            .e = (int)s[1],
                            .logits = scores,
                            .training = 1,
                            .record = &c->record,
                            .counts = &c->counts};
  if (base) return CHOIR_OK;
  CH_TRY(ch_bench_array(b, count, 0, &scores));
  c->args.scores = scores;
  return CHOIR_OK;
}

static void repeat(void *context) {
  assign_case *c = context;
  ch_route_args *a = &c->args;
  ch_record_alloc(&c->x.tape, &c->record, a->n, a->e, c->router->max_slots(a->options, a->n, a->e, 0));
  ch_route_counts_alloc(&c->x, &c->x.tape, &c->counts, a->e);
  ch_route_only(&c->x, a);
  ch_arena_release(&c->x.tape, 0);
}

static int measure(ch_bench *b, assign_case *c) {
  ch_bench_result *r = b->result;
  const ch_route_args *a = &c->args;
  double layer;
  repeat(c);
  CH_TRY(ch_exec_commit(&c->x));
  if (a->scores)
    c->x.ops->softmax(&c->x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = a->logits, .y = (real CH_DEV *)a->scores});
  ch_bench_time(b, repeat, c);
  ch_bench_rates(b, 0, (double)sizeof(real) * a->n * a->e);
  CH_TRY(ch_bench_layer_seconds(
      b, &(ch_bench_layer){.n = b->value[0], .e = b->value[1], .c = b->value[2], .d = b->value[4], .h = b->value[5]},
      &layer));
  r->tokens = a->n;
  r->error = fabs(c->counts.certificate.gap);
  r->layer_share = r->min_seconds / layer;
  ch_format(r->note, sizeof r->note,
            "layer of d=%.0f h=%.0f: %.1f ms; the error is the certificate's gap; over cap: %lld tokens", b->value[4],
            b->value[5], 1e3 * layer, (long long)c->counts.certificate.over_cap);
  return CHOIR_OK;
}

int ch_bench_assign(ch_bench *b) {
  assign_case c = {0};
  CH_TRY(make_args(b, &c));
  CH_TRY(ch_exec_init(&c.x, b->backend->name, b->compute, 0, b->options->threads));
  int code = measure(b, &c);
  ch_exec_free(&c.x);
  return code;
}
