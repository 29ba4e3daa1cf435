/* A router of your own, in C: examples/own_router.c is one, docs/adding-a-router.md has the way from it to a table.
 *
 * It says who takes whom, and no more. Gates and their gradients, cut-offs and thresholds for causal use, losses,
 * statistics, pages, checkpoints, ranks and devices are choir's. */
#ifndef CHOIR_PLUGIN_H
#define CHOIR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

enum { CHOIR_PLUGIN_OPTIONS = 8, CHOIR_PLUGIN_MESSAGE_BYTES = 256 };

/* The other tokens that a token's experts depend on; each value includes those before it. For plug-ins it is measured
 * before a run, on made-up scores of 64 and of 1,024 tokens, and a router that depends on more is refused. */
typedef enum choir_depends_on {
  CHOIR_DEPENDS_ON_NONE,
  CHOIR_DEPENDS_ON_ALL_IN_TRAINING, /* in evaluation on none */
  CHOIR_DEPENDS_ON_PAST,            /* on earlier tokens of the batch */
  CHOIR_DEPENDS_ON_ALL,
  /* names of 0.4 and 0.5 */
  CHOIR_LOOKS_NOWHERE = CHOIR_DEPENDS_ON_NONE,
  CHOIR_LOOKS_IN_TRAINING = CHOIR_DEPENDS_ON_ALL_IN_TRAINING,
  CHOIR_LOOKS_BACK = CHOIR_DEPENDS_ON_PAST,
  CHOIR_LOOKS_AROUND = CHOIR_DEPENDS_ON_ALL
} choir_depends_on;
typedef choir_depends_on choir_looks;

/* What a router reads of a token. Plug-ins read scores or ids. */
typedef enum choir_reads {
  CHOIR_READS_SCORES,  /* softmax of the router's logits, or sigmoids (router.score) */
  CHOIR_READS_IDS,     /* its id; the layer has no router weight */
  CHOIR_READS_NOTHING, /* the same, without the id */
  CHOIR_READS_LOGITS,
  CHOIR_READS_SHARES /* scores, which it divides by sums of scores, so they must not be negative */
} choir_reads;

/* A number that a run may set, as `--set router.share=0.7`. */
typedef struct choir_plugin_option {
  const char *name; /* letters, digits and _; no field of the config's router; NULL ends the list */
  const char *help; /* in lower case, no full stop; may be NULL */
  double value;     /* the default */
  double low, high; /* bounds, both allowed; both 0: any number */
  int64_t reserved[2];
} choir_plugin_option;

/* What is to be routed. */
typedef struct choir_plugin_call {
  int layer; /* its number in the model; 0 outside of one */
  int n, e;
  int sequence_length;   /* T: tokens 0 .. T-1 are the first sequence, and so on */
  const float *scores;   /* [n,e] finite */
  const uint8_t *valid;  /* [n] 1: takes part, 0: padding, which nobody may take */
  int capacity;          /* tokens that one expert may take at most */
  int training;          /* 1 or 0 */
  uint64_t seed, first;  /* for random numbers: functions of (seed, layer, first + t) are the same on any ranks */
  const double *options; /* values, in the order of the definition */
  const double *state;   /* [e] what `observe` left; 0 without it */
  char *message;         /* [CHOIR_PLUGIN_MESSAGE_BYTES] "": room for what is wrong, where `choose` gives no 0 */
  const int32_t *tokens; /* [n] their ids, of routers that read these; else NULL */
  /* A random number below `bound`, a function of the four alone. */
  uint64_t (*below)(uint64_t seed, int layer, uint64_t index, uint64_t bound);
  int choices; /* experts that a token takes at most; 0: any number */
  int64_t reserved[1];
} choir_plugin_call;

/* What both kinds of definition have: an assignment of tokens to experts, `choose`, and what goes with it. */
typedef struct choir_router_common {
  size_t size;                /* of the definition that begins with this: sizeof(choir_tokens_choose), say */
  const char *name, *summary; /* a word of at most 31 letters, digits and _, and a line */
  const char *file;           /* that it stands in; NULL: the program itself. choir_plugin_load sets it */
  const char *version; /* at most 31 letters, digits and "._-": checkpoints keep it, and training goes on with no other.
                          NULL: a checksum of `file` (XXH64, as xxhsum -H64 shows it); without one none is kept */
  void *context;
  choir_plugin_option options[CHOIR_PLUGIN_OPTIONS];
  int normalize_gates; /* default of router.normalize_gates */
  int draws;           /* nonzero: training draws, so that two draws can be made to agree (router.consistency_weight) */
  double aux_loss_weight; /* default of router.aux_loss_weight: of `loss`, or of the load-balancing loss */
  /* Sets chosen [n,e], all 0, to 1 where the expert takes the token. It must depend on the call alone: all ranks make
   * it. One thread calls, with no other call of the router under way in the same model. Another value than 0 ends the
   * run, with its last checkpoint whole. */
  int (*choose)(void *context, const choir_plugin_call *call, uint8_t *chosen);
  /* NULL: none. Else training adds this loss, times router.aux_loss_weight: sets *loss, and its gradient by the scores
   * [n,e], which comes in 0; `chosen` is constant. It counts as the load-balancing loss does, in its place: the mean of
   * micro-batches, the sum of layers. Not with ids. */
  int (*loss)(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss, float *gradient);
  /* NULL: thresholds are scores. Else sets ranking [n,e], finite: higher for tokens that the expert prefers. For
   * routers that are served with thresholds. An expert's cut-off is the ranking that as many tokens of the batch reach
   * as it took; with threshold routing it takes the tokens whose ranking reaches the mean cut-off. Gates remain scores.
   * With thresholds tokens also come alone, so that a token's ranking must be a function of its own scores, the
   * options, e and the layer; it is measured. Of the call, n, e, layer, scores, valid, options, choices and message are
   * set. */
  int (*rank)(void *context, const choir_plugin_call *call, float *ranking);
  int64_t reserved[3];
} choir_router_common;

/* Experts choose among the tokens of the batch; a token may have any number of experts. The gate is the score. The
 * router is served with thresholds: of each expert, the running mean of the lowest score that it took, or of a cut-off
 * of `rank`. */
typedef struct choir_experts_choose {
  choir_router_common common;
  choir_depends_on depends_on; /* CHOIR_DEPENDS_ON_PAST or CHOIR_DEPENDS_ON_ALL */
  double capacity_factor;      /* default of router.capacity_factor: experts per token on average; above 0 */
} choir_experts_choose;

/* Tokens choose: each has at most K experts. Without a loss of its own the router has the load-balancing loss. A router
 * that depends on no other token in evaluation is served as it is; others with thresholds, as experts that choose. */
typedef struct choir_tokens_choose {
  choir_router_common common;
  choir_depends_on depends_on;
  int experts_per_token;        /* K; 0: any number, without a load-balancing loss */
  int experts_per_token_option; /* nonzero: router.experts_per_token says it, and this is its default */
  double capacity_factor; /* default of router.capacity_factor: an expert's capacity in even shares of all choices;
                             0: unlimited. Without K, in n / e; above 0 unless depends_on is none */
  /* The rest is for routers that depend on no other token in evaluation. */
  choir_reads reads; /* scores, or ids: then gates are 1 / K */
  /* NULL: gates are scores, with gradients. Else sets gates [n,e], constants, where chosen is 1: they count as they
   * are, without normalize_gates. choir.torch refuses them. Not with ids. */
  int (*gates)(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates);
  /* NULL: no state. Else changes state [e], a number for each expert, after every step of training, by how many tokens
   * of the step took the expert, on all ranks: demand [e]. It starts at 0 and is kept with the model, in single
   * precision. Of a value other than 0 the message of `call` has room for the reason; call has options, state, e and
   * layer 0. Needs K. */
  int (*observe)(void *context, const choir_plugin_call *call, const int64_t *demand, double *state);
} choir_tokens_choose;

/* Makes a router known by its name to everything that takes one. What the definition points to is copied, but for
 * functions and context. A later one of that name and the same file is for models that are made later; those that live
 * keep the definition that they were made with. Of another file it is refused, unless the bytes are the same. Call it
 * before other threads use the library. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY; CHOIR_ERROR_IO: `file` cannot be
 * read. */
CHOIR_API int choir_router_register_experts(const choir_experts_choose *router);
CHOIR_API int choir_router_register_tokens(const choir_tokens_choose *router);

/* Whether a router came through this door, be it one of choir's (routers/): 1, or 2 if it keeps a state (`observe`). */
CHOIR_API int choir_router_is_plugin(const char *name);

/* The version of a registered router, as checkpoints keep it; NULL: a router without a version, or one of choir's. */
CHOIR_API const char *choir_router_version(const char *name);

/* Loads FILE.so and registers its routers. The file's function
 *
 *   int choir_plugin_routers(const choir_plugin_registry *registry) { return registry->tokens_choose(&router); }
 *
 * is called with the two functions above, and an error of them is the call's. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: no
 * such function. CHOIR_ERROR_ARGUMENT: the file has changed since this process loaded it; the system would give the old
 * code. */
typedef struct choir_plugin_registry {
  size_t size;
  int (*experts_choose)(const choir_experts_choose *router);
  int (*tokens_choose)(const choir_tokens_choose *router);
} choir_plugin_registry;
CHOIR_API int choir_plugin_load(const char *path);

/* ---- the definition of 0.4 and 0.5 ----
 * One struct for both kinds: choices 0 and a look at other tokens in evaluation mean that experts choose. Fields have
 * the meaning of those above; `looks` is depends_on, `choices` experts_per_token, and capacity_factor is above 0 where
 * choices is 0. A file's function is int choir_plugin(choir_plugin_add add) { return add(&router); } */
typedef struct choir_plugin_router {
  const char *name, *summary;
  choir_looks looks;
  int choices;
  double capacity_factor;
  int normalize_gates;
  double aux_loss_weight;
  choir_plugin_option options[CHOIR_PLUGIN_OPTIONS];
  int (*choose)(void *context, const choir_plugin_call *call, uint8_t *chosen);
  int (*gates)(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates);
  int (*observe)(void *context, const choir_plugin_call *call, const int64_t *demand, double *state);
  void *context;
  const char *file;
  const char *version;
  choir_reads reads;
  int choices_default; /* experts_per_token_option */
  int draws;
  int (*loss)(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss, float *gradient);
  int64_t reserved[3];
} choir_plugin_router;
typedef int (*choir_plugin_add)(const choir_plugin_router *router);
CHOIR_API int choir_router_register(const choir_plugin_router *router);

CHOIR_C_END
#endif
