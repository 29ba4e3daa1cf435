/* The plug-in interface for custom routers in C. examples/own_router.c is an example; docs/adding-a-router.md is a
 * tutorial.
 *
 * A plug-in only assigns tokens to experts. choir computes gates and their gradients, thresholds for causal routing,
 * losses and statistics, and handles checkpoints, ranks and devices. */
#ifndef CHOIR_PLUGIN_H
#define CHOIR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "choir/error.h"

CHOIR_C_BEGIN

enum { CHOIR_PLUGIN_OPTIONS = 8, CHOIR_PLUGIN_MESSAGE_BYTES = 256 };

/* The set of other tokens that the experts of a token depend on; each value includes the values before it. choir tests
 * the declared value before a run, on random scores of 64 and of 1,024 tokens, and refuses a plug-in that depends on
 * more tokens than declared. */
typedef enum choir_depends_on {
  CHOIR_DEPENDS_ON_NONE,
  CHOIR_DEPENDS_ON_ALL_IN_TRAINING, /* all tokens in training, none in evaluation */
  CHOIR_DEPENDS_ON_PAST,            /* earlier tokens of the batch */
  CHOIR_DEPENDS_ON_ALL,
  /* names of 0.4 and 0.5 */
  CHOIR_LOOKS_NOWHERE = CHOIR_DEPENDS_ON_NONE,
  CHOIR_LOOKS_IN_TRAINING = CHOIR_DEPENDS_ON_ALL_IN_TRAINING,
  CHOIR_LOOKS_BACK = CHOIR_DEPENDS_ON_PAST,
  CHOIR_LOOKS_AROUND = CHOIR_DEPENDS_ON_ALL
} choir_depends_on;
typedef choir_depends_on choir_looks;

/* The router's input for each token. Plug-ins read scores or ids. */
typedef enum choir_reads {
  CHOIR_READS_SCORES,  /* softmax of the router's logits, or sigmoids (router.score) */
  CHOIR_READS_IDS,     /* token ids; the layer has no router weight */
  CHOIR_READS_NOTHING, /* no input; the layer has no router weight */
  CHOIR_READS_LOGITS,
  CHOIR_READS_SHARES /* scores that the router divides by sums of scores, so they must not be negative */
} choir_reads;

/* A numeric option of a plug-in, set by `--set router.share=0.7`, for example. */
typedef struct choir_plugin_option {
  const char *name; /* letters, digits and _; must differ from choir's router options; NULL ends the list */
  const char *help; /* starts in lower case, without a full stop; may be NULL */
  double value;     /* the default */
  double low, high; /* bounds, inclusive; both 0: no bounds */
  int64_t reserved[2];
} choir_plugin_option;

/* The input of a plug-in's functions: one batch of one layer. */
typedef struct choir_plugin_call {
  int layer; /* index of the layer in the model; 0 outside a model */
  int n, e;
  int sequence_length;   /* T: tokens 0 .. T-1 are the first sequence, T .. 2T-1 the second, ... */
  const float *scores;   /* [n,e] finite */
  const uint8_t *valid;  /* [n] 1: a token; 0: padding, which must not be assigned */
  int capacity;          /* max tokens per expert */
  int training;          /* 1 or 0 */
  uint64_t seed, first;  /* for random numbers: use functions of (seed, layer, first + t), which do not depend on the
                            number of ranks */
  const double *options; /* option values, in the order of the definition */
  const double *state;   /* [e] state as updated by `observe`; 0 without `observe` */
  char
      *message; /* [CHOIR_PLUGIN_MESSAGE_BYTES] buffer for an error message if `choose` returns nonzero; initially "" */
  const int32_t *tokens; /* [n] token ids if the router reads ids; else NULL */
  /* Returns a random number below `bound` that depends on the four arguments only. */
  uint64_t (*below)(uint64_t seed, int layer, uint64_t index, uint64_t bound);
  int choices; /* max experts per token; 0: no limit */
  int64_t reserved[1];
} choir_plugin_call;

/* The fields that both kinds of definition share. */
typedef struct choir_router_common {
  size_t size; /* sizeof the whole definition: sizeof(choir_experts_choose) or sizeof(choir_tokens_choose) */
  const char *name, *summary; /* name: at most 31 letters, digits and _; summary: one line */
  const char *file;    /* the shared library that contains the router; NULL: the program. Set by choir_plugin_load */
  const char *version; /* at most 31 letters, digits and "._-": stored in checkpoints; training resumes only with the
                          same version. NULL: the checksum of `file` (XXH64, as printed by xxhsum -H64), or no version
                          if `file` is NULL */
  void *context;
  choir_plugin_option options[CHOIR_PLUGIN_OPTIONS];
  int normalize_gates;    /* default of router.normalize_gates */
  int draws;              /* nonzero: `choose` is random in training, so router.consistency_weight may be used */
  double aux_loss_weight; /* default of router.aux_loss_weight, the weight of `loss` or of the load-balancing loss */
  /* Assigns tokens to experts: sets elements of chosen [n,e], initially all 0, to 1. The result must depend on `call`
   * only, because every rank computes it. Within one model, calls come from one thread at a time. A nonzero return
   * value ends the run; its last checkpoint stays valid. */
  int (*choose)(void *context, const choir_plugin_call *call, uint8_t *chosen);
  /* An auxiliary loss, or NULL. Sets *loss and its gradient with respect to the scores, gradient [n,e], which is
   * initially 0; `chosen` is a constant. Training adds the loss times router.aux_loss_weight, averaged over
   * micro-batches and summed over layers, in place of the load-balancing loss. Not available to routers that read
   * ids. */
  int (*loss)(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss, float *gradient);
  /* Preferences for threshold routing, or NULL: the scores are used. Sets ranking [n,e] to finite numbers, higher for
   * tokens that the expert prefers. If an expert has m tokens of a batch, its cut-off is the m-th highest ranking;
   * threshold routing assigns the tokens whose ranking reaches the mean cut-off of training. Gates remain scores.
   * Generation routes single tokens, so a token's ranking may depend only on its own scores, the options, e and the
   * layer; choir tests this. Only these fields of `call` are set: n, e, layer, scores, valid, options, choices,
   * message. */
  int (*rank)(void *context, const choir_plugin_call *call, float *ranking);
  int64_t reserved[3];
} choir_router_common;

/* Definition of a router whose experts choose among the tokens of the batch; a token may have any number of experts.
 * The gate is the score. Generation uses threshold routing. The threshold of an expert is the running mean of the
 * lowest score among its tokens, or of the cut-off of `rank`. */
typedef struct choir_experts_choose {
  choir_router_common common;
  choir_depends_on depends_on; /* CHOIR_DEPENDS_ON_PAST or CHOIR_DEPENDS_ON_ALL */
  double capacity_factor;      /* default of router.capacity_factor: experts per token on average; above 0 */
} choir_experts_choose;

/* Definition of a router whose tokens choose at most K experts each. If `loss` is NULL, the load-balancing loss is
 * used. Generation runs the router itself if it depends on no other token in evaluation, else threshold routing, as for
 * choir_experts_choose. */
typedef struct choir_tokens_choose {
  choir_router_common common;
  choir_depends_on depends_on;
  int experts_per_token;        /* K; 0: no limit, and no load-balancing loss */
  int experts_per_token_option; /* nonzero: K is the option router.experts_per_token, and the field above is its default
                                 */
  double
      capacity_factor; /* default of router.capacity_factor: an expert's capacity as a multiple of the even load n K / e
                          (n / e if K is 0); 0: unlimited. Must be above 0 if K is 0, unless depends_on is none */
  /* The fields below are only for routers that depend on no other token in evaluation. */
  choir_reads reads; /* scores, or ids, whose gates are 1 / K */
  /* Custom gates, or NULL: gates are scores, with gradients. Sets gates [n,e] where chosen is 1. They are constants
   * without gradients, and normalize_gates has no effect on them. choir.torch refuses such routers. Not available to
   * routers that read ids. */
  int (*gates)(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates);
  /* Updates state [e], one number per expert, after every training step, or NULL: no state. demand [e] is the number of
   * tokens of the step, on all ranks, that chose the expert. The state is 0 at first, and stored in the model in single
   * precision. On an error, return nonzero and write the reason to call->message. Of `call`, only options, state and e
   * are set; layer is 0. Requires K above 0. */
  int (*observe)(void *context, const choir_plugin_call *call, const int64_t *demand, double *state);
} choir_tokens_choose;

/* Registers a router by its name. Strings of the definition are copied; functions and context must stay valid. A name
 * may be registered again from the same file, or from a file with equal bytes: later models use the new definition,
 * existing models the old one. Call it before other threads use the library. CHOIR_ERROR_ARGUMENT, CHOIR_ERROR_MEMORY;
 * CHOIR_ERROR_IO: `file` cannot be read. */
CHOIR_API int choir_router_register_experts(const choir_experts_choose *router);
CHOIR_API int choir_router_register_tokens(const choir_tokens_choose *router);

/* Returns 1 if the router uses the plug-in interface, as choir's routers in routers/ do, 2 if it also has a state
 * (`observe`), else 0. */
CHOIR_API int choir_router_is_plugin(const char *name);

/* The version of a registered router, as stored in checkpoints; NULL: the router has no version, or is built in. */
CHOIR_API const char *choir_router_version(const char *name);

/* Loads FILE.so and registers its routers. The file's function
 *
 *   int choir_plugin_routers(const choir_plugin_registry *registry) { return registry->tokens_choose(&router); }
 *
 * is called with the two registration functions above; choir_plugin_load returns their error. CHOIR_ERROR_IO,
 * CHOIR_ERROR_FORMAT: no such function. CHOIR_ERROR_ARGUMENT: the file has changed since this process loaded it; dlopen
 * would return the old code. */
typedef struct choir_plugin_registry {
  size_t size;
  int (*experts_choose)(const choir_experts_choose *router);
  int (*tokens_choose)(const choir_tokens_choose *router);
} choir_plugin_registry;
CHOIR_API int choir_plugin_load(const char *path);

/* ---- the definition of 0.4 and 0.5 ----
 * One struct for both kinds: if choices is 0 and the router depends on other tokens in evaluation, experts choose;
 * otherwise tokens choose. Fields have the same meaning as above: `looks` is depends_on, `choices` is
 * experts_per_token. If choices is 0, capacity_factor must be above 0. A file's function is int
 * choir_plugin(choir_plugin_add add) { return add(&router); } */
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
