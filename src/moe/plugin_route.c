/* Runs a plug-in in a layer: prepares its arguments, checks its results, and computes gates, losses and cut-offs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/order.h"
#include "comm/collective.h"
#include "moe/gates.h"
#include "moe/plugin.h"
#include "moe/route.h"
#include "moe/routers/token_choice.h"

const char *const ch_plugin_depends_on[] = {"none", "in_training", "past", "all"};

/* Capacity of an expert for `valid` tokens. A router that depends on no other token cannot know its load: no limit. */
static int capacity_of(const ch_plugin *p, const ch_router_spec *o, int valid, int e, int training) {
  double factor = ch_router_factor(o, training);
  int alone = p->router.depends_on == CHOIR_DEPENDS_ON_NONE ||
              (p->router.depends_on == CHOIR_DEPENDS_ON_ALL_IN_TRAINING && !training);
  if (alone || factor == 0) return valid;
  return p->router.choices ? ch_router_capacity(factor, ch_router_choices(o), valid, e) : ch_router_k(factor, valid, e);
}

int ch_plugin_max_slots(const ch_router_spec *o, int n, int e, int sequence_length) {
  (void)sequence_length;
  const ch_plugin *p = ch_plugin_of(o->kind);
  int64_t train = capacity_of(p, o, n, e, 1), eval = capacity_of(p, o, n, e, 0),
          capacity = (train > eval ? train : eval) * e;
  int choices = ch_router_choices(o);
  int64_t asked = (int64_t)n * (choices && choices < e ? choices : e);
  return (int)(capacity < asked ? capacity : asked);
}

/* ---- a call */

static uint64_t below(uint64_t seed, int layer, uint64_t index, uint64_t bound) {
  return ch_rng_below(ch_rng_make(seed, CH_STREAM_SECOND_EXPERT, (uint32_t)layer), index, bound);
}

choir_plugin_call ch_plugin_call(const ch_plugin *p, const ch_router_spec *o, int n, int e, int valid, int training,
                                 char *message) {
  *message = 0;
  return (choir_plugin_call){.n = n,
                             .e = e,
                             .sequence_length = n,
                             .capacity = capacity_of(p, o, valid, e, training),
                             .training = training,
                             .options = o->plugin_options,
                             .message = message,
                             .below = below,
                             .choices = ch_router_choices(o)};
}

static int plugin_error(const ch_plugin *p, const choir_plugin_call *call) {
  char *message = call->message;
  message[CHOIR_PLUGIN_MESSAGE_BYTES - 1] = 0;
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %s", p->given.name,
                  *message ? message : "its function gave an error, without a message");
}

/* Checks all marks: 0 or 1, no padding assigned, capacity, and experts per token. */
static int check_marks(const ch_plugin *p, const choir_plugin_call *call, const uint8_t *chosen) {
  const char *name = p->given.name;
  int max = call->choices ? call->choices : call->e;
  for (int t = 0; t < call->n; t++) {
    const uint8_t *mark = chosen + (int64_t)t * call->e;
    int assigned = 0;
    for (int i = 0; i < call->e; i++) {
      if (mark[i] > 1)
        return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': chosen[%d,%d] is %d: must be 0 or 1", name, t, i, mark[i]);
      assigned += mark[i];
    }
    if (assigned && !call->valid[t])
      return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': token %d is padding (valid is 0), and an expert took it",
                      name, t);
    if (assigned > max)
      return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': token %d has %d experts, and choices allows %d", name, t,
                      assigned, max);
  }
  for (int i = 0; i < call->e; i++) {
    int load = 0;
    for (int t = 0; t < call->n; t++) load += chosen[(int64_t)t * call->e + i];
    if (load > call->capacity)
      return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': expert %d took %d tokens, and its capacity is %d", name, i,
                      load, call->capacity);
  }
  return CHOIR_OK;
}

int ch_plugin_choose(const ch_plugin *p, const choir_plugin_call *call, uint8_t *chosen) {
  memset(chosen, 0, (size_t)call->n * (size_t)call->e);
  if (p->given.choose(p->given.context, call, chosen)) return plugin_error(p, call);
  return check_marks(p, call, chosen);
}

/* value [n,e] must be finite for valid tokens; with marks [n,e], only where these are 1. */
static int check_finite(const ch_plugin *p, const choir_plugin_call *call, const char *what, const uint8_t *marks,
                        const float *value) {
  for (int t = 0; t < call->n; t++)
    for (int i = 0; i < call->e && call->valid[t]; i++) {
      int64_t at = (int64_t)t * call->e + i;
      if ((!marks || marks[at]) && !isfinite(value[at]))
        return ch_error(CHOIR_ERROR_NUMERIC, "router '%s': the %s of token %d at expert %d is %g", p->given.name, what,
                        t, i, (double)value[at]);
    }
  return CHOIR_OK;
}

static int set_gates(const ch_plugin *p, const choir_plugin_call *call, const uint8_t *chosen, float *gates) {
  if (!p->gates) return CHOIR_OK;
  if (p->gates(p->given.context, call, chosen, gates)) return plugin_error(p, call);
  return check_finite(p, call, "gate", chosen, gates);
}

static int set_loss(const ch_plugin *p, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                    float *gradient) {
  if (!p->given.loss) return CHOIR_OK;
  if (p->given.loss(p->given.context, call, chosen, loss, gradient)) return plugin_error(p, call);
  if (!isfinite(*loss)) return ch_error(CHOIR_ERROR_NUMERIC, "router '%s': its loss is %g", p->given.name, *loss);
  return check_finite(p, call, "loss's gradient", NULL, gradient);
}

/* Fields that depend on other tokens are cleared. */
int ch_plugin_rank(const ch_plugin *p, const choir_plugin_call *call, float *ranking) {
  const choir_plugin_call alone = {.layer = call->layer,
                                   .n = call->n,
                                   .e = call->e,
                                   .scores = call->scores,
                                   .valid = call->valid,
                                   .options = call->options,
                                   .choices = call->choices,
                                   .message = call->message};
  memset(ranking, 0, (size_t)call->n * (size_t)call->e * sizeof *ranking);
  if (p->given.rank(p->given.context, &alone, ranking)) return plugin_error(p, call);
  return check_finite(p, call, "ranking", NULL, ranking);
}

/* ---- in a layer */

/* Host arrays of a call; NULL if the router does not define the function. */
typedef struct {
  const real *read, *stored_state;  /* the layer's scores and state */
  float *scores, *gates, *gradient; /* of `loss` */
  float *ranking;                   /* of `rank` */
  double loss;
  double *state; /* [e] */
  uint8_t *valid, *chosen;
  real *made, *cutoff; /* [n,e] gates, ranking, or the loss's gradient, for ops; [e] */
} arrays;

static arrays arrays_new(ch_exec *x, const ch_route_args *a, const ch_plugin *p, choir_plugin_call *call) {
  ch_arena *host = &ch_host(x)->scratch;
  size_t n = (size_t)a->n, e = (size_t)a->e, cells = n * e;
  if (a->router->reads == CHOIR_READS_IDS) call->tokens = ch_download(x, a->tokens.id, n * sizeof(int32_t));
  return (arrays){.read = a->routing->scores ? ch_download(x, a->routing->scores, cells * sizeof(real)) : NULL,
                  .stored_state = p->observe && a->router_state.thresholds
                                      ? ch_download(x, a->router_state.thresholds, e * sizeof(real))
                                      : NULL,
                  .scores = CH_NEW_HOST(host, float, cells),
                  .gates = p->gates ? CH_NEW_HOST(host, float, cells) : NULL,
                  .gradient = p->given.loss ? CH_NEW_HOST(host, float, cells) : NULL,
                  .ranking = p->given.rank ? CH_NEW_HOST(host, float, cells) : NULL,
                  .state = CH_NEW_HOST(host, double, e),
                  .valid = CH_NEW_HOST(host, uint8_t, n),
                  .chosen = CH_NEW_HOST(host, uint8_t, cells),
                  .made = p->gates || p->given.loss || p->given.rank ? CH_NEW_HOST(host, real, cells) : NULL,
                  .cutoff = CH_NEW_HOST(host, real, e)};
}

static int same_on_ranks(ch_exec *x, const ch_plugin *p, const char *result, uint64_t hash) {
  char what[80];
  snprintf(what, sizeof what, "%s of router '%s'", result, p->given.name);
  const ch_fact facts[] = {{what, hash}};
  return CH_SAME(x->comm, facts);
}

/* Checks that all ranks have the same assignment, since transfers of rows would not match otherwise. */
static int same_choice(ch_exec *x, const ch_plugin *p, const arrays *of, size_t cells) {
  uint64_t hash = of->gates ? XXH64(of->gates, cells * sizeof *of->gates, 0) : 0;
  if (of->gradient) hash = XXH64(of->gradient, cells * sizeof *of->gradient, XXH64(&of->loss, sizeof of->loss, hash));
  if (of->ranking) hash = XXH64(of->ranking, cells * sizeof *of->ranking, hash);
  return same_on_ranks(x, p, "choice", XXH64(of->chosen, cells, hash));
}

/* Warns once if the assignment is empty: the layer then has no effect. */
static void warn_unused(const ch_route_args *a, const ch_plugin *p, const arrays *of, const choir_plugin_call *call) {
  size_t cells = (size_t)a->n * (size_t)a->e;
  if (!a->d || !call->capacity || memchr(of->chosen, 1, cells) ||
      __atomic_exchange_n(&((ch_plugin *)p)->warned_unused, 1, __ATOMIC_RELAXED))
    return;
  ch_notice("layer %d: router '%s' took none of %d tokens%s: experts do nothing here", call->layer, p->given.name, a->n,
            call->training ? " in training" : "");
}

/* The arguments of a layer's call. */
static void set_call(const ch_route_args *a, const arrays *of, choir_plugin_call *call) {
  size_t cells = (size_t)a->n * (size_t)a->e;
  for (size_t i = 0; i < cells; i++) of->scores[i] = of->read ? (float)of->read[i] : 0;
  for (int t = 0; t < a->n; t++) of->valid[t] = !a->tokens.mask || a->tokens.mask[t];
  call->layer = (int)a->draws.rng.sub;
  call->sequence_length = a->sequence_length > 0 ? a->sequence_length : a->n;
  call->seed = a->draws.rng.seed;
  call->first = a->draws.base;
  for (int i = 0; i < a->e; i++) of->state[i] = of->stored_state ? (double)of->stored_state[i] : 0;
  call->state = of->state;
  call->scores = of->scores;
  call->valid = of->valid;
}

/* Ends the step, evaluation or generation. */
static void refuse(ch_exec *x, const ch_route_args *a, const choir_plugin_call *call, int code) {
  if (a->d) ch_error_in(code, "layer %d", call->layer);
  ch_exec_refuse(ch_host(x), code);
}

/* Calls the router with the scores of all ranks. After an error the assignment is empty, on every rank. */
static void call_router(ch_exec *x, const ch_route_args *a, const ch_plugin *p, arrays *of, choir_plugin_call *call) {
  size_t cells = (size_t)a->n * (size_t)a->e;
  set_call(a, of, call);
  if (of->gates) memset(of->gates, 0, cells * sizeof *of->gates);
  if (of->gradient) memset(of->gradient, 0, cells * sizeof *of->gradient);
  int code = check_finite(p, call, "score", NULL, of->scores);
  if (!code) code = ch_plugin_choose(p, call, of->chosen);
  if (!code) code = set_gates(p, call, of->chosen, of->gates);
  if (!code) code = set_loss(p, call, of->chosen, &of->loss, of->gradient);
  if (!code && of->ranking) code = ch_plugin_rank(p, call, of->ranking);
  code = ch_comm_agree(x->comm, code);
  if (!code) code = same_choice(x, p, of, cells);
  if (!code) return warn_unused(a, p, of, call);
  refuse(x, a, call, code);
  memset(of->chosen, 0, cells);
}

/* The lowest score among the expert's tokens. */
static real lowest_score(const ch_route_args *a, const arrays *of, int i) {
  real lowest = (real)INFINITY;
  for (int64_t at = i; at < (int64_t)a->n * a->e && of->read; at += a->e)
    if (of->chosen[at] && of->read[at] < lowest) lowest = of->read[at];
  return lowest;
}

/* The m-th highest ranking, where m is the number of the expert's tokens. */
static real lowest_ranking(const ch_route_args *a, const arrays *of, int i) {
  int load = 0, count = 0;
  for (int t = 0; t < a->n; t++) {
    int64_t at = (int64_t)t * a->e + i;
    load += of->chosen[at];
    if (of->valid[t]) of->made[count++] = (real)of->ranking[at];
  }
  return load ? ch_kth_largest(of->made, count, load) : (real)INFINITY;
}

static void fill_cutoffs(const ch_route_args *a, const arrays *of) {
  for (int i = 0; i < a->e; i++) of->cutoff[i] = of->ranking ? lowest_ranking(a, of, i) : lowest_score(a, of, i);
}

/* Applies the router's custom gates [n,e], if any. */
static void set_custom_gates(ch_exec *x, const ch_route_args *a, const arrays *of) {
  size_t cells = (size_t)a->n * (size_t)a->e;
  for (size_t i = 0; i < cells && !ch_counting(x); i++) of->made[i] = (real)of->gates[i];
  CH_OP(x, gate, .rule = CH_GATE_SCORE, .record = &a->routing->record,
        .score = ch_upload(&x->scratch, of->made, cells * sizeof *of->made));
}

/* Applies the router's custom loss and its gradient, which is 0 for padding. */
static void set_custom_loss(ch_exec *x, const ch_route_args *a, const arrays *of) {
  size_t cells = (size_t)a->n * (size_t)a->e, e = (size_t)a->e;
  for (size_t i = 0; i < cells && !ch_counting(x); i++)
    of->made[i] = of->valid[i / e] ? a->scale.aux * (real)of->gradient[i] : 0;
  ch_write(x, a->routing->counts.aux_loss, &of->loss, sizeof of->loss);
  ch_write(x, a->routing->dloss, of->made, cells * sizeof *of->made);
}

/* The experts of each token from the record, for the load-balancing loss. */
static ch_choices choices_of(ch_exec *x, const ch_route_args *a) {
  ch_choices c = {.per_token = a->router->loss == CHOIR_LOSS_BALANCE ? ch_router_choices(a->options) : 0};
  if (!c.per_token) return c;
  const ch_record *r = &a->routing->record;
  size_t count = (size_t)a->n * (size_t)c.per_token;
  int *choice = CH_NEW_HOST(&ch_host(x)->scratch, int, count);
  const int *begin = ch_download(x, r->expert_begin, ((size_t)a->e + 1) * sizeof *begin),
            *token = ch_download(x, r->slot_token, (size_t)r->max_slots * sizeof *token);
  for (size_t i = 0; i < count && !ch_counting(x); i++) choice[i] = -1;
  for (int i = 0; i < a->e && !ch_counting(x); i++)
    for (int s = begin[i]; s < begin[i + 1]; s++) {
      int *of = choice + (int64_t)token[s] * c.per_token;
      while (*of >= 0) of++;
      *of = i;
    }
  c.choice = (int CH_DEV *)ch_upload(&x->scratch, choice, count * sizeof *choice);
  return c;
}

void ch_plugin_route(ch_exec *x, const ch_route_args *a) {
  const ch_plugin *p = ch_plugin_of(a->router);
  ch_routing *r = a->routing;
  CH_SCRATCH(x);
  char message[CHOIR_PLUGIN_MESSAGE_BYTES];
  int valid = ch_valid_count(a->tokens.mask, a->n);
  choir_plugin_call call = ch_plugin_call(p, a->options, a->n, a->e, valid, a->training != 0, message);
  arrays of = arrays_new(x, a, p, &call);
  r->counts.capacity = call.capacity;
  if (!ch_counting(x)) {
    call_router(x, a, p, &of, &call);
    fill_cutoffs(a, &of);
  }
  ch_write(x, r->counts.cutoff, of.cutoff, (size_t)a->e * sizeof *of.cutoff);
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, of.chosen, (size_t)a->n * (size_t)a->e), .record = &r->record);
  ch_router_demand_is_load(x, a);
  if (p->router.reads == CHOIR_READS_IDS)
    CH_OP(x, gate, .rule = CH_GATE_EVEN, .count = call.choices, .record = &r->record);
  else if (of.gates)
    set_custom_gates(x, a, &of);
  else
    ch_router_gates_from_scores(x, a);
  if (of.gradient) set_custom_loss(x, a, &of);
  ch_choices c = choices_of(x, a);
  if (c.per_token) ch_choices_balance(x, a, &c);
}

/* Ranking for threshold routing. After an error no token is assigned, on every rank. */
const real CH_DEV *ch_plugin_ranking(ch_exec *x, const ch_route_args *a) {
  const ch_plugin *p = ch_plugin_of(a->router);
  size_t cells = (size_t)a->n * (size_t)a->e;
  char message[CHOIR_PLUGIN_MESSAGE_BYTES];
  choir_plugin_call call = ch_plugin_call(p, a->options, a->n, a->e, 0, 0, message);
  arrays of = arrays_new(x, a, p, &call);
  if (!ch_counting(x)) {
    set_call(a, &of, &call);
    int code = check_finite(p, &call, "score", NULL, of.scores);
    if (!code) code = ch_plugin_rank(p, &call, of.ranking);
    code = ch_comm_agree(x->comm, code);
    if (!code) code = same_on_ranks(x, p, "ranking", XXH64(of.ranking, cells * sizeof *of.ranking, 0));
    for (size_t i = 0; i < cells; i++) of.made[i] = code ? -(real)INFINITY : (real)of.ranking[i];
    if (code) refuse(x, a, &call, code);
  }
  return ch_upload(&x->scratch, of.made, cells * sizeof *of.made);
}

/* Causal routing of a router that depends on no other token in evaluation. */
void ch_plugin_causal(ch_exec *x, const ch_route_args *a) {
  ch_route_args alone = *a;
  alone.training = 0;
  ch_plugin_route(x, &alone);
}

/* An error ends the step (ch_transformer_end_step). */
void ch_plugin_observe(ch_exec *x, const ch_route_args *a) {
  const ch_plugin *p = ch_plugin_of(a->router);
  size_t e = (size_t)a->e;
  CH_SCRATCH(x);
  ch_arena *host = &ch_host(x)->scratch;
  double *before = CH_NEW_HOST(host, double, e), *state = CH_NEW_HOST(host, double, e);
  int64_t *demand = CH_NEW_HOST(host, int64_t, e);
  real *moved = CH_NEW_HOST(host, real, e);
  const real *stored_state = ch_download(x, a->router_state.updated, e * sizeof *stored_state);
  const int *asked = ch_download(x, a->routing->counts.demand, e * sizeof *asked);
  if (ch_counting(x)) return;
  for (size_t i = 0; i < e; i++) before[i] = state[i] = (double)stored_state[i], demand[i] = asked[i];
  char message[CHOIR_PLUGIN_MESSAGE_BYTES];
  choir_plugin_call call = ch_plugin_call(p, a->options, 0, a->e, 0, 1, message);
  call.state = before;
  call.layer = a->router_state.layer;
  int code = p->observe(p->given.context, &call, demand, state) ? plugin_error(p, &call) : CHOIR_OK;
  for (size_t i = 0; i < e; i++) {
    moved[i] = (real)state[i];
    if (!code && !isfinite(moved[i]))
      code = ch_error(CHOIR_ERROR_NUMERIC, "router '%s': its state of expert %d is %g: must be a finite float",
                      p->given.name, (int)i, state[i]);
  }
  code = ch_comm_agree(x->comm, code);
  if (!code) code = same_on_ranks(x, p, "state", XXH64(state, e * sizeof *state, 0));
  if (!code) return ch_write(x, a->router_state.updated, moved, e * sizeof *moved);
  ch_error_in(code, "layer %d", a->router_state.layer);
  ch_exec_refuse(ch_host(x), code);
}

void ch_plugin_backward(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  if (ch_plugin_of(a->router)->gates)
    CH_OP(x, copy, .count = (int64_t)a->n * a->e, .y = a->routing->dscores);
  else
    ch_router_gates_backward(x, a);
  if (a->router->loss == CHOIR_LOSS_OWN)
    CH_OP(x, copy, .count = (int64_t)a->n * a->e, .x = a->routing->dloss, .y = a->routing->dscores, .accumulate = 1);
  ch_choices c = choices_of(x, a);
  if (c.per_token) ch_choices_balance_backward(x, a, &c);
}
