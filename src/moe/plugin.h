/* Routers that somebody else wrote (choir/plugin.h): a ch_router each, behind choir's own in ch_routers. */
#ifndef CH_MOE_PLUGIN_H
#define CH_MOE_PLUGIN_H

#include "choir/plugin.h"
#include "moe/router.h"

typedef struct ch_plugin {
  ch_router router;          /* first: choir's functions get this, and find the rest behind it */
  choir_router_common given; /* what the definition has, of either kind; the rest became `router` and these */
  int (*gates)(void *context, const choir_plugin_call *call, const uint8_t *chosen, float *gates);
  int (*observe)(void *context, const choir_plugin_call *call, const int64_t *demand, double *state);
  int options;                              /* that it has */
  char *text[CHOIR_PLUGIN_OPTIONS * 2 + 4]; /* copies of all that `given` points to */
  int has_checksum;
  uint64_t checksum;         /* of the file, XXH64, when its code was loaded */
  struct ch_plugin *earlier; /* the definition of the name before: models of it live on */
  uint64_t verified_case;    /* hash of the last case that ch_plugin_measure found as declared; 0: none */
  int warned_unused;         /* it has been said that nobody was taken */
} ch_plugin;

/* The number of a plug-in's own option; -1: it has none of that name. */
int ch_plugin_option(const ch_router *router, const char *name);

/* The words of choir_depends_on. */
extern const char *const ch_plugin_depends_on[];

/* Makes a plug-in of a definition, whose texts it shares. CHOIR_ERROR_ARGUMENT: the definition is wrong. */
int ch_plugin_of_experts(const choir_experts_choose *given, ch_plugin *made);
int ch_plugin_of_tokens(const choir_tokens_choose *given, ch_plugin *made);

/* The file that this thread is loading, and the checksum of what is loaded of it; NULL: none. */
typedef struct ch_plugin_source {
  const char *path;
  uint64_t checksum;
} ch_plugin_source;
extern _Thread_local const ch_plugin_source *ch_plugin_loading;

/* The checksum of a file. */
int ch_plugin_read(const char *path, uint64_t *checksum);

/* Refuses values of own options out of their bounds, or where there is no such option. */
int ch_plugin_check_options(const ch_router *router, const ch_router_spec *o);

/* Writes "a number from 0 to 1" of an own option. Returns `text`. */
const char *ch_plugin_wanted(const choir_plugin_option *option, char *text, size_t size);

/* Fills a call for n tokens and e experts, but for its scores. message [CHOIR_PLUGIN_MESSAGE_BYTES] */
choir_plugin_call ch_plugin_call(const ch_plugin *p, const ch_router_spec *o, int n, int e, int valid, int training,
                                 char *message);

/* Calls `choose`, and believes nothing: an error of it, marks that are no 0 or 1, padding that is taken, more tokens
 * than an expert has room for, more experts than a token may have. chosen [n,e] = */
int ch_plugin_choose(const ch_plugin *p, const choir_plugin_call *call, uint8_t *chosen);

/* Calls `rank` for the tokens of a call of `choose`. ranking [n,e] = finite numbers of valid tokens, or an error. */
int ch_plugin_rank(const ch_plugin *p, const choir_plugin_call *call, float *ranking);

/* Measures on made-up scores whether the router depends on no more tokens than it declares, chooses the same when it is
 * asked twice, and ranks a token by its own scores; the token is named. Once for each set of options and sizes. */
int ch_plugin_measure(const ch_plugin *p, const ch_router_spec *o, int n, int e);

/* The functions of ch_router. */
int ch_plugin_max_slots(const ch_router_spec *o, int n, int e, int sequence_length);
void ch_plugin_route(ch_exec *x, const ch_route_args *a);
void ch_plugin_causal(ch_exec *x, const ch_route_args *a);
const real CH_DEV *ch_plugin_ranking(ch_exec *x, const ch_route_args *a);
void ch_plugin_observe(ch_exec *x, const ch_route_args *a);
void ch_plugin_backward(ch_exec *x, const ch_route_args *a);

/* The plug-in that a router is; NULL: it is choir's own. */
static inline const ch_plugin *ch_plugin_of(const ch_router *router) {
  return router && router->plugin ? (const ch_plugin *)router : NULL;
}

#endif
