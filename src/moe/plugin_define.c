/* Definitions of plug-ins: checks of the common fields and of each kind, and conversion to a ch_router. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "moe/gates.h"
#include "moe/plugin.h"
#include "moe/routers/threshold.h"

/* ---- custom options */

int ch_plugin_option(const ch_router *router, const char *name) {
  const ch_plugin *p = ch_plugin_of(router);
  for (int i = 0; p && i < p->options; i++)
    if (!strcmp(p->given.options[i].name, name)) return i;
  return -1;
}

const char *ch_plugin_wanted(const choir_plugin_option *o, char *text, size_t size) {
  if (o->low == 0 && o->high == 0)
    snprintf(text, size, "a finite number");
  else
    ch_format(text, size, "a number from %.10g to %.10g", o->low, o->high);
  return text;
}

int ch_plugin_check_options(const ch_router *router, const ch_router_spec *o) {
  const ch_plugin *p = ch_plugin_of(router);
  char wanted[80];
  for (int i = 0; i < CHOIR_PLUGIN_OPTIONS; i++) {
    double value = o->plugin_options[i];
    const choir_plugin_option *option = p && i < p->options ? &p->given.options[i] : NULL;
    int bounded = option && (option->low != 0 || option->high != 0);
    if (option ? isfinite(value) && (!bounded || (value >= option->low && value <= option->high)) : value == 0)
      continue;
    if (!option)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "model.router.plugin_options[%d] is %g, but router '%s' has no such option: set it to 0", i,
                      value, router->name);
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.router.%s is %g: must be %s", option->name, value,
                    ch_plugin_wanted(option, wanted, sizeof wanted));
  }
  return CHOIR_OK;
}

/* ---- fields of both kinds */

static int is_word(const char *name) {
  size_t length = name ? strlen(name) : 0;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)name[i]) && name[i] != '_') return 0;
  return length && length < CHOIR_NAME_BYTES;
}

static int is_version(const char *text) {
  size_t length = strlen(text);
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i])) return 0;
  return length && length < CHOIR_NAME_BYTES;
}

static int check_option(const char *router, const choir_plugin_option *o) {
  if (!is_word(o->name))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': the name of an option is '%.40s': must be 1 to 31 letters, digits and _", router,
                    o->name);
  for (int i = 0; ch_router_option_names[i]; i++)
    if (!strcmp(o->name, ch_router_option_names[i]) || !strcmp(o->name, "name"))
      return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': '%s' is an option of choir's: take another name", router,
                      o->name);
  int bounded = o->low != 0 || o->high != 0;
  char wanted[80];
  if (isfinite(o->value) && (!bounded || (o->value >= o->low && o->value <= o->high))) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': option %s is %g by default: must be %s", router, o->name,
                  o->value, ch_plugin_wanted(o, wanted, sizeof wanted));
}

static int count_options(const choir_router_common *r) {
  int count = 0;
  while (count < CHOIR_PLUGIN_OPTIONS && r->options[count].name) count++;
  return count;
}

static int check_common(const choir_router_common *r, int options) {
  CH_CHECK_RESERVED(r, "choir_router_common");
  if (!is_word(r->name))
    return ch_error(CHOIR_ERROR_ARGUMENT, "the name of a router is '%.40s': must be 1 to 31 letters, digits and _",
                    r->name ? r->name : "");
  if (r->version && !is_version(r->version))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': version is '%.40s': must be 1 to 31 letters, digits and any of ._-", r->name,
                    r->version);
  if (!r->choose) return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': choose is NULL", r->name);
  for (int i = 0; i < options; i++) {
    CH_TRY(check_option(r->name, &r->options[i]));
    for (int before = 0; before < i; before++)
      if (!strcmp(r->options[before].name, r->options[i].name))
        return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': has two options '%s'", r->name, r->options[i].name);
  }
  return CHOIR_OK;
}

/* Refuses a default of an option that the router does not accept, since it would have no effect. */
static int check_defaults(const ch_plugin *p) {
  const choir_router_common *c = &p->given;
  if (c->normalize_gates && !ch_router_takes(&p->router, CH_OPTION_normalize_gates))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': normalize_gates is %d, and its gates are no scores: leave it 0",
                    c->name, c->normalize_gates);
  if (!(c->aux_loss_weight >= 0) || isinf(c->aux_loss_weight))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': aux_loss_weight is %g: must be a finite number from 0", c->name,
                    c->aux_loss_weight);
  if (c->aux_loss_weight > 0 && !ch_router_takes(&p->router, CH_OPTION_aux_loss_weight))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': aux_loss_weight is %g, and it has no loss: set `loss`, or leave the weight 0; tokens "
                    "that choose experts by scores have the load-balancing loss",
                    c->name, c->aux_loss_weight);
  return CHOIR_OK;
}

static int check(const ch_router_spec *o, int n, int e, int sequence_length) {
  const ch_plugin *p = ch_plugin_of(o->kind);
  (void)sequence_length;
  CH_TRY(ch_router_check_sizes(o, n, e));
  if ((int64_t)n * e > INT32_MAX / 2)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens and %d experts are too many for one call",
                    p->given.name, n, e);
  if (e < ch_router_choices(o))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': every token takes %d experts but there %s only %d",
                    p->given.name, ch_router_choices(o), e == 1 ? "is" : "are", e);
  CH_TRY(ch_plugin_check_options(&p->router, o));
  return ch_plugin_measure(p, o, n, e);
}

static int check_factor(const choir_router_common *c, double factor, int unlimited) {
  if ((factor > 0 || (factor == 0 && unlimited)) && factor <= 65536) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': capacity_factor is %g: must be a number %s 0, at most 65536",
                  c->name, factor, unlimited ? "from" : "above");
}

/* The part of ch_router that both kinds share. */
static void make_common(const choir_router_common *c, ch_plugin *p) {
  *p = (ch_plugin){.given = *c, .options = count_options(c)};
  p->router =
      (ch_router){.name = c->name,
                  .summary = c->summary,
                  .loss = c->loss ? CHOIR_LOSS_OWN : CHOIR_LOSS_NONE,
                  .takes = {.consistency_weight = c->draws != 0},
                  .draws = c->draws,
                  .plugin = 1,
                  .defaults = {.normalize_gates = c->normalize_gates != 0, .aux_loss_weight = c->aux_loss_weight},
                  .check = check,
                  .max_slots = ch_plugin_max_slots,
                  .route = ch_plugin_route,
                  .causal = ch_plugin_causal,
                  .backward = ch_plugin_backward};
  for (int i = 0; i < p->options; i++) p->router.defaults.plugin_options[i] = c->options[i].value;
}

/* Threshold routing for routers that depend on other tokens in evaluation. */
static void serve_by_thresholds(ch_plugin *p) {
  ch_router *r = &p->router;
  r->takes.decay = 1;
  r->causal = ch_router_by_thresholds;
  r->observe = ch_router_observe_cutoffs;
  if (p->given.rank) r->ranking = ch_plugin_ranking;
}

/* ---- experts choose */

int ch_plugin_of_experts(const choir_experts_choose *given, ch_plugin *made) {
  const choir_router_common *c = &given->common;
  ch_router *r = &made->router;
  make_common(c, made);
  CH_TRY(check_common(c, made->options));
  if (given->depends_on != CHOIR_DEPENDS_ON_PAST && given->depends_on != CHOIR_DEPENDS_ON_ALL)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': depends_on is %d: experts choose among tokens of the batch, so it must be "
                    "CHOIR_DEPENDS_ON_PAST or CHOIR_DEPENDS_ON_ALL",
                    c->name, (int)given->depends_on);
  CH_TRY(check_factor(c, given->capacity_factor, 0));
  r->depends_on = given->depends_on;
  r->gates = CHOIR_GATES_SCORE;
  r->takes.capacity = 1;
  r->defaults.capacity_factor = given->capacity_factor;
  serve_by_thresholds(made);
  return check_defaults(made);
}

/* ---- tokens choose */

/* Routers with threshold routing store thresholds as their state, and need scores, so they exclude `observe` and
 * ids. */
static int check_tokens(const choir_tokens_choose *t) {
  const choir_router_common *c = &t->common;
  int thresholds = t->depends_on > CHOIR_DEPENDS_ON_ALL_IN_TRAINING, K = t->experts_per_token;
  if (t->depends_on < CHOIR_DEPENDS_ON_NONE || t->depends_on > CHOIR_DEPENDS_ON_ALL)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': depends_on is %d: must be a choir_depends_on", c->name,
                    (int)t->depends_on);
  if (K < 0 || K > 65536)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': experts_per_token is %d: must be from 0 to 65536", c->name, K);
  CH_TRY(check_factor(c, t->capacity_factor, K || t->depends_on == CHOIR_DEPENDS_ON_NONE));
  if (t->reads != CHOIR_READS_SCORES && t->reads != CHOIR_READS_IDS)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': reads is %d: must be CHOIR_READS_SCORES or CHOIR_READS_IDS",
                    c->name, (int)t->reads);
  if (thresholds && (t->observe || t->gates || t->reads))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': depends on other tokens (%s) in evaluation, so it is served with thresholds: leave "
                    "observe, gates and reads 0",
                    c->name, ch_plugin_depends_on[t->depends_on]);
  if (!thresholds && c->rank)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': depends on no other token in evaluation (%s), so no thresholds serve it: leave rank "
                    "NULL",
                    c->name, ch_plugin_depends_on[t->depends_on]);
  if (!K && (t->observe || t->reads || t->experts_per_token_option))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': observe, reads ids and experts_per_token_option need experts_per_token", c->name);
  if (t->reads && (t->gates || c->loss))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': reads ids, and has no scores: gates are 1 / experts_per_token; leave gates and loss "
                    "NULL",
                    c->name);
  return CHOIR_OK;
}

int ch_plugin_of_tokens(const choir_tokens_choose *given, ch_plugin *made) {
  const choir_router_common *c = &given->common;
  ch_router *r = &made->router;
  int K = given->experts_per_token, scored = given->reads == CHOIR_READS_SCORES;
  make_common(c, made);
  CH_TRY(check_common(c, made->options));
  CH_TRY(check_tokens(given));
  made->gates = given->gates;
  made->observe = given->observe;
  r->reads = given->reads;
  r->depends_on = given->depends_on;
  r->choices = K;
  r->gates = !scored ? CHOIR_GATES_EVEN : given->gates ? CHOIR_GATES_OWN : CHOIR_GATES_SCORE;
  if (scored && K && !c->loss) r->loss = CHOIR_LOSS_BALANCE;
  r->takes.capacity = given->depends_on != CHOIR_DEPENDS_ON_NONE;
  r->takes.experts_per_token = given->experts_per_token_option != 0;
  r->defaults.capacity_factor = given->capacity_factor;
  if (r->takes.experts_per_token)
    r->defaults.experts_per_token = K;
  else
    r->defaults.cap = K;
  if (!scored) r->backward = NULL;
  if (given->observe) r->update_per_step = 1, r->observe = ch_plugin_observe;
  if (given->depends_on > CHOIR_DEPENDS_ON_ALL_IN_TRAINING) serve_by_thresholds(made);
  return check_defaults(made);
}
