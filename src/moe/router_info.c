/* Properties of a router that its options do not change. */
#include "base/enter.h"
#include "moe/router.h"

static choir_router_state state_of(const ch_router *router) {
  if (!router->observe) return CHOIR_STATE_NONE;
  if (ch_router_has_centroids(router)) return CHOIR_STATE_CENTROIDS;
  if (router->causal == ch_router_by_thresholds) return CHOIR_STATE_CUTOFFS;
  if (router->plugin) return CHOIR_STATE_OWN;
  return router->update_per_step ? CHOIR_STATE_BIASES : CHOIR_STATE_PRICES;
}

int choir_router_describe(const char *name, choir_router_info *info) {
  CH_ENTER(name, info);
  const ch_router *router = ch_router_find(name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  const ch_router_spec defaults = ch_router_default(router);
  *info = (choir_router_info){.reads = router->reads,
                              .gates = router->gates,
                              .loss = router->loss,
                              .state = state_of(router),
                              .choices = ch_router_choices(&defaults),
                              .draws = router->draws,
                              .is_plugin = router->plugin,
                              .has_ranking = router->ranking != NULL};
  return CHOIR_OK;
}
