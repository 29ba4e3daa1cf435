/* What a routing looks at: one answer for probe, evaluation, generation and docs, from what routers declare and pools.
 */
#include <string.h>

#include "base/error.h"
#include "base/suggest.h"
#include "moe/router.h"

static const char threshold[] = "threshold", adaptive[] = "adaptive";

/* Experts that choose among the tokens of a pool look at all of it. A group is cut from the flattened batch: it may end
 * within a sequence and span several. */
static const struct {
  const char *name;
  choir_routing_properties properties;
} pools[] = {{"batch", {.looks_ahead = 1, .depends_on_batch = 1}},
             {"sequence", {.looks_ahead = 1}},
             {"position", {.depends_on_batch = 1}},
             {"group", {.looks_ahead = 1, .depends_on_batch = 1}}};

/* The names go to `names`, NULL behind them; returns how many. */
enum { MOST = 16 };
static int routings(const ch_router *router, const char *names[MOST]) {
  int count = 0;
  if (ch_router_takes(router, CH_ROUTER_TAKES(pool)))
    while (ch_router_pools[count]) {
      names[count] = ch_router_pools[count];
      count++;
    }
  else
    names[count++] = pools[0].name;
  if (ch_router_can_be_causal(router)) names[count++] = threshold;
  if (ch_router_adapts(router)) names[count++] = adaptive;
  names[count] = NULL;
  return count;
}

const char *choir_router_routing(const char *router, int index) {
  const char *names[MOST];
  const ch_router *found = ch_router_find(router);
  if (!found) return NULL;
  int count = routings(found, names);
  return index >= 0 && index < count ? names[index] : NULL;
}

int ch_router_check_routing(const ch_router *router, const char *routing) {
  const char *names[MOST];
  char nearest[128], list[128];
  routings(router, names);
  for (int i = 0; names[i]; i++)
    if (!strcmp(names[i], routing)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' has no routing '%.40s'%s (it has %s)", router->name, routing,
                  ch_did_you_mean(nearest, sizeof nearest, routing, names), ch_word_list(list, sizeof list, names));
}

static choir_routing_properties looks_of(const ch_router *router, const char *routing) {
  const choir_routing_properties everything = {.looks_ahead = 1, .depends_on_batch = 1};
  int alone = router->looks == CH_LOOKS_NOWHERE || router->looks == CH_LOOKS_IN_TRAINING;
  if (alone || !strcmp(routing, threshold) || !strcmp(routing, adaptive)) return (choir_routing_properties){0};
  if (ch_router_takes(router, CH_ROUTER_TAKES(pool)))
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
      if (!strcmp(pools[i].name, routing)) return pools[i].properties;
  /* earlier tokens of the batch: those of the sequence itself, and of the sequences before it */
  if (router->looks == CH_LOOKS_BACK) return (choir_routing_properties){.depends_on_batch = 1};
  return everything;
}

choir_routing_properties ch_router_properties(const ch_router *router, const char *routing) {
  choir_routing_properties p = looks_of(router, routing);
  p.reads_ids = router->reads == CH_READS_IDS;
  p.draws = router->draws;
  return p;
}

int choir_router_properties(const char *router, const char *routing, choir_routing_properties *properties) {
  const ch_router *found = ch_router_find(router);
  if (!found) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_router_check_routing(found, routing));
  *properties = ch_router_properties(found, routing);
  return CHOIR_OK;
}

int choir_router_looks_across_tokens(const char *name) {
  const ch_router *router = ch_router_find(name);
  if (!router) return -1;
  choir_routing_properties p = ch_router_properties(router, pools[0].name);
  return p.looks_ahead || p.depends_on_batch;
}

int choir_router_looks_in_training(const char *name) {
  const ch_router *router = ch_router_find(name);
  return router ? router->looks != CH_LOOKS_NOWHERE : -1;
}
