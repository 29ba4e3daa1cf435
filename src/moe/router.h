/* The interface of a router: maps scores to a routing record, and gradients back. A new native router is one file and
 * one row in router.c. */
#ifndef CH_MOE_ROUTER_H
#define CH_MOE_ROUTER_H

#include "base/rng.h"
#include "choir/router.h"
#include "choir/routing.h"
#include "config/config.h"
#include "op/op.h"

/* Counts of one routing that the record does not contain. The first two are set on the host; the router's ops write the
 * others. */
typedef struct ch_route_counts {
  int capacity;                  /* max tokens per expert, at most n; set by the router */
  choir_certificate certificate; /* all 0 if no solver was used */
  int CH_DEV *demand;            /* [e] tokens that selected the expert; set by the router */
  real CH_DEV *cutoff;     /* [e] lowest score among the expert's tokens, +infinity without tokens; read by `observe` */
  int64_t CH_DEV *dropped; /* [1] choices dropped because the expert was full; initially 0 */
  double CH_DEV *aux_loss; /* [1] unweighted; initially 0 */
} ch_route_counts;

/* Output of op `tally`: sums and counts as in ch_tally_args. */
enum { CH_TALLY_SUMS = 3 };
#define CH_TALLY_COUNTS(e) (3 * (e) + 2)
typedef struct ch_route_tally {
  double CH_DEV *sums;    /* [CH_TALLY_SUMS] */
  int64_t CH_DEV *counts; /* [CH_TALLY_COUNTS(e)] */
} ch_route_tally;

/* Router options (config/router.def), by index. */
typedef enum {
#define FIELD(kind, name, ...) CH_OPTION_##name,
#include "config/router.def"
#undef FIELD
} ch_router_option;

/* The options that a router accepts (1: accepted), besides those implied by its scores, gates and loss: two groups,
 * then single options. */
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

/* The kind of routing: the router's default rule, or causal routing, where a token's experts depend on no other
 * token. */
typedef enum { CH_NOT_CAUSAL, CH_BY_THRESHOLDS } ch_causal;

/* The result of a routing. Record, counts and tally are always on the tape, so that they can be read after an
 * evaluation, too; the other arrays are for backward. */
typedef struct ch_routing {
  ch_record record; /* `route` fills every array except token_begin and token_slot; backward reads them all */
  ch_route_counts counts;
  ch_route_tally tally;
  real CH_DEV *gate_sum; /* [n] sum of each token's gates before normalization; NULL: gates are not normalized */
  real CH_DEV *lse;      /* [n] log sum exp of each token's logits; NULL: no z-loss */
  real CH_DEV *dloss;    /* [n,e] gradient of a plug-in's auxiliary loss, times scale.aux; NULL: no such loss */
  /* [n,e] logits X Wg and scores S; NULL if the router does not read them. With several ranks, logits have this rank's
   * rows if the router reads scores, else all rows; scores have this rank's rows if experts choose at their owners,
   * else all rows. A router reads logits or scores, never both. */
  real CH_DEV *logits, *scores;
  /* backward */
  real CH_DEV *dgate;   /* [slots] */
  real CH_DEV *dscores; /* [n,e] out: gradient of the router's input, logits or scores */
} ch_routing;

/* Allocates record and counts of a routing, and sets the initial zeros. */
static inline void ch_routing_new(ch_exec *x, ch_arena *a, ch_routing *r, int n, int e, int max_slots) {
  ch_record_alloc(a, &r->record, n, e, max_slots);
  r->counts = (ch_route_counts){.demand = CH_NEW(a, int, e), .cutoff = CH_NEW(a, real, e)};
  double CH_DEV *both = CH_NEW(a, double, 2);
  r->counts.aux_loss = both;
  r->counts.dropped = (int64_t CH_DEV *)(both + 1);
  ch_zero(x, both, 2 * sizeof *both);
}

/* Information about the n tokens of a call; each pointer may be NULL. */
typedef struct ch_route_tokens {
  const uint8_t *mask;       /* [n] host copy of `valid`, on which shapes depend */
  const uint8_t *masked;     /* [n] host: 1 for masked tokens, for capacity_schedule; NULL: none */
  const uint8_t *assignment; /* [n,e] host, 0 or 1: forced assignment of tokens to experts; NULL: the router decides */
  const uint8_t CH_DEV *valid; /* [n] 0 for padding: what ops read; NULL: no padding */
  const int32_t CH_DEV *id;    /* [n] */
} ch_route_tokens;

/* Random numbers of jitter and sampling. */
typedef struct ch_route_draws {
  ch_rng rng;    /* seed and sub (the layer) are set; each user of random numbers derives its stream */
  uint64_t base; /* index of the first token's random numbers: number of earlier tokens of the run */
} ch_route_draws;

/* The state that a router carries from call to call: thresholds (running means of cut-offs), or a weight that has no
 * gradient. */
typedef struct ch_router_state {
  const real CH_DEV *thresholds; /* [e] thresholds, read by `causal` and by_threshold; or NULL */
  real CH_DEV *updated;          /* state that `observe` updates: thresholds [e], or the weight; or NULL */
  uint64_t observed;             /* number of earlier updates; 0: the old value of `updated` is ignored */
  int layer;                     /* index of the layer, for error messages of `observe` */
} ch_router_state;

/* Factors of the gradients of the auxiliary loss and the z-loss, weights included. */
typedef struct ch_route_scale {
  real aux, z;
} ch_route_scale;

/* Arguments of one routing; a member of ch_moe_args and ch_pass. Arrays cover the n tokens of all ranks unless a
 * comment says otherwise; each rank has n / ranks consecutive tokens. */
typedef struct ch_route_args {
  const struct ch_router *router;
  const ch_router_spec *options;
  int n, e;
  int total_experts;   /* number of experts in the model if e is that of one owner (per_expert); 0: e */
  int sequence_length; /* T of pool "sequence"; 0: one sequence of n */
  int d;               /* width of x; 0 outside a layer */
  ch_route_tokens tokens;
  int training;     /* capacity factor, jitter and sampling */
  int causal;       /* a ch_causal; causal routing has no backward */
  int by_threshold; /* training with threshold routing, with loads near the capacity (options->threshold_after) */
  ch_route_draws draws;
  const real CH_DEV *x;      /* [n / ranks,d] this rank's rows, all rows in `observe`; NULL outside a layer */
  const real CH_DEV *weight; /* [d,e] Wg, or NULL if the router has no weight */
  ch_router_state router_state;
  ch_route_scale scale;
  struct ch_prefer
      *prefer; /* causal routing only: prefers the experts in a cache (moe/prefer.h), or NULL; in a pass [MoE layers] */
  ch_routing *routing; /* the result */
} ch_route_args;

typedef struct ch_router {
  const char *name, *summary; /* summary: one line */
  choir_reads reads;
  choir_depends_on depends_on;
  choir_router_gates gates; /* kind of the gates that `route` computes */
  choir_router_loss loss;   /* CHOIR_LOSS_OWN: `route` writes its gradient to routing->dloss */
  ch_router_options takes;
  int choices;      /* K, experts per token, unless option experts_per_token sets it; 0: experts choose, capacity_factor
                       experts per token on average */
  int uniform_load; /* every load is at most max_slots / e, except for causal routing */
  int per_expert;   /* an expert's tokens depend only on that expert's scores: `route` may be called for a subset of the
                       experts */
  int update_per_step; /* in training `observe` is called once per step, and reads only the demand of all micro-batches
                        */
  int draws;           /* training uses random numbers, whatever the options are */
  int plugin;          /* this struct is the first member of a ch_plugin (moe/plugin.h) */
  ch_router_spec defaults; /* default options where they differ from router.def; 0: the default of router.def */
  /* Returns depends_on for these options, in training or in evaluation; NULL: `depends_on` is valid for all options. */
  choir_depends_on (*depends_on_with)(const ch_router_spec *o, int training);
  /* Refuses invalid combinations by name and value. Called when memory is planned for n tokens; later calls may have
   * fewer tokens. */
  int (*check)(const ch_router_spec *o, int n, int e, int sequence_length);
  /* Max slots of the record for n tokens, in training and evaluation. */
  int (*max_slots)(const ch_router_spec *o, int n, int e, int sequence_length);
  /* Fills record and counts by ops. The host uses only shapes and `mask`; routers that choose on the host download the
   * scores, and op `collect` builds the record from their marks. */
  void (*route)(ch_exec *x, const ch_route_args *a);
  /* Causal version of `route`, where a token's experts depend on no other token of the call: threshold routing, or no
   * capacity. NULL: `route` itself is causal. */
  void (*causal)(ch_exec *x, const ch_route_args *a);
  /* Returns the numbers [n,e] to compare with thresholds, in x->scratch. NULL: scores are used. */
  const real CH_DEV *(*ranking)(ch_exec *x, const ch_route_args *a);
  /* Updates a->router_state.updated after `route`: thresholds by the cut-offs, or a weight without gradient by the
   * tokens. NULL: the router has no state. */
  void (*observe)(ch_exec *x, const ch_route_args *a);
  /* dscores = gradient through the gates, from dgate, plus that of the auxiliary loss. NULL: gates are constants. */
  void (*backward)(ch_exec *x, const ch_route_args *a);
} ch_router;

extern const ch_router *ch_routers[];      /* NULL-terminated: native routers, then plug-ins (moe/plugin.h) */
enum { CH_PLUGINS = 17 };                  /* max number of plug-ins, including those in routers/ */
const ch_router **ch_router_plugins(void); /* the first plug-in in ch_routers */

/* By name, or NULL with a message that names the nearest known one. */
const ch_router *ch_router_find(const char *name);

extern const char *ch_router_names[]; /* names of ch_routers, NULL-terminated */

/* The default options of a router. */
ch_router_spec ch_router_default(const ch_router *router);

extern const char *const ch_router_option_names[]; /* by index, NULL-terminated */

/* Whether a router accepts an option; all other options are refused. */
int ch_router_takes(const ch_router *router, ch_router_option option);

/* Whether the router computes scores from logits; has a weight Wg; updates it by `observe` (centroids); has
 * thresholds. */
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

/* ch_router_choices: experts per token, null experts included; 0 if experts choose. ch_router_even_choices: the
 * expected number of real experts per token if all experts are chosen equally often. */
int ch_router_choices(const ch_router_spec *o);
double ch_router_even_choices(const ch_router_spec *o, int e);

/* Copies of every sequence in a training pass: 2 with consistency_weight, which compares two random routings, else
 * 1. */
int ch_router_draws_per_sequence(const ch_router_spec *o);

/* Whether the router has a causal routing. */
int ch_router_can_be_causal(const ch_router *router);

/* CHOIR_ERROR_ARGUMENT, naming the valid routings, unless the router has the routing. The second function returns the
 * routing's dependencies. */
int ch_router_check_routing(const ch_router *router, const char *routing);
choir_routing_properties ch_router_properties(const ch_router_spec *o, const char *routing);

/* Max experts per token in causal routing. */
int ch_router_max_experts(const ch_router_spec *o, int e);

/* Whether the call uses the router's `causal`. */
static inline int ch_route_by_causal(const ch_route_args *a) { return a->causal && a->router->causal; }

/* Sets the required fields of `a`: n tokens in sequences of sequence_length, e experts, and the weights of the losses
 * from the options. Call it for every new ch_route_args; other fields are not changed. */
static inline void ch_route_args_set(ch_route_args *a, const ch_router *router, const ch_router_spec *o, int n, int e,
                                     int sequence_length) {
  a->router = router;
  a->options = o;
  a->n = n;
  a->e = e;
  a->sequence_length = sequence_length;
  a->scale = (ch_route_scale){(real)o->aux_loss_weight, (real)o->z_loss_weight};
}

/* Calls `observe` with counts only, outside a routing; for routers with thresholds. */
static inline void ch_router_observe(ch_exec *x, const ch_router *router, const ch_router_spec *o, int e,
                                     ch_routing *seen, ch_router_state router_state) {
  ch_route_args a = {.routing = seen, .router_state = router_state, .training = 1};
  ch_route_args_set(&a, router, o, 0, e, 0);
  router->observe(x, &a);
}

/* Number of experts of the whole model, which share the capacity. */
static inline int ch_route_experts(const ch_route_args *a) { return a->total_experts ? a->total_experts : a->e; }

/* k = n c / e: rounded to nearest, halves up, at least 1, at most n (0 if n is 0). */
int ch_router_k(double capacity_factor, int n, int e);

/* Capacity per expert with `choices` experts per token: ceil(factor * choices * n / e), at most n. */
int ch_router_capacity(double factor, int choices, int n, int e);

/* ch_router_factor: the capacity factor of training or evaluation; 0: unlimited. ch_router_factor_max: the larger of
 * both. ch_router_factor_planned: the factor of a call; in the counting run the larger of both, because training and
 * evaluation share the planned memory. */
double ch_router_factor(const ch_router_spec *o, int training);
double ch_router_factor_max(const ch_router_spec *o);
double ch_router_factor_planned(const ch_exec *x, const ch_route_args *a);

/* The capacity factor that capacity_schedule gives a sequence with masked share `share`; its mean over all shares is c.
 * The second function returns its maximum. */
double ch_router_scheduled(const ch_router_spec *o, double c, double share);
double ch_router_scheduled_max(const ch_router_spec *o, double c);

/* Checks n, e, and the numeric options of all routers; every `check` calls it first. */
int ch_router_check_sizes(const ch_router_spec *o, int n, int e);

/* Checks that token ids are given and not negative, if the router reads ids. */
int ch_router_check_ids(const ch_router *router, int n, const int32_t *token);

/* `causal` by threshold routing (routers/threshold.c). */
void ch_router_by_thresholds(ch_exec *x, const ch_route_args *a);

/* Whether choir_calibrate can set the router's thresholds or biases from evaluation batches. */
static inline int ch_router_calibrates(const ch_router *router) {
  return ch_router_has_thresholds(router) && !router->update_per_step;
}

/* Sets counts.demand to the load of each expert; for routers whose experts choose. */
void ch_router_demand_is_load(ch_exec *x, const ch_route_args *a);

#endif
