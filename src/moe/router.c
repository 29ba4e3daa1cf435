/* The registration list of routers, and what they share. A new router is one file and one row here. */
#include "moe/router.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/suggest.h"

/* clang-format off */
#define ROUTERS(row) \
  row(expert_choice) \
  row(gshard_top2) \
  row(switch_top1) \
  row(hash) \
  row(dense) \
  row(quantile_balanced) \
  row(random) \
  row(kmeans) \
  row(global_topk) \
  row(capped_expert_choice) \
  row(base)
/* clang-format on */

#define DECLARE(name) extern const ch_router ch_router_##name;
#define POINTER(name) &ch_router_##name,
#define NAME(name) #name,
ROUTERS(DECLARE)
const ch_router *const ch_routers[] = {ROUTERS(POINTER) NULL};
const char *const ch_router_names[] = {ROUTERS(NAME) NULL};
const char *const ch_router_option_names[] = {CH_ROUTER_OPTIONS(NAME) NULL};

const char *const ch_router_solvers[] = {"exact", "dykstra", NULL};
const char *const ch_router_scores[] = {"softmax", "sigmoid", NULL};

const ch_router *ch_router_find(const char *name) {
  for (int i = 0; ch_routers[i]; i++)
    if (!strcmp(ch_routers[i]->name, name)) return ch_routers[i];
  char nearest[128], list[256];
  ch_error(CHOIR_ERROR_ARGUMENT, "there is no router '%s'%s (routers: %s)", name,
           ch_did_you_mean(nearest, sizeof nearest, name, ch_router_names),
           ch_word_list(list, sizeof list, ch_router_names));
  return NULL;
}

/* Most factors have no exact double (1.1 * 100 is above 110): a part in 10^12 must not decide between two whole
 * numbers. */
static const double whole = 1e-12;

int ch_router_k(double capacity_factor, int n, int e) {
  double k = floor(capacity_factor * n / e * (1 + whole) + 0.5);
  return k < 1 ? (n > 0) : k > n ? n : (int)k;
}

int ch_router_capacity(double factor, int choices, int n, int e) {
  double capacity = ceil(factor * choices * n / e * (1 - whole));
  return capacity > n ? n : (int)capacity;
}

int ch_router_choices(const choir_router_options *o) {
  const ch_router *router = ch_router_find(o->name);
  return ch_router_takes(router, CH_ROUTER_TAKES(experts_per_token)) ? o->experts_per_token : router->choices;
}

int ch_router_draws_per_sequence(const choir_router_options *o) { return o->consistency_weight > 0 ? 2 : 1; }

int ch_router_can_be_causal(const ch_router *router) { return router->causal || router->looks == CH_LOOKS_NOWHERE; }

int ch_router_most_experts(const choir_router_options *o, int e) {
  int choices = ch_router_choices(o), most = choices ? choices : o->cap ? o->cap : e;
  return most < e ? most : e;
}

double ch_router_factor(const choir_router_options *o, int training) {
  return !training && o->eval_capacity_factor > 0 ? o->eval_capacity_factor : o->capacity_factor;
}

int ch_router_check_sizes(const choir_router_options *o, int n, int e) {
  if (n < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens; there must be at least 1", o->name, n);
  if (n > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->name, n);
  if (e < 1) return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d experts; there must be at least 1", o->name, e);
  return CHOIR_OK;
}

int ch_router_check_ids(const ch_router *router, int n, const int32_t *token) {
  if (router->reads != CH_READS_IDS) return CHOIR_OK;
  if (!token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' goes by token ids, and none were given (tokens)", router->name);
  for (int t = 0; t < n; t++)
    if (token[t] < 0)
      return ch_error(CHOIR_ERROR_ARGUMENT, "tokens[%d] is %d; router '%s' needs ids of at least 0", t, token[t],
                      router->name);
  return CHOIR_OK;
}

void ch_router_gates_from_scores(ch_exec *x, const ch_route_args *a) {
  x->ops->gate(x, &(ch_gate_args){.rule = CH_GATE_SCORE, .record = a->record, .score = a->scores});
}

void ch_router_gates_backward(ch_exec *x, const ch_route_args *a) {
  x->ops->gate_backward(
      x, &(ch_gate_args){.rule = CH_GATE_SCORE, .record = a->record, .dgate = a->dgate, .dscore = a->dscores});
}

void ch_router_demand_is_load(ch_exec *x, const ch_route_args *a) {
  x->ops->loads(x, &(ch_loads_args){.record = a->record, .demand = a->counts->demand});
}

const char *const *choir_router_names(void) { return ch_router_names; }

int choir_router_default(const char *name, choir_router_options *options) {
  const ch_router *router = ch_router_find(name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  *options = router->defaults;
  return CHOIR_OK;
}
