/* A router: scores in, routing record out, and the way back. A new router is one file and one row in router.c. */
#ifndef CH_MOE_ROUTER_H
#define CH_MOE_ROUTER_H

#include "base/rng.h"
#include "choir/router.h"
#include "choir/routing.h"
#include "config/config.h"
#include "op/op.h"

/* Counts of one routing, on top of what the record says. The host knows the first two beforehand, or from a solver that
 * ran there; the router's ops write the rest. */
typedef struct ch_route_counts {
  int capacity;                  /* per expert; at most the number of tokens. Set by the router */
  choir_certificate certificate; /* all 0 where nothing was assigned by a solver */
  int CH_DEV *demand;            /* [e] tokens that asked for the expert. Set by the router */
  real CH_DEV *cutoff; /* [e] scores from which on the expert takes tokens; +infinity: it took none. For `observe` */
  int64_t CH_DEV *dropped; /* [1] choices that found their expert full; comes in 0 */
  double CH_DEV *aux_loss; /* [1] unweighted; comes in 0 */
} ch_route_counts;

/* Output of op `tally`: sums and counts as in ch_tally_args. */
enum { CH_TALLY_SUMS = 3 };
#define CH_TALLY_COUNTS(e) (3 * (e) + 2)
typedef struct ch_route_tally {
  double CH_DEV *sums;    /* [CH_TALLY_SUMS] */
  int64_t CH_DEV *counts; /* [CH_TALLY_COUNTS(e)] */
} ch_route_tally;

/* The options of routers (config/router.def), by number. */
typedef enum {
#define FIELD(kind, name, ...) CH_OPTION_##name,
#include "config/router.def"
#undef FIELD
} ch_router_option;

/* The options that a router takes, 1 each, on top of those that go with its scores, gates and loss: two groups, and
 * options by name. */
typedef struct ch_router_options {
  unsigned char capacity, pools;
#define MEMBER_scores(name)
#define MEMBER_learned(name)
#define MEMBER_gates(name)
#define MEMBER_loss(name)
#define MEMBER_balance(name)
#define MEMBER_capacity(name)
#define MEMBER_pools(name)
#define MEMBER_named(name) unsigned char name;
#define OPTION(takers, kind, name, ...) MEMBER_##takers(name)
#include "config/router.def"
} ch_router_options;

/* By the router's own rule; by thresholds, with no look at any other token. */
typedef enum { CH_NOT_CAUSAL, CH_BY_THRESHOLDS } ch_causal;

/* The result of a routing. Record, counts and tally are on the tape always, so that they can be looked at after an
 * evaluation too; the rest is for backward. */
typedef struct ch_routing {
  ch_record record; /* `route` fills every array except token_begin and token_slot; backward reads them all */
  ch_route_counts counts;
  ch_route_tally tally;
  real CH_DEV *gate_sum; /* [n] of each token's gates before they were scaled, or NULL: they were not */
  real CH_DEV *lse;      /* [n] log sum exp of each token's logits, or NULL: there is no z-loss */
  real CH_DEV *dloss;    /* [n,e] gradient of the router's own loss, times scale.aux, or NULL: it has none */
  /* [n,e] X Wg and S of these, or NULL if the router reads neither. With several ranks, logits have this rank's rows if
   * the router reads scores, else all rows; scores have this rank's rows if experts choose at their owners, else all
   * rows. A router reads logits or scores, never both. */
  real CH_DEV *logits, *scores;
  /* of backward */
  real CH_DEV *dgate;   /* [slots] */
  real CH_DEV *dscores; /* [n,e] out: gradient of what the router reads */
} ch_routing;

/* Allocates record and counts of a routing, and sets what comes in 0. */
static inline void ch_routing_new(ch_exec *x, ch_arena *a, ch_routing *r, int n, int e, int max_slots) {
  ch_record_alloc(a, &r->record, n, e, max_slots);
  r->counts = (ch_route_counts){.demand = CH_NEW(a, int, e), .cutoff = CH_NEW(a, real, e)};
  double CH_DEV *both = CH_NEW(a, double, 2);
  r->counts.aux_loss = both;
  r->counts.dropped = (int64_t CH_DEV *)(both + 1);
  ch_zero(x, both, 2 * sizeof *both);
}

/* What a caller knows about the n tokens. Each may be NULL. */
typedef struct ch_route_tokens {
  const uint8_t *mask;       /* [n] `valid` on the host, what shapes depend on */
  const uint8_t *masked;     /* [n] host: tokens that are to be guessed, for capacity_schedule; NULL: none */
  const uint8_t *assignment; /* [n,e] host, 0 or 1: forced assignment of tokens to experts; NULL: the router decides */
  const uint8_t CH_DEV *valid; /* [n] the tokens that take part, for ops; NULL: all */
  const int32_t CH_DEV *id;    /* [n] */
} ch_route_tokens;

/* Random numbers of jitter and sampling. */
typedef struct ch_route_draws {
  ch_rng rng;    /* seed and sub (the layer) count; who draws takes a stream */
  uint64_t base; /* index of the first token's numbers: tokens that went before in this run */
} ch_route_draws;

/* What a router keeps from call to call: running means of cut-offs or, where no gradient trains it, its weight. */
typedef struct ch_router_state {
  const real CH_DEV *thresholds; /* [e] running mean of cut-offs, which `causal` and by_threshold read; or NULL */
  real CH_DEV *updated;          /* what `observe` folds this call into: thresholds [e], or the weight; or NULL */
  uint64_t observed;             /* calls that went into it before; 0: what it holds counts for nothing */
  int layer;                     /* whose it is, for messages of `observe` after a step */
} ch_router_state;

/* Factors of the gradients of the auxiliary loss and the z-loss, weights included. */
typedef struct ch_route_scale {
  real aux, z;
} ch_route_scale;

/* Everything about one routing; a member of ch_moe_args and ch_pass. Arrays cover the n tokens of all ranks, each of
 * which has n / ranks consecutive tokens, unless a field's comment says otherwise. */
typedef struct ch_route_args {
  const struct ch_router *router;
  const ch_router_spec *options;
  int n, e;
  int total_experts;   /* number of experts in the model if e counts one owner's (per_expert); 0: e */
  int sequence_length; /* T of pool "sequence"; 0: one sequence of n */
  int d;               /* width of x, outside a layer 0 */
  ch_route_tokens tokens;
  int training;     /* capacity factor, jitter and sampling */
  int causal;       /* a ch_causal: nothing depends on later tokens or other sequences; no backward */
  int by_threshold; /* training takes tokens by thresholds, near its capacity (options->threshold_after) */
  ch_route_draws draws;
  const real CH_DEV *x;      /* [n / ranks,d] this rank's rows; `observe` sees all; NULL outside a layer */
  const real CH_DEV *weight; /* [d,e] Wg, or NULL: the router has none */
  ch_router_state router_state;
  ch_route_scale scale;
  struct ch_prefer *prefer; /* of a causal routing: a cache whose experts it prefers (moe/prefer.h), or NULL; in a pass
                               one for each MoE layer */
  ch_routing *routing;      /* what comes of it */
} ch_route_args;

typedef struct ch_router {
  const char *name, *summary; /* what it does, in one line */
  choir_reads reads;
  choir_depends_on depends_on;
  choir_router_gates gates; /* as `route` makes them */
  choir_router_loss loss;   /* CHOIR_LOSS_OWN: `route` leaves its gradient */
  ch_router_options takes;
  int choices;      /* experts that every token asks for, unless experts_per_token says it; 0: experts choose,
                       capacity_factor a token on average */
  int uniform_load; /* no expert ever holds more than its even share of max_slots, except for causal routing */
  int per_expert;   /* what an expert takes depends on its own scores alone: `route` may be called for some experts, of
                         even shares */
  int update_per_step;     /* in training `observe` reads nothing but the demand of all micro-batches of a step */
  int draws;               /* in training, whatever the options say */
  int plugin;              /* it is the first member of a ch_plugin (moe/plugin.h) */
  ch_router_spec defaults; /* what differs from router.def, where 0 stands for a default that is kept */
  /* What it depends on with these options, in training or in evaluation; NULL: `depends_on`, whatever they are. */
  choir_depends_on (*depends_on_with)(const ch_router_spec *o, int training);
  /* Refuses impossible combinations by name and value. For who plans: a later call may well bring fewer tokens than n.
   */
  int (*check)(const ch_router_spec *o, int n, int e, int sequence_length);
  /* Room that the record needs for n tokens, in training and evaluation alike. */
  int (*max_slots)(const ch_router_spec *o, int n, int e, int sequence_length);
  /* Fills record and counts by ops. What the host has to know beforehand it takes from shapes and `mask`; it reads
   * scores back only where it chooses itself: then op `collect` makes the record of its marks. */
  void (*route)(ch_exec *x, const ch_route_args *a);
  /* The same without a look at any other token of the call: by thresholds, or without capacity. NULL: so is route. */
  void (*causal)(ch_exec *x, const ch_route_args *a);
  /* The numbers [n,e] that thresholds are compared with, in x->scratch. NULL: scores. */
  const real CH_DEV *(*ranking)(ch_exec *x, const ch_route_args *a);
  /* Folds what route saw into a->router_state.updated: cut-offs into thresholds or, where no gradient trains the
   * weight, tokens into that. NULL: the router keeps nothing. */
  void (*observe)(ch_exec *x, const ch_route_args *a);
  /* dscores = from dgate through the gates, plus the auxiliary loss. NULL: gates are constants. */
  void (*backward)(ch_exec *x, const ch_route_args *a);
} ch_router;

extern const ch_router *ch_routers[];      /* NULL-terminated: choir's own, then those of plug-ins (moe/plugin.h) */
enum { CH_PLUGINS = 17 };                  /* at most, those in routers/ among them */
const ch_router **ch_router_plugins(void); /* where they begin in ch_routers */

/* By name, or NULL with a message that names the nearest known one. */
const ch_router *ch_router_find(const char *name);

extern const char *ch_router_names[]; /* of ch_routers, NULL-terminated */

/* The router's own defaults. */
ch_router_spec ch_router_default(const ch_router *router);

extern const char *const ch_router_option_names[]; /* by number, NULL-terminated */

/* Whether a router takes an option; it refuses all others. */
int ch_router_takes(const ch_router *router, ch_router_option option);

/* Whether the router computes scores from its logits, has a weight Wg, learns it by `observe` (centroids), and whether
 * it keeps thresholds. */
static inline int ch_router_scored(const ch_router *router) {
  return router->reads == CHOIR_READS_SCORES || router->reads == CHOIR_READS_SHARES;
}
static inline int ch_router_learned(const ch_router *router) {
  return ch_router_scored(router) || router->reads == CHOIR_READS_LOGITS;
}
static inline int ch_router_has_centroids(const ch_router *router) {
  return ch_router_learned(router) && router->observe && !router->backward;
}
static inline int ch_router_has_thresholds(const ch_router *router) {
  return router->observe && !ch_router_has_centroids(router);
}

/* Experts that every token asks for, null ones included, 0 where experts choose; and those that it gets of the model's
 * e, if all are asked for equally. */
int ch_router_choices(const ch_router_spec *o);
double ch_router_even_choices(const ch_router_spec *o, int e);

/* How often a training pass runs every sequence: 2 where two draws are to agree (consistency_weight), else 1. */
int ch_router_draws_per_sequence(const ch_router_spec *o);

/* Nonzero when the router has a way to route without a look at other tokens. */
int ch_router_can_be_causal(const ch_router *router);

/* CHOIR_ERROR_ARGUMENT, naming those that there are, unless the router has the routing; and what it then looks at. */
int ch_router_check_routing(const ch_router *router, const char *routing);
choir_routing_properties ch_router_properties(const ch_router_spec *o, const char *routing);

/* Experts that one token can meet at most in causal use. */
int ch_router_max_experts(const ch_router_spec *o, int e);

/* Whether the call goes by the router's `causal`. */
static inline int ch_route_by_causal(const ch_route_args *a) { return a->causal && a->router->causal; }

/* Gives `a` what no routing is without: n tokens in sequences of sequence_length, e experts, and losses by the weights
 * of the options. Whoever makes a ch_route_args calls it; what else a call has, stays as the caller set it. */
static inline void ch_route_args_set(ch_route_args *a, const ch_router *router, const ch_router_spec *o, int n, int e,
                                     int sequence_length) {
  a->router = router;
  a->options = o;
  a->n = n;
  a->e = e;
  a->sequence_length = sequence_length;
  a->scale = (ch_route_scale){(real)o->aux_loss_weight, (real)o->z_loss_weight};
}

/* `observe` of counts alone, outside of a routing: for routers that keep thresholds. */
static inline void ch_router_observe(ch_exec *x, const ch_router *router, const ch_router_spec *o, int e,
                                     ch_routing *seen, ch_router_state router_state) {
  ch_route_args a = {.routing = seen, .router_state = router_state, .training = 1};
  ch_route_args_set(&a, router, o, 0, e, 0);
  router->observe(x, &a);
}

/* Experts that share the capacity. */
static inline int ch_route_experts(const ch_route_args *a) { return a->total_experts ? a->total_experts : a->e; }

/* k = n c / e: nearest, halves up, at least 1, at most n (0 when n is 0). */
int ch_router_k(double capacity_factor, int n, int e);

/* Room for each expert under `choices` experts a token: ceil(factor * choices * n / e), at most n. */
int ch_router_capacity(double factor, int choices, int n, int e);

/* The capacity factor in force, 0 being room for all; the larger one, for which room is planned; and that in the
 * counting run, since one plan serves training and evaluation. */
double ch_router_factor(const ch_router_spec *o, int training);
double ch_router_factor_max(const ch_router_spec *o);
double ch_router_factor_planned(const ch_exec *x, const ch_route_args *a);

/* What capacity_schedule makes of c for a sequence of which a share is masked; the mean over all shares is c. And the
 * largest of these. */
double ch_router_scheduled(const ch_router_spec *o, double c, double share);
double ch_router_scheduled_max(const ch_router_spec *o, double c);

/* Every check starts with this one: n, e, and the numbers that all routers have, whether they take them or not. */
int ch_router_check_sizes(const ch_router_spec *o, int n, int e);

/* Token ids where the router needs them: there, and not negative. */
int ch_router_check_ids(const ch_router *router, int n, const int32_t *token);

/* causal by thresholds (routers/threshold.c). */
void ch_router_by_thresholds(ch_exec *x, const ch_route_args *a);

/* Whether a batch outside training can set its thresholds or prices (choir_calibrate). */
static inline int ch_router_calibrates(const ch_router *router) {
  return ch_router_has_thresholds(router) && !router->update_per_step;
}

/* counts.demand is what experts hold: for routers whose experts choose. */
void ch_router_demand_is_load(ch_exec *x, const ch_route_args *a);

#endif
