/* choir_route: any matrix of affinities through any router, outside any model, on the host: its backend is the first
 * one whose memory is the host's, so that the caller's arrays are what ops work on. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "model/config.h"
#include "moe/router.h"
#include "op/backend.h"

#ifndef CHOIR_DOUBLE /* the public interface is in float */

typedef struct {
  const ch_router *router;
  ch_route_args args;
  const float *in;
  int is_logits, causal;
  ch_record record;
  ch_route_counts counts;
  ch_route_tally tally; /* where statistics are asked for */
} request;

/* Every row must be able to say which expert is best: finite scores; of logits -inf may stand for "never", but not
 * everywhere. */
static int check_row(const request *q, int t) {
  int e = q->args.e, possible = 0;
  for (int i = 0; i < e; i++) {
    float value = q->in[(int64_t)t * e + i];
    int never = q->is_logits && value == -INFINITY;
    if (!isfinite(value) && !never)
      return ch_error(CHOIR_ERROR_NUMERIC, "scores[%d,%d] (row, column) is %g; every score must be a finite number", t,
                      i, (double)value);
    if (!q->is_logits && value < 0 && q->router->reads == CH_READS_SHARES)
      return ch_error(
          CHOIR_ERROR_ARGUMENT,
          "scores[%d,%d] (row, column) is %g; router '%s' takes shares of scores, so they must not be negative "
          "(are these logits?)",
          t, i, (double)value, q->router->name);
    possible += !never;
  }
  if (!possible) return ch_error(CHOIR_ERROR_NUMERIC, "scores[%d] (row): every logit is -inf", t);
  return CHOIR_OK;
}

static int check_rows(const request *q) {
  const ch_route_args *a = &q->args;
  for (int t = 0; t < a->n; t++)
    if (!a->mask || a->mask[t]) CH_TRY(check_row(q, t));
  return CHOIR_OK;
}

static int check(const request *q) {
  const ch_route_args *a = &q->args;
  if (a->sequence_length < 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "sequence_length %d must not be negative", a->sequence_length);
  CH_TRY(q->router->check(a->options, a->n, a->e, a->sequence_length));
  CH_TRY(ch_router_check_ids(q->router, a->n, CH_AS_HOST(const int32_t, a->token)));
  return check_rows(q);
}

static int check_thresholds(const request *q) {
  const ch_route_args *a = &q->args;
  CH_TRY(ch_router_check_sizes(a->options, a->n, a->e));
  if (!ch_router_has_thresholds(q->router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' keeps no thresholds to route by", q->router->name);
  if ((int64_t)a->n * a->e > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d tokens and %d experts are too many for one call", a->n, a->e);
  const float *thresholds = CH_AS_HOST(const float, a->thresholds);
  for (int i = 0; i < a->e; i++)
    if (isnan(thresholds[i])) return ch_error(CHOIR_ERROR_NUMERIC, "thresholds[%d] is not a number", i);
  return check_rows(q);
}

static int max_slots(const request *q) {
  const ch_route_args *a = &q->args;
  if (q->causal) return a->n * ch_router_most_experts(a->options, a->e);
  return q->router->max_slots(a->options, a->n, a->e, a->sequence_length);
}

static void tally(ch_exec *x, request *q) {
  q->tally.sums = CH_NEW(&x->tape, double, CH_TALLY_SUMS);
  q->tally.counts = CH_NEW(&x->tape, int64_t, CH_TALLY_COUNTS(q->args.e));
  x->ops->tally(x, &(ch_tally_args){.record = &q->record,
                                    .valid = q->args.valid,
                                    .aux_loss = q->counts.aux_loss,
                                    .dropped = q->counts.dropped,
                                    .demand = q->counts.demand,
                                    .sums = q->tally.sums,
                                    .counts = q->tally.counts});
}

static void run(ch_exec *x, request *q, int count) {
  ch_route_args *a = &q->args;
  const float CH_DEV *in = CH_AS_DEV(const float, q->in);
  ch_record_alloc(&x->tape, &q->record, a->n, a->e, max_slots(q));
  ch_route_counts_alloc(x, &x->tape, &q->counts, a->e);
  a->scores = in;
  if (q->is_logits) {
    real CH_DEV *scores = CH_NEW(&x->tape, real, (int64_t)a->n * a->e);
    x->ops->softmax(x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = in, .y = scores});
    a->logits = in;
    a->scores = scores;
  }
  if (q->causal)
    q->router->causal(x, a);
  else
    ch_route(x, q->router, a);
  x->ops->index(x, &(ch_index_args){.record = &q->record});
  if (count) tally(x, q);
}

static void write_gates(const ch_record *r, float *gates) {
  const int *begin = CH_AS_HOST(const int, r->expert_begin), *token = CH_AS_HOST(const int, r->slot_token);
  const float *gate = CH_AS_HOST(const float, r->slot_gate);
  memset(gates, 0, (size_t)r->tokens * (size_t)r->experts * sizeof *gates);
  for (int i = 0; i < r->experts; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++) gates[(int64_t)token[s] * r->experts + i] = gate[s];
}

/* Plans, runs and hands out, on an executor that the caller frees. */
static int run_planned(ch_exec *x, request *q, float *gates, choir_route_stats *stats) {
  const ch_route_args *a = &q->args;
  run(x, q, stats != NULL);
  CH_TRY(ch_exec_commit(x));
  run(x, q, stats != NULL);
  if (stats) CH_TRY(ch_route_stats_make(x->memory, a->e, ch_valid_count(a->mask, a->n), &q->counts, &q->tally, stats));
  write_gates(&q->record, gates);
  return CHOIR_OK;
}

/* What both calls share: everything of the request but router, record and counts is set. */
static int route(request *q, float *gates, choir_route_stats *stats) {
  ch_exec x;
  if (!q->args.options || !q->in || !gates || (q->causal && !q->args.thresholds))
    return ch_error(CHOIR_ERROR_ARGUMENT, "choir_route: %s is NULL",
                    !q->args.options ? "options"
                    : !q->in         ? "scores"
                    : !gates         ? "gates"
                                     : "thresholds");
  q->router = ch_router_find(q->args.options->name);
  if (!q->router) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_options_check_router(q->args.options));
  q->args.record = &q->record;
  q->args.counts = &q->counts;
  CH_TRY(q->causal ? check_thresholds(q) : check(q));
  CH_TRY(ch_exec_init(&x, ch_backend_of_host()->name, CH_COMPUTE_FP32, 0, 0));
  int code = run_planned(&x, q, gates, stats);
  ch_exec_free(&x);
  return code;
}

int choir_route(const choir_router_options *options, int n, int e, const float *scores, int is_logits,
                const int32_t *tokens, const uint8_t *valid, int sequence_length, int training, uint64_t seed,
                float *gates, choir_route_stats *stats) {
  request q = {.in = scores, .is_logits = is_logits};
  q.args = (ch_route_args){.options = options,
                           .n = n,
                           .e = e,
                           .sequence_length = sequence_length,
                           .mask = valid,
                           .valid = CH_AS_DEV(const uint8_t, valid),
                           .token = CH_AS_DEV(const int32_t, tokens),
                           .training = training,
                           .rng = ch_rng_make(seed, CH_STREAM_SECOND_EXPERT, 0)};
  return route(&q, gates, stats);
}

int choir_route_by_thresholds(const choir_router_options *options, int n, int e, const float *scores, int is_logits,
                              const uint8_t *valid, const float *thresholds, float *gates, choir_route_stats *stats) {
  request q = {.in = scores, .is_logits = is_logits, .causal = 1};
  q.args = (ch_route_args){.options = options,
                           .n = n,
                           .e = e,
                           .mask = valid,
                           .valid = CH_AS_DEV(const uint8_t, valid),
                           .thresholds = CH_AS_DEV(const float, thresholds)};
  return route(&q, gates, stats);
}

#endif
