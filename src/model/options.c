/* Options that only some routers, optimizers or objectives take: what is set must have an effect, so the others refuse
 * it. */
#include <stdio.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/format.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/plugin.h"
#include "optim/optim.h"

/* Those who take options: a section of the config, and who was chosen there. */
typedef struct {
  const char *section, *what, *who; /* "model.router.", "router", its name */
  const char *const *names;         /* of the options, by number */
  unsigned options;                 /* that it takes, as bits */
} option_taker;

/* The number of a field among the options of a taker; -1: it is none of them. */
static int number_of(const option_taker *t, const ch_field *f) {
  size_t length = strlen(t->section);
  if (strncmp(f->path, t->section, length)) return -1;
  for (int i = 0; t->names[i]; i++)
    if (!strcmp(t->names[i], f->path + length)) return i;
  return -1;
}

static const char *list_taken(const option_taker *t, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, t->options ? "it takes" : "it takes no options");
  for (int i = 0, found = 0; t->names[i] && used < size; i++)
    if (t->options >> i & 1)
      used += (size_t)snprintf(text + used, size - used, "%s%s", found++ ? ", " : " ", t->names[i]);
  return text;
}

/* Refuses a value that is out of range where it is taken (words may even lack an end), and one that differs from
 * `defaults` where it is not. */
static int check_taken(const option_taker *t, const choir_config *config, const choir_config *defaults) {
  char value[80], list[400];
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    int number = number_of(t, f);
    int taken = number >= 0 && t->options >> number & 1;
    if (taken) CH_TRY(ch_field_check(config, f));
    if (number < 0 || taken || ch_field_same(config, defaults, f)) continue;
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s, but %s '%s' does not take it (%s): leave it out", f->path,
                    ch_field_text(config, f, value, sizeof value), t->what, t->who, list_taken(t, list, sizeof list));
  }
  return CHOIR_OK;
}

static option_taker router_taker(const ch_router *router) {
  return (option_taker){"model.router.", "router", router->name, ch_router_option_names, router->options};
}

/* Checks the options that only one of the solvers reads. */
static int check_solver(const choir_config *config, const choir_config *defaults) {
  char value[80];
  if (!strcmp(config->model.router.solver, "dykstra")) return CHOIR_OK;
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    if (strncmp(f->path, "model.router.solver_", 20) || ch_field_same(config, defaults, f)) continue;
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s, but solver '%s' does not take it (dykstra does): leave it out",
                    f->path, ch_field_text(config, f, value, sizeof value), config->model.router.solver);
  }
  return CHOIR_OK;
}

/* Where tokens choose, no capacity is room for all; experts that choose would take nobody. */
static int check_capacity(const ch_router *router, const choir_router_options *o) {
  if (o->capacity_start > 0 && o->capacity_factor == 0)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.router.capacity_start is %g with capacity_factor 0, which is room for all: set both or "
                    "neither",
                    o->capacity_start);
  if (o->capacity_factor > 0 || router->choices || ch_router_takes(router, CH_ROUTER_TAKES(priority))) return CHOIR_OK;
  if (!ch_router_takes(router, CH_ROUTER_TAKES(capacity_factor))) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "model.router.capacity_factor is 0: must be a number above 0 with router '%s'",
                  router->name);
}

int ch_options_check_router(const choir_router_options *options) {
  const ch_router *router = ch_router_find(options->name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  CH_CHECK_RESERVED(options, "choir_router_options");
  option_taker t = router_taker(router);
  choir_config config = {.model.router = *options}, defaults = {.model.router = router->defaults};
  CH_TRY(check_taken(&t, &config, &defaults));
  CH_TRY(check_solver(&config, &defaults));
  CH_TRY(ch_plugin_check_options(router, options));
  return check_capacity(router, options);
}

int ch_options_check_optimizer(const choir_config *config) {
  const ch_optim *optim = ch_optim_find(config->train.optimizer);
  if (!optim) return CHOIR_ERROR_ARGUMENT;
  choir_config defaults = {0};
  for (int i = 0; i < CH_FIELDS; i++) ch_field_default(&defaults, &ch_fields[i]);
  return check_taken(&(option_taker){"train.", "optimizer", optim->name, ch_optim_option_names, optim->options}, config,
                     &defaults);
}

int ch_options_check_objective(const choir_config *config) {
  const choir_model_config *m = &config->model;
  const choir_train_config *t = &config->train;
  int both_ways = ch_config_bidirectional(m);
  if (ch_config_masked(config) && !both_ways)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "train.objective is %s with model.attention causal: masked tokens are predicted from both sides; set "
        "model.attention to bidirectional",
        t->objective);
  if (!ch_config_masked(config) && both_ways)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.objective is next_token with model.attention bidirectional, which sees the next token: set "
                    "train.objective to masked_diffusion or masked_lm, or model.attention to causal");
  if (strcmp(t->objective, "masked_diffusion") && strcmp(t->mask_schedule, "linear"))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.mask_schedule is %s, which train.objective '%s' does not read: leave it out, or set "
                    "train.objective to masked_diffusion",
                    t->mask_schedule, t->objective);
  if (strcmp(m->router.capacity_schedule, "constant") &&
      (!ch_config_masked(config) || strcmp(m->router.pool, "sequence")))
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "model.router.capacity_schedule is %s with train.objective %s and pool '%s': it goes by the share of a "
        "sequence that is masked; set it to constant, or train by masking with pool 'sequence'",
        m->router.capacity_schedule, t->objective, m->router.pool);
  if (ch_config_masked(config) && m->moe_every && ch_router_draws_per_sequence(&m->router) > 1)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "train.objective is %s with model.router.consistency_weight, which compares predictions of the next "
        "token: set that to 0",
        t->objective);
  return CHOIR_OK;
}

const char *choir_router_summary(const char *name) {
  if (!name) return NULL;
  const ch_router *router = ch_router_find(name);
  return router ? router->summary : NULL;
}

int choir_router_option_count(const char *name) {
  const ch_router *router = name ? ch_router_find(name) : NULL;
  const ch_plugin *plugin = ch_plugin_of(router);
  return router ? __builtin_popcount(router->options) + (plugin ? plugin->options : 0) : 0;
}

int choir_router_option_at(const char *name, int index, choir_router_option *option) {
  CH_ENTER(name, option);
  const ch_router *router = ch_router_find(name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  option_taker t = router_taker(router);
  choir_config defaults = {.model.router = router->defaults};
  int before = index;
  for (int i = 0; i < CH_FIELDS && index >= 0; i++) {
    int number = number_of(&t, &ch_fields[i]);
    if (number < 0 || !(t.options >> number & 1) || before--) continue;
    option->name = t.names[number];
    option->help = ch_fields[i].help;
    ch_field_text(&defaults, &ch_fields[i], option->value, sizeof option->value);
    return CHOIR_OK;
  }
  const ch_plugin *plugin = ch_plugin_of(router);
  if (plugin && before >= 0 && before < plugin->options) {
    const choir_plugin_option *own = &plugin->given.options[before];
    option->name = own->name;
    option->help = own->help;
    ch_format(option->value, sizeof option->value, "%.10g", own->value);
    return CHOIR_OK;
  }
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' has no option number %d; it has %d", name, index,
                  choir_router_option_count(name));
}
