/* choir_route: routes any matrix of affinities [n,e] by any router, without a model, on the host. Its backend is the
 * first with host memory, so ops work on the caller's arrays in place. */
#include <math.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "choir/router.h"
#include "handle/model.h"
#include "model/config.h"
#include "moe/gates.h"
#include "moe/route_stats.h"
#include "moe/scores.h"
#include "op/backend.h"

#ifndef CHOIR_DOUBLE /* the public interface uses float */

/* Outputs of a routing, each may be NULL: gates, statistics, a callback; and backward. */
typedef struct {
  float *gates;
  choir_route_stats *stats;
  choir_routing_callback callback;
  void *context;
  const float *dgates; /* [n,e] or NULL: zeros */
  double aux_weight;
  float *dscores; /* [n,e] or NULL: forward only */
} results;

typedef struct {
  const choir_route_request *given;
  ch_route_args args;
  ch_routing routing;
  const results *to;
} request;

/* Every row needs finite scores. A logit may be -inf (never this expert), but not all of a row. */
static int check_row(const request *q, int t) {
  int e = q->args.e, is_logits = q->given->is_logits, possible = 0;
  for (int i = 0; i < e; i++) {
    float value = q->given->scores[(int64_t)t * e + i];
    int never = is_logits && value == -INFINITY;
    if (!isfinite(value) && !never)
      return ch_error(CHOIR_ERROR_NUMERIC, "scores[%d,%d] (row, column) is %g; every score must be a finite number", t,
                      i, (double)value);
    if (!is_logits && value < 0 && ch_router_scored(q->args.router))
      return ch_error(
          CHOIR_ERROR_ARGUMENT,
          "scores[%d,%d] (row, column) is %g; the gates of router '%s' are scores, so they must not be negative (are "
          "these logits?)",
          t, i, (double)value, q->args.router->name);
    possible += !never;
  }
  if (!possible) return ch_error(CHOIR_ERROR_NUMERIC, "scores[%d] (row): every logit is -inf", t);
  return CHOIR_OK;
}

/* Whether all scores of a row are finite and at least min: such rows need no closer look. Branch-free, so compilers
 * vectorize it. */
static int are_plain(const float *scores, int e, float min) {
  int odd = 0;
  for (int i = 0; i < e; i++) odd |= !(scores[i] - scores[i] == 0) | (scores[i] < min);
  return !odd;
}

static int check_rows(const request *q) {
  const ch_route_args *a = &q->args;
  float min = !q->given->is_logits && ch_router_scored(a->router) ? 0 : -INFINITY;
  for (int t = 0; t < a->n; t++)
    if ((!a->tokens.mask || a->tokens.mask[t]) && !are_plain(q->given->scores + (int64_t)t * a->e, a->e, min))
      CH_TRY(check_row(q, t));
  return CHOIR_OK;
}

static int check_thresholds(const ch_route_args *a) {
  CH_TRY(ch_router_check_sizes(a->options, a->n, a->e));
  if (!ch_router_has_thresholds(a->router))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' keeps no thresholds to route by", a->router->name);
  if ((int64_t)a->n * a->e > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d tokens and %d experts are too many for one call", a->n, a->e);
  const float *thresholds = CH_AS_HOST(const float, a->router_state.thresholds);
  for (int i = 0; i < a->e; i++)
    if (isnan(thresholds[i]))
      return ch_error(CHOIR_ERROR_NUMERIC, "thresholds[%d] is %g: must be a number", i, (double)thresholds[i]);
  return CHOIR_OK;
}

static int check_request(const request *q) {
  const ch_route_args *a = &q->args;
  if (a->causal) {
    CH_TRY(check_thresholds(a));
  } else {
    if (a->sequence_length < 0)
      return ch_error(CHOIR_ERROR_ARGUMENT, "sequence_length %d must not be negative", a->sequence_length);
    CH_TRY(a->router->check(a->options, a->n, a->e, a->sequence_length));
    CH_TRY(ch_router_check_ids(a->router, a->n, q->given->tokens));
  }
  return check_rows(q);
}

/* Gathers dgates [n,e] into dgate [slots]. */
static void gather_dgates(const request *q, float *dgate) {
  const ch_record *r = &q->routing.record;
  const int *begin = CH_AS_HOST(const int, r->expert_begin), *token = CH_AS_HOST(const int, r->slot_token);
  for (int i = 0; i < r->experts; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++)
      dgate[s] = q->to->dgates ? q->to->dgates[(int64_t)token[s] * r->experts + i] : 0;
}

/* Padding may hold any value, even NaN; its gradient is 0. */
static void clear_padding(const request *q) {
  const ch_route_args *a = &q->args;
  for (int t = 0; a->tokens.mask && t < a->n; t++)
    if (!a->tokens.mask[t]) memset(q->to->dscores + (int64_t)t * a->e, 0, (size_t)a->e * sizeof *q->to->dscores);
}

/* Runs forward's steps in reverse order, and writes dscores to the caller's array. */
static void run_backward(ch_exec *x, request *q) {
  const ch_route_args *a = &q->args;
  ch_routing *r = &q->routing;
  r->dgate = CH_NEW(&x->tape, real, r->record.max_slots);
  r->dscores = CH_AS_DEV(real, q->to->dscores);
  if (!ch_counting(x)) gather_dgates(q, CH_AS_HOST(float, r->dgate));
  ch_route_backward(x, a);
  if (q->given->is_logits && r->scores) ch_scores_of_backward(x, a->options, a->n, a->e, r->scores, r->dscores);
  ch_route_z_loss_backward(x, a, 0, a->n, CH_AS_DEV(const real, q->given->scores), r->dscores);
  if (!ch_counting(x)) clear_padding(q);
}

/* Passes the caller's scores as scores or as logits, whichever the router reads. */
static void run_router(ch_exec *x, request *q) {
  const ch_route_args *a = &q->args;
  ch_routing *r = &q->routing;
  real CH_DEV *in = (real CH_DEV *)CH_AS_DEV(const real, q->given->scores); /* never written */
  int scored = ch_router_scored(a->router);
  ch_routing_alloc(x, a, (ch_route_tally){0}, &x->tape);
  if (scored && !q->given->is_logits) r->lse = NULL; /* affinities have no log-sum-exp */
  ch_route_z_loss(x, a, 0, a->n, in);
  if (scored && q->given->is_logits) {
    r->scores = CH_NEW(&x->tape, real, (int64_t)a->n * a->e);
    ch_scores_of(x, a->options, a->n, a->e, in, r->scores);
  } else if (scored) {
    r->scores = in;
  } else {
    r->logits = in;
  }
  ch_route(x, a);
  if (q->to->dscores) run_backward(x, q);
}

static void write_gates(const ch_record *r, float *gates) {
  const int *begin = CH_AS_HOST(const int, r->expert_begin), *token = CH_AS_HOST(const int, r->slot_token);
  const float *gate = CH_AS_HOST(const float, r->slot_gate);
  memset(gates, 0, (size_t)r->tokens * (size_t)r->experts * sizeof *gates);
  for (int i = 0; i < r->experts; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++) gates[(int64_t)token[s] * r->experts + i] = gate[s];
}

/* Plans, runs and copies the outputs, on an executor that the caller frees. */
static int run_planned(ch_exec *x, request *q) {
  const ch_route_args *a = &q->args;
  const results *to = q->to;
  run_router(x, q);
  CH_TRY(ch_exec_commit(x));
  run_router(x, q);
  CH_TRY(ch_exec_check(x));
  if (to->stats) CH_TRY(ch_route_stats_make(x->memory, ch_valid_count(a->tokens.mask, a->n), &q->routing, to->stats));
  if (to->gates) write_gates(&q->routing.record, to->gates);
  if (to->callback) {
    choir_routing view = ch_routing_view(x, a, &q->routing);
    to->callback(to->context, &view);
  }
  return CHOIR_OK;
}

static int route_request(const choir_route_request *r, const results *to) {
  int wanted = to->gates || to->callback || to->dscores;
  if (!r->config || !r->scores || !wanted)
    return ch_error(CHOIR_ERROR_ARGUMENT, "choir_route: %s is NULL",
                    !r->config   ? "config"
                    : !r->scores ? "scores"
                                 : "what is to receive the result");
  CH_CHECK_RESERVED(r, "choir_route_request");
  const ch_router_spec *spec = &r->config->model.router;
  CH_TRY(ch_options_check_router(spec));
  request q = {.given = r,
               .args = {.tokens = {.mask = r->valid,
                                   .valid = CH_AS_DEV(const uint8_t, r->valid),
                                   .id = CH_AS_DEV(const int32_t, r->tokens)},
                        .training = r->training,
                        .causal = r->thresholds != NULL,
                        .draws.rng = {.seed = r->seed, .sub = (uint32_t)r->layer},
                        .router_state.thresholds = CH_AS_DEV(const float, r->thresholds)},
               .to = to};
  ch_route_args_set(&q.args, spec->kind, spec, r->n, r->e, r->sequence_length);
  q.args.scale.aux = (real)to->aux_weight;
  q.args.routing = &q.routing;
  CH_TRY(check_request(&q));
  ch_exec x;
  CH_TRY(ch_exec_init(&x, ch_backend_of_host()->name, CH_COMPUTE_FP32, 0, 0));
  int code = run_planned(&x, &q);
  ch_exec_free(&x);
  return code;
}

int choir_route(const choir_route_request *request, float *gates, choir_route_stats *stats) {
  CH_ENTER(request);
  return route_request(request, &(results){.gates = gates, .stats = stats});
}

int choir_route_visit(const choir_route_request *request, choir_routing_callback callback, void *context) {
  CH_ENTER(request);
  return route_request(request, &(results){.callback = callback, .context = context});
}

int choir_route_backward(const choir_route_request *request, const float *dgates, double aux_weight, float *dscores) {
  CH_ENTER(request);
  return route_request(request, &(results){.dgates = dgates, .aux_weight = aux_weight, .dscores = dscores});
}

#endif
