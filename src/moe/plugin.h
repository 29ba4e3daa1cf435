/* Plug-in routers (choir/plugin.h). Each is a ch_router; in ch_routers they follow the native routers. */
#ifndef CH_MOE_PLUGIN_H
#define CH_MOE_PLUGIN_H

#include "choir/plugin.h"
#include "moe/router.h"

typedef struct ch_plugin {
  ch_router router; /* must be the first member: functions of ch_router cast it to ch_plugin */
  choir_router_common
      given; /* copy of the common part of the definition; the rest is in `router` and the fields below */
  int (*gates)(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates);
  int (*observe)(void *context, const choir_plugin_call *call, const int64_t *demand, double *state);
  int options;                              /* number of options */
  char *text[CHOIR_PLUGIN_OPTIONS * 2 + 4]; /* copies of all strings of `given` */
  int has_checksum;
  uint64_t checksum;         /* of the file, XXH64, when its code was loaded */
  struct ch_plugin *earlier; /* the previous definition of this name, which existing models still use */
  uint64_t verified_case;    /* hash of the last case that passed ch_plugin_measure; 0: none */
  int warned_unused;         /* the warning about an empty assignment has been given */
} ch_plugin;

/* Index of a plug-in's custom option by name; -1: no such option. */
int ch_plugin_option(const ch_router *router, const char *name);

/* Names of the values of choir_depends_on. */
extern const char *const ch_plugin_depends_on[];

/* Converts a definition to a plug-in, which shares its strings. CHOIR_ERROR_ARGUMENT: invalid definition. */
int ch_plugin_of_experts(const choir_experts_choose *given, ch_plugin *made);
int ch_plugin_of_tokens(const choir_tokens_choose *given, ch_plugin *made);

/* The file that this thread is loading (NULL: none), and the checksum of the loaded code. */
typedef struct ch_plugin_source {
  const char *path;
  uint64_t checksum;
} ch_plugin_source;
extern _Thread_local const ch_plugin_source *ch_plugin_loading;

/* The checksum of a file. */
int ch_plugin_read(const char *path, uint64_t *checksum);

/* Refuses custom options that do not exist, or whose values are out of range. */
int ch_plugin_check_options(const ch_router *router, const ch_router_spec *o);

/* Describes the range of a custom option: "a number from 0 to 1". Returns `text`. */
const char *ch_plugin_wanted(const choir_plugin_option *option, char *text, size_t size);

/* Returns the `call` argument for n tokens and e experts, without scores. message [CHOIR_PLUGIN_MESSAGE_BYTES] */
choir_plugin_call ch_plugin_call(const ch_plugin *p, const ch_router_spec *o, int n, int e, int valid, int training,
                                 char *message);

/* Calls `choose` and checks its result. Returns its error, or an error for marks other than 0 and 1, assigned padding,
 * an exceeded capacity, or too many experts per token. chosen [n,e] = */
int ch_plugin_choose(const ch_plugin *p, const choir_plugin_call *call, uint8_t *chosen);

/* Calls `rank` with the arguments of a call of `choose`. Sets ranking [n,e]; returns an error unless it is finite for
 * valid tokens. */
int ch_plugin_rank(const ch_plugin *p, const choir_plugin_call *call, float *ranking);

/* Tests a router on random scores: it must not depend on more tokens than declared, must return the same result for the
 * same call, and must rank a token by that token's scores only. The error names the token. Tests each set of options
 * and sizes once. */
int ch_plugin_measure(const ch_plugin *p, const ch_router_spec *o, int n, int e);

/* Implementations of ch_router's functions. */
int ch_plugin_max_slots(const ch_router_spec *o, int n, int e, int sequence_length);
void ch_plugin_route(ch_exec *x, const ch_route_args *a);
void ch_plugin_causal(ch_exec *x, const ch_route_args *a);
const real CH_DEV *ch_plugin_ranking(ch_exec *x, const ch_route_args *a);
void ch_plugin_observe(ch_exec *x, const ch_route_args *a);
void ch_plugin_backward(ch_exec *x, const ch_route_args *a);

/* Returns the plug-in of a router; NULL: a native router. */
static inline const ch_plugin *ch_plugin_of(const ch_router *router) {
  return router && router->plugin ? (const ch_plugin *)router : NULL;
}

#endif
