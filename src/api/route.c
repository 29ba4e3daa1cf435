/* choir_route: any matrix of affinities through any router, outside any model, on the host: its backend is the first
 * one whose memory is the host's, so that the caller's arrays are what ops work on. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/reserved.h"
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
  ch_route_tally tally;  /* where statistics are asked for */
  real CH_DEV *softmax;  /* [n,e] of logits; NULL: scores were given */
  real CH_DEV *gate_sum; /* [n] of gates that are normalized; NULL: they are not */
  const float *dgates;   /* [n,e] or NULL: 0. With dscores, for backward only */
  float *dscores;        /* [n,e] or NULL: forward only */
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
    if (isnan(thresholds[i]))
      return ch_error(CHOIR_ERROR_NUMERIC, "thresholds[%d] is %g: must be a number", i, (double)thresholds[i]);
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

/* The gradient of gates, slot by slot. */
static void gather_dgates(const request *q, float *dgate) {
  const ch_record *r = &q->record;
  const int *begin = CH_AS_HOST(const int, r->expert_begin), *token = CH_AS_HOST(const int, r->slot_token);
  for (int i = 0; i < r->experts; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++)
      dgate[s] = q->dgates ? q->dgates[(int64_t)token[s] * r->experts + i] : 0;
}

/* Padding may hold anything, NaN too: it has no gradient. */
static void clear_padding(const request *q) {
  const ch_route_args *a = &q->args;
  for (int t = 0; a->mask && t < a->n; t++)
    if (!a->mask[t]) memset(q->dscores + (int64_t)t * a->e, 0, (size_t)a->e * sizeof *q->dscores);
}

/* forward's steps in reverse, on the caller's array. */
static void run_backward(ch_exec *x, request *q) {
  ch_route_args *a = &q->args;
  real CH_DEV *dgate = CH_NEW(&x->tape, real, q->record.max_slots);
  a->dgate = dgate;
  a->dscores = CH_AS_DEV(real, q->dscores);
  if (!ch_counting(x)) gather_dgates(q, CH_AS_HOST(float, dgate));
  if (q->gate_sum)
    x->ops->normalize_gates_backward(x, &(ch_normalize_args){.record = &q->record, .sum = q->gate_sum, .dgate = dgate});
  if (q->router->backward)
    q->router->backward(x, a);
  else if (!ch_counting(x))
    memset(q->dscores, 0, (size_t)a->n * (size_t)a->e * sizeof *q->dscores);
  if (q->softmax && ch_router_scored(q->router))
    x->ops->softmax_backward(
        x, &(ch_softmax_args){.n = a->n, .m = a->e, .y = q->softmax, .dy = a->dscores, .dx = a->dscores});
  if (!ch_counting(x)) clear_padding(q);
}

static void run(ch_exec *x, request *q, int count) {
  ch_route_args *a = &q->args;
  const float CH_DEV *in = CH_AS_DEV(const float, q->in);
  ch_record_alloc(&x->tape, &q->record, a->n, a->e, max_slots(q));
  ch_route_counts_alloc(x, &x->tape, &q->counts, a->e);
  a->scores = in;
  if (q->is_logits) {
    q->softmax = CH_NEW(&x->tape, real, (int64_t)a->n * a->e);
    x->ops->softmax(x, &(ch_softmax_args){.n = a->n, .m = a->e, .x = in, .y = q->softmax});
    a->logits = in;
    a->scores = q->softmax;
  }
  if (q->causal)
    q->router->causal(x, a);
  else
    ch_route(x, q->router, a);
  x->ops->index(x, &(ch_index_args){.record = &q->record});
  if (a->options->normalize_gates) {
    q->gate_sum = CH_NEW(&x->tape, real, a->n);
    x->ops->normalize_gates(x, &(ch_normalize_args){.record = &q->record, .sum = q->gate_sum});
  }
  if (count) tally(x, q);
  if (q->dscores) run_backward(x, q);
}

static void write_gates(const ch_record *r, float *gates) {
  const int *begin = CH_AS_HOST(const int, r->expert_begin), *token = CH_AS_HOST(const int, r->slot_token);
  const float *gate = CH_AS_HOST(const float, r->slot_gate);
  memset(gates, 0, (size_t)r->tokens * (size_t)r->experts * sizeof *gates);
  for (int i = 0; i < r->experts; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++) gates[(int64_t)token[s] * r->experts + i] = gate[s];
}

/* The routing as choir_model_on_routing has it; everything is in the host's memory. */
static void show(const request *q, choir_routing_callback callback, void *context) {
  const ch_route_args *a = &q->args;
  const ch_record *r = &q->record;
  int choices = ch_router_choices(a->options), n = ch_valid_count(a->mask, a->n);
  choir_routing view = {
      .tokens = a->n,
      .experts = a->e,
      .token = CH_AS_HOST(const int32_t, a->token),
      .valid = a->mask,
      .expert_begin = CH_AS_HOST(const int, r->expert_begin),
      .slot_token = CH_AS_HOST(const int, r->slot_token),
      .slot_gate = CH_AS_HOST(const float, r->slot_gate),
      .token_begin = CH_AS_HOST(const int, r->token_begin),
      .token_slot = CH_AS_HOST(const int, r->token_slot),
      .scores = ch_router_scored(q->router) ? CH_AS_HOST(const float, a->scores) : NULL,
      .cutoffs = ch_router_has_thresholds(q->router) ? CH_AS_HOST(const float, q->counts.cutoff) : NULL,
      .demand = CH_AS_HOST(const int, q->counts.demand),
      .capacity = q->counts.capacity,
      .dropped = *CH_AS_HOST(const int64_t, q->counts.dropped),
      .aux_loss = *CH_AS_HOST(const double, q->counts.aux_loss),
      .certificate = q->counts.certificate,
      .target = choices ? (double)n * choices / a->e : q->counts.capacity};
  callback(context, &view);
}

/* Where a routing goes. */
typedef struct {
  float *gates;
  choir_route_stats *stats;
  choir_routing_callback callback;
  void *context;
} results;

/* Plans, runs and hands out, on an executor that the caller frees. */
static int run_planned(ch_exec *x, request *q, const results *to) {
  const ch_route_args *a = &q->args;
  run(x, q, to->stats != NULL);
  CH_TRY(ch_exec_commit(x));
  run(x, q, to->stats != NULL);
  int n = ch_valid_count(a->mask, a->n);
  if (to->stats) CH_TRY(ch_route_stats_make(x->memory, a->e, n, &q->counts, &q->tally, to->stats));
  if (to->gates) write_gates(&q->record, to->gates);
  if (to->callback) show(q, to->callback, to->context);
  return CHOIR_OK;
}

/* What all calls share: everything of the request but router, record and counts is set. */
static int route(request *q, const results *to) {
  ch_exec x;
  if (!q->args.options || !q->in || (!to->gates && !to->callback && !q->dscores) || (q->causal && !q->args.thresholds))
    return ch_error(CHOIR_ERROR_ARGUMENT, "choir_route: %s is NULL",
                    !q->args.options                             ? "options"
                    : !q->in                                     ? "scores"
                    : !to->gates && !to->callback && !q->dscores ? "what is to receive the result"
                                                                 : "thresholds");
  q->router = ch_router_find(q->args.options->name);
  if (!q->router) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_options_check_router(q->args.options));
  q->args.record = &q->record;
  q->args.counts = &q->counts;
  CH_TRY(q->causal ? check_thresholds(q) : check(q));
  CH_TRY(ch_exec_init(&x, ch_backend_of_host()->name, CH_COMPUTE_FP32, 0, 0));
  int code = run_planned(&x, q, to);
  ch_exec_free(&x);
  return code;
}

static request request_of(const choir_route_request *r) {
  return (request){.in = r->scores,
                   .is_logits = r->is_logits,
                   .args = {.options = r->options,
                            .n = r->n,
                            .e = r->e,
                            .sequence_length = r->sequence_length,
                            .mask = r->valid,
                            .valid = CH_AS_DEV(const uint8_t, r->valid),
                            .token = CH_AS_DEV(const int32_t, r->tokens),
                            .training = r->training,
                            .rng = ch_rng_make(r->seed, CH_STREAM_SECOND_EXPERT, 0)}};
}

int choir_route(const choir_router_options *options, int n, int e, const float *scores, int is_logits,
                const int32_t *tokens, const uint8_t *valid, int sequence_length, int training, uint64_t seed,
                float *gates, choir_route_stats *stats) {
  request q = request_of(&(choir_route_request){.options = options,
                                                .n = n,
                                                .e = e,
                                                .scores = scores,
                                                .is_logits = is_logits,
                                                .tokens = tokens,
                                                .valid = valid,
                                                .sequence_length = sequence_length,
                                                .training = training,
                                                .seed = seed});
  return route(&q, &(results){.gates = gates, .stats = stats});
}

int choir_route_show(const choir_route_request *r, choir_routing_callback callback, void *context) {
  CH_CHECK_RESERVED(r, "choir_route_request");
  request q = request_of(r);
  return route(&q, &(results){.callback = callback, .context = context});
}

int choir_route_backward(const choir_route_request *r, const float *dgates, double aux_weight, float *dscores) {
  CH_CHECK_RESERVED(r, "choir_route_request");
  request q = request_of(r);
  q.args.aux_scale = (real)aux_weight;
  q.dgates = dgates;
  q.dscores = dscores;
  return route(&q, &(results){0});
}

int choir_route_by_thresholds(const choir_router_options *options, int n, int e, const float *scores, int is_logits,
                              const uint8_t *valid, const float *thresholds, float *gates, choir_route_stats *stats) {
  request q = request_of(&(choir_route_request){
      .options = options, .n = n, .e = e, .scores = scores, .is_logits = is_logits, .valid = valid});
  q.causal = 1;
  q.args.thresholds = CH_AS_DEV(const float, thresholds);
  return route(&q, &(results){.gates = gates, .stats = stats});
}

#endif
