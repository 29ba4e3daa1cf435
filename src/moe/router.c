/* The list of native routers, one row each, and their common functions. */
#include "moe/router.h"

#include <math.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/removed.h"
#include "base/text.h"

/* clang-format off */
#define ROUTERS(row) \
  row(expert_choice) \
  row(topk) \
  row(gshard_top2) \
  row(switch_top1) \
  row(hash) \
  row(dense) \
  row(quantile_balanced) \
  row(bias_balanced) \
  row(kmeans) \
  row(global_topk) \
  row(capped_expert_choice) \
  row(base)
/* clang-format on */

#define DECLARE(name) extern const ch_router ch_router_##name;
#define POINTER(name) &ch_router_##name,
#define NAME(name) #name,
ROUTERS(DECLARE)
#define ONE(name) +1
enum { OWN = 0 ROUTERS(ONE), MAX_ROUTERS = OWN + CH_PLUGINS };
const ch_router *ch_routers[MAX_ROUTERS + 1] = {ROUTERS(POINTER)};
const char *ch_router_names[MAX_ROUTERS + 1] = {ROUTERS(NAME)};
const char *const ch_router_option_names[] = {
#define FIELD(kind, name, ...) #name,
#include "config/router.def"
#undef FIELD
    NULL};

int ch_router_takes(const ch_router *router, ch_router_option option) {
  const ch_router_options *takes = &router->takes;
  switch (option) {
#define TAKES_scores(name) ch_router_scored(router)
#define TAKES_learned(name) (router->gates != CHOIR_GATES_EVEN)
#define TAKES_gates(name) (router->gates == CHOIR_GATES_SCORE || router->gates == CHOIR_GATES_SHARE)
#define TAKES_loss(name) (router->loss != CHOIR_LOSS_NONE)
#define TAKES_balance(name) (router->loss == CHOIR_LOSS_BALANCE)
#define TAKES_capacity(name) takes->capacity
#define TAKES_pools(name) takes->pools
#define TAKES_named(name) takes->name
#define OPTION(takers, kind, name, ...) \
  case CH_OPTION_##name:                \
    return TAKES_##takers(name);
#include "config/router.def"
  }
  return 0;
}

const ch_router **ch_router_plugins(void) { return ch_routers + OWN; }

const ch_router *ch_router_find(const char *name) {
  for (int i = 0; ch_routers[i]; i++)
    if (!strcmp(ch_routers[i]->name, name)) return ch_routers[i];
  char nearest[128], list[256];
  ch_error(CHOIR_ERROR_ARGUMENT, "there is no router '%s'%s (routers: %s)", name,
           ch_did_you_mean(nearest, sizeof nearest, name, ch_router_names),
           ch_word_list(list, sizeof list, ch_router_names));
  return NULL;
}

/* Most factors have no exact double (1.1 * 100 is above 110): a relative error of 10^-12 must not change a rounded
 * integer. */
static const double whole = 1e-12;

int ch_router_k(double capacity_factor, int n, int e) {
  double k = floor(capacity_factor * n / e * (1 + whole) + 0.5);
  return k < 1 ? (n > 0) : k > n ? n : (int)k;
}

int ch_router_capacity(double factor, int choices, int n, int e) {
  double capacity = ceil(factor * choices * n / e * (1 - whole));
  return capacity > n ? n : (int)capacity;
}

/* clang-format off */
ch_router_spec ch_router_default(const ch_router *router) {
  ch_router_spec spec = router->defaults;
  spec.kind = router;
#define FIELD(kind, name, otherwise, ...) if (spec.name == 0) spec.name = otherwise;
#include "config/router.def"
#undef FIELD
  return spec;
}
/* clang-format on */

int ch_router_choices(const ch_router_spec *o) {
  return ch_router_takes(o->kind, CH_OPTION_experts_per_token) ? o->experts_per_token : o->kind->choices;
}

double ch_router_even_choices(const ch_router_spec *o, int e) {
  return (double)ch_router_choices(o) * e / (e + o->null_experts);
}

int ch_router_draws_per_sequence(const ch_router_spec *o) { return o->consistency_weight > 0 ? 2 : 1; }

int ch_router_can_be_causal(const ch_router *router) {
  return router->causal || router->depends_on == CHOIR_DEPENDS_ON_NONE;
}

int ch_router_max_experts(const ch_router_spec *o, int e) {
  int choices = ch_router_choices(o), max = choices ? choices : o->cap ? o->cap : e;
  return max < e ? max : e;
}

double ch_router_factor(const ch_router_spec *o, int training) {
  return !training && o->eval_capacity_factor > 0 ? o->eval_capacity_factor : o->capacity_factor;
}

double ch_router_factor_max(const ch_router_spec *o) {
  return o->capacity_factor == 0 ? 0 : fmax(o->capacity_factor, o->eval_capacity_factor);
}

double ch_router_factor_planned(const ch_exec *x, const ch_route_args *a) {
  return ch_counting(x) ? ch_router_factor_max(a->options) : ch_router_factor(a->options, a->training);
}

double ch_router_scheduled(const ch_router_spec *o, double c, double share) {
  const double width = 0.2, mean = 0.4950995; /* of exp(-(share - 1/2)^2 / (2 width^2)) over (0,1) */
  double away = (share - 0.5) / width;
  if (o->capacity_schedule == CH_CAPACITY_LINEAR) return c * (0.5 + share);
  if (o->capacity_schedule == CH_CAPACITY_REVERSE) return c * (1.5 - share);
  if (o->capacity_schedule == CH_CAPACITY_GAUSSIAN) return c * exp(-away * away / 2) / mean;
  return c;
}

double ch_router_scheduled_max(const ch_router_spec *o, double c) {
  return fmax(ch_router_scheduled(o, c, 0.5), fmax(ch_router_scheduled(o, c, 0), ch_router_scheduled(o, c, 1)));
}

int ch_router_check_sizes(const ch_router_spec *o, int n, int e) {
  if (n < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens; there must be at least 1", o->kind->name, n);
  if (n > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->kind->name, n);
  if (e < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d experts; there must be at least 1", o->kind->name, e);
  return CHOIR_OK;
}

int ch_router_check_ids(const ch_router *router, int n, const int32_t *token) {
  if (router->reads != CHOIR_READS_IDS) return CHOIR_OK;
  if (!token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' goes by token ids, and none were given (tokens)", router->name);
  for (int t = 0; t < n; t++)
    if (token[t] < 0)
      return ch_error(CHOIR_ERROR_ARGUMENT, "tokens[%d] is %d; router '%s' needs ids of at least 0", t, token[t],
                      router->name);
  return CHOIR_OK;
}

void ch_router_demand_is_load(ch_exec *x, const ch_route_args *a) {
  CH_OP(x, loads, .record = &a->routing->record, .demand = a->routing->counts.demand);
}

const char *const *choir_router_names(void) { return ch_router_names; }

/* ---- dependencies of a routing, for probe, evaluation, generation and docs */

#define THRESHOLD "threshold"
#define POOLS "batch", "sequence", "position", "group"

/* If experts choose, a token depends on its whole pool. A group is a range of the flattened batch, so it may contain
 * parts of several sequences. */
static const struct {
  const char *name;
  choir_routing_properties properties;
} pools[] = {{"batch", {.looks_ahead = 1, .depends_on_batch = 1}},
             {"sequence", {.looks_ahead = 1}},
             {"position", {.depends_on_batch = 1}},
             {"group", {.looks_ahead = 1, .depends_on_batch = 1}}};

/* The names of a router's routings, NULL-terminated. */
static const char *const *routings_of(const ch_router *router) {
  static const char *const names[2][2][6] = {{{"batch"}, {"batch", THRESHOLD}}, {{POOLS}, {POOLS, THRESHOLD}}};
  return names[ch_router_takes(router, CH_OPTION_pool)][ch_router_can_be_causal(router)];
}

const char *const *choir_router_routings(const char *router) {
  const ch_router *found = router ? ch_router_find(router) : NULL;
  return found ? routings_of(found) : NULL;
}

int ch_router_check_routing(const ch_router *router, const char *routing) {
  const char *const *names = routings_of(router);
  char nearest[128], list[128];
  for (int i = 0; names[i]; i++)
    if (!strcmp(names[i], routing)) return CHOIR_OK;
  CH_TRY(ch_check_removed("routing", routing));
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' has no routing '%.40s'%s (it has %s)", router->name, routing,
                  ch_did_you_mean(nearest, sizeof nearest, routing, names), ch_word_list(list, sizeof list, names));
}

static choir_depends_on depends_on_with(const ch_router_spec *o, int training) {
  return o->kind->depends_on_with ? o->kind->depends_on_with(o, training) : o->kind->depends_on;
}

static choir_routing_properties looks_of(const ch_router_spec *o, const char *routing) {
  const choir_routing_properties everything = {.looks_ahead = 1, .depends_on_batch = 1};
  const ch_router *router = o->kind;
  choir_depends_on depends_on = depends_on_with(o, 0);
  int alone = depends_on == CHOIR_DEPENDS_ON_NONE || depends_on == CHOIR_DEPENDS_ON_ALL_IN_TRAINING;
  if (alone || !strcmp(routing, THRESHOLD)) return (choir_routing_properties){0};
  if (ch_router_takes(router, CH_OPTION_pool))
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
      if (!strcmp(pools[i].name, routing)) return pools[i].properties;
  /* earlier tokens of the batch are in the same sequence or in earlier sequences */
  if (depends_on == CHOIR_DEPENDS_ON_PAST) return (choir_routing_properties){.depends_on_batch = 1};
  return everything;
}

choir_routing_properties ch_router_properties(const ch_router_spec *o, const char *routing) {
  const ch_router *router = o->kind;
  choir_routing_properties p = looks_of(o, routing);
  p.reads_ids = router->reads == CHOIR_READS_IDS;
  p.draws = router->draws;
  return p;
}

int choir_router_get_properties(const char *router, const char *routing, choir_routing_properties *properties) {
  CH_ENTER(router, routing, properties);
  const ch_router *found = ch_router_find(router);
  if (!found) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_router_check_routing(found, routing));
  const ch_router_spec defaults = ch_router_default(found);
  *properties = ch_router_properties(&defaults, routing);
  return CHOIR_OK;
}

int choir_router_looks_across_tokens(const choir_config *config, int training) {
  if (!config) return -1;
  const ch_router_spec *o = &config->model.router;
  if (training) return depends_on_with(o, 1) != CHOIR_DEPENDS_ON_NONE;
  choir_routing_properties p = ch_router_properties(o, ch_router_pools[o->pool]);
  return p.looks_ahead || p.depends_on_batch;
}
