/* Routes a matrix of scores, without a model. */
#ifndef CHOIR_ROUTER_H
#define CHOIR_ROUTER_H

#include "choir/config.h"
#include "choir/plugin.h"
#include "choir/routing.h"

CHOIR_C_BEGIN

/* The names of the routers, NULL-terminated. */
CHOIR_API const char *const *choir_router_names(void);

/* Returns 1 if, with the config's router, the experts of a token can depend on other tokens, in training or in
 * evaluation ("expert_choice": always, "base": in training), else 0. The result depends on the options: capacity and
 * priority if tokens choose, the pool if experts choose. -1: no config. */
CHOIR_API int choir_router_looks_across_tokens(const choir_config *config, int training);

/* Dependencies of a token's experts in evaluation, besides the token itself and earlier tokens of its sequence. */
typedef struct choir_routing_properties {
  int looks_ahead;      /* later tokens of its sequence */
  int depends_on_batch; /* other sequences of the batch */
  int reads_ids;        /* the router reads token ids, not scores */
  int draws;            /* training uses random numbers, whatever the options are */
  int64_t reserved[4];
} choir_routing_properties;

/* The names of a router's routings (choir_model_set_routing), NULL-terminated, the router's default routing first;
 * NULL: unknown router. */
CHOIR_API const char *const *choir_router_routings(const char *router);

/* Returns the declared properties of a routing; `choir probe` measures them. A routing can generate text if it depends
 * neither on later tokens nor on the batch. CHOIR_ERROR_ARGUMENT: an unknown router, or a routing that it does not
 * have. */
CHOIR_API int choir_router_get_properties(const char *router, const char *routing,
                                          choir_routing_properties *properties);

/* A one-line description of a router; NULL: unknown name. */
CHOIR_API const char *choir_router_summary(const char *name);

/* The formula of the gate of a token at an expert. */
typedef enum {
  CHOIR_GATES_EVEN,    /* 1 / experts per token: constant */
  CHOIR_GATES_SCORE,   /* the score; with normalize_gates, divided by the sum of the token's gates */
  CHOIR_GATES_SHARE,   /* the score, divided by the sum of the scores of the token's chosen experts, including dropped
                          choices */
  CHOIR_GATES_SIGMOID, /* the sigmoid of the logit */
  CHOIR_GATES_OWN      /* a plug-in's */
} choir_router_gates;

/* The loss that a router adds, times router.aux_loss_weight. */
typedef enum { CHOIR_LOSS_NONE, CHOIR_LOSS_BALANCE, CHOIR_LOSS_OWN } choir_router_loss;

/* The state that a router carries from step to step. */
typedef enum {
  CHOIR_STATE_NONE,
  CHOIR_STATE_CUTOFFS,   /* running means of cut-off scores: the thresholds of causal routing */
  CHOIR_STATE_PRICES,    /* running means of biases (dual prices of load balancing) that are subtracted from scores */
  CHOIR_STATE_BIASES,    /* biases that each step updates by the demand of the experts */
  CHOIR_STATE_CENTROIDS, /* the router weight holds centroids */
  CHOIR_STATE_OWN        /* a plug-in's (observe) */
} choir_router_state;

/* Properties of a router that its options do not change. */
typedef struct choir_router_info {
  choir_reads reads;
  choir_router_gates gates;
  choir_router_loss loss;
  choir_router_state state;
  int choices;     /* K, experts per token; the default if experts_per_token is an option; 0: experts choose */
  int draws;       /* training uses random numbers, whatever the options are */
  int is_plugin;   /* uses the plug-in interface (some built-in routers do, too) */
  int has_ranking; /* a plug-in with `rank`: thresholds apply to its ranking, not to scores */
  int64_t reserved[4];
} choir_router_info;

/* Describes a router by its properties. CHOIR_ERROR_ARGUMENT: an unknown name. */
CHOIR_API int choir_router_describe(const char *name, choir_router_info *info);

/* The options that a router takes, by number, 0 <= index < count; all other options are refused. field->value is the
 * default of this router. CHOIR_ERROR_ARGUMENT: no such option or router. */
CHOIR_API int choir_router_option_count(const char *name); /* 0 also for an unknown router */
CHOIR_API int choir_router_option_at(const char *name, int index, choir_field *field);

/* Scores to route. All fields except the first four may be 0. Of the config only the router section is used, without
 * capacity_schedule and capacity_start. */
typedef struct choir_route_request {
  const choir_config *config;
  int n, e;
  const float *scores;   /* [n,e], row-major, finite; not negative where gates are scores */
  const int32_t *tokens; /* [n] token ids, required by `hash` and `random`; or NULL */
  const uint8_t *valid;  /* [n] 0 for padding; NULL: no padding */
  int is_logits;         /* apply router.score first; -inf excludes the expert */
  int sequence_length;   /* for pools "sequence" and "position"; 0: one sequence */
  int training;          /* use the training capacity factor, and sample */
  uint64_t seed;         /* of random choices */
  const float
      *thresholds; /* [e] for threshold routing, or NULL: token t goes to expert i if its score reaches thresholds[i];
              with router.cap b, to the b experts with the largest margin. Pools and capacity are ignored */
  int layer;       /* layer index for the random numbers of `random` and plug-ins; else 0 */
  int64_t reserved[6];
} choir_route_request;

/* gates [n,e] receives the combine weight, 0 if not routed. stats may be NULL; else release with
 * choir_route_stats_clear. CHOIR_ERROR_ARGUMENT (also an option that the router does not accept, and thresholds for a
 * router without thresholds), CHOIR_ERROR_NUMERIC (NaN: row and column), CHOIR_ERROR_MEMORY. */
CHOIR_API int choir_route(const choir_route_request *request, float *gates, choir_route_stats *stats);

/* Like choir_route, but calls `callback` once with the routing: slots, cut-offs, certificate (routing.h). Errors as
 * choir_route. */
CHOIR_API int choir_route_visit(const choir_route_request *request, choir_routing_callback callback, void *context);

/* Backward of choir_route for the same request, which is routed again. dscores [n,e] is set to the gradient of L =
 * <dgates, gates> + aux_weight * aux_loss with respect to `scores`; if `scores` are logits, L also includes
 * router.z_loss_weight * z_loss. aux_loss and z_loss are the unweighted values of the statistics. The assignment is
 * constant: only dgates [n,e] (NULL: 0) of assigned pairs are used. Routers whose gates do not depend on scores give 0.
 * Errors as choir_route. */
CHOIR_API int choir_route_backward(const choir_route_request *request, const float *dgates, double aux_weight,
                                   float *dscores);

CHOIR_C_END
#endif
