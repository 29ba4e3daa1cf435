/* Options that only some routers, optimizers or objectives accept. Every option that is set must have an effect, so the
 * others refuse it. */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/format.h"
#include "base/text.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/plugin.h"
#include "optim/optim.h"

/* A section of the config with optional fields, and the router or optimizer selected there. */
typedef struct {
  const char *section, *what, *who; /* "model.router.", "router", its name */
  const char *const *names;         /* names of the section's fields, by number */
  const ch_router *router;          /* or NULL: an optimizer */
  const ch_optim *optim;
} option_taker;

static int takes(const option_taker *t, int number) {
  return t->router ? ch_router_takes(t->router, (ch_router_option)number) : (int)(t->optim->options >> number & 1);
}

/* Whether any router or optimizer accepts the field of that number. */
static int is_option(const option_taker *t, int number) {
  int found = t->router != NULL;
  for (int i = 0; !found && ch_optims[i]; i++) found = (int)(ch_optims[i]->options >> number & 1);
  return found;
}

/* Index of a field among the options of routers or optimizers; -1: not an option. */
static int option_number(const option_taker *t, const ch_field *f) {
  size_t length = strlen(t->section);
  int number = strncmp(f->path, t->section, length) ? -1 : ch_word_number(t->names, f->path + length);
  return number >= 0 && is_option(t, number) ? number : -1;
}

static const char *list_accepted(const option_taker *t, char *text, size_t size) {
  const ch_plugin *plugin = ch_plugin_of(t->router);
  size_t used = 0;
  *text = 0;
  for (int i = 0; t->names[i] && used < size; i++)
    if (takes(t, i)) used += (size_t)snprintf(text + used, size - used, used ? ", %s" : "it takes %s", t->names[i]);
  if (!used) used = (size_t)snprintf(text, size, "it takes no options");
  for (int i = 0; plugin && i < plugin->options && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, ", %s", plugin->given.options[i].name);
  return text;
}

/* Refuses an accepted option out of range, and an unaccepted one that differs from `defaults`. */
static int check_accepted(const option_taker *t, const choir_config *config, const choir_config *defaults) {
  char value[CHOIR_VALUE_BYTES], list[400];
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    int number = option_number(t, f);
    int accepted = number >= 0 && takes(t, number);
    if (accepted) CH_TRY(ch_field_check(config, f));
    if (number < 0 || accepted || ch_field_same(config, defaults, f)) continue;
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s, but %s '%s' does not take it (%s): leave it out", f->path,
                    ch_field_text(config, f, value, sizeof value), t->what, t->who,
                    list_accepted(t, list, sizeof list));
  }
  return CHOIR_OK;
}

static option_taker router_taker(const ch_router *router) {
  return (option_taker){"model.router.", "router", router->name, ch_router_option_names, router, NULL};
}

/* A config with the router's defaults. */
static choir_config defaults_of(const ch_router *router) {
  return (choir_config){.model.router = ch_router_default(router)};
}

/* Checks the options that only one of the solvers reads. */
static int check_solver(const choir_config *config, const choir_config *defaults) {
  char value[CHOIR_VALUE_BYTES];
  if (config->model.router.solver == CH_SOLVER_DYKSTRA) return CHOIR_OK;
  for (int i = 0; i < CH_FIELDS; i++) {
    const ch_field *f = &ch_fields[i];
    if (strncmp(f->path, "model.router.solver_", 20) || ch_field_same(config, defaults, f)) continue;
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s, but solver '%s' does not take it (dykstra does): leave it out",
                    f->path, ch_field_text(config, f, value, sizeof value),
                    ch_router_solvers[config->model.router.solver]);
  }
  return CHOIR_OK;
}

/* Capacity 0 means unlimited for token choice; for expert choice no token would be assigned. */
static int check_capacity(const ch_router *router, const ch_router_spec *o) {
  if (o->capacity_start > 0 && ch_router_factor(o, 1) == 0)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.router.capacity_start is %g with capacity_factor 0, which is room for all: set both or "
                    "neither",
                    o->capacity_start);
  if (ch_router_factor(o, 1) > 0 || router->choices || ch_router_takes(router, CH_OPTION_priority)) return CHOIR_OK;
  if (!ch_router_takes(router, CH_OPTION_capacity_factor)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "model.router.capacity_factor is 0: must be a number above 0 with router '%s'",
                  router->name);
}

int ch_options_check_router(const ch_router_spec *options) {
  const ch_router *router = options->kind;
  option_taker t = router_taker(router);
  choir_config config = {.model.router = *options}, defaults = defaults_of(router);
  CH_TRY(check_accepted(&t, &config, &defaults));
  CH_TRY(check_solver(&config, &defaults));
  CH_TRY(ch_plugin_check_options(router, options));
  return check_capacity(router, options);
}

int ch_options_check_optimizer(const choir_config *config) {
  const ch_optim *optim = ch_optims[config->train.optimizer];
  choir_config defaults;
  ch_config_default(&defaults);
  const option_taker t = {"train.", "optimizer", optim->name, ch_train_field_names, NULL, optim};
  return check_accepted(&t, config, &defaults);
}

int ch_options_check_objective(const choir_config *config) {
  const ch_model_config *m = &config->model;
  const ch_train_config *t = &config->train;
  int both_ways = ch_config_bidirectional(m);
  if (ch_config_masked(config) && !both_ways)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "train.objective is %s with model.attention causal: masked tokens are predicted from both sides; set "
        "model.attention to bidirectional",
        ch_objectives[t->objective]);
  if (!ch_config_masked(config) && both_ways)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.objective is next_token with model.attention bidirectional, which sees the next token: set "
                    "train.objective to masked_diffusion or masked_lm, or model.attention to causal");
  if (t->objective != CH_MASKED_DIFFUSION && t->mask_schedule != CH_MASK_LINEAR)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.mask_schedule is %s, which train.objective '%s' does not read: leave it out, or set "
                    "train.objective to masked_diffusion",
                    ch_mask_schedules[t->mask_schedule], ch_objectives[t->objective]);
  if (m->router.capacity_schedule != CH_CAPACITY_CONSTANT &&
      (!ch_config_masked(config) || m->router.pool != CH_POOL_SEQUENCE))
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "model.router.capacity_schedule is %s with train.objective %s and pool '%s': it goes by the share of a "
        "sequence that is masked; set it to constant, or train by masking with pool 'sequence'",
        ch_router_schedules[m->router.capacity_schedule], ch_objectives[t->objective], ch_router_pools[m->router.pool]);
  if (ch_config_masked(config) && m->moe_every && ch_router_draws_per_sequence(&m->router) > 1)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "train.objective is %s with model.router.consistency_weight, which compares predictions of the next "
        "token: set that to 0",
        ch_objectives[t->objective]);
  return CHOIR_OK;
}

static int is_given(const ch_field *f, const char *const *keys, int count) {
  for (int i = 0; i < count; i++)
    if (ch_path_ends(f->path, keys[i])) return 1;
  return 0;
}

void ch_options_notice_reset(const ch_router_spec *before, const ch_router_spec *after, const char *const *keys,
                             int count) {
  const option_taker left = router_taker(before->kind), accepted = router_taker(after->kind);
  choir_config was = {.model.router = *before}, is = {.model.router = *after}, brought = defaults_of(before->kind);
  char text[600], value[2][CHOIR_VALUE_BYTES];
  size_t used = 0;
  for (int i = 0; i < CH_FIELDS && used < sizeof text; i++) {
    const ch_field *f = &ch_fields[i];
    int number = option_number(&accepted, f);
    if (number < 0 || !takes(&left, number) || !takes(&accepted, number)) continue;
    if (ch_field_same(&was, &brought, f) || ch_field_same(&was, &is, f) || is_given(f, keys, count)) continue;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s (was %s)", used ? ", " : "",
                             ch_router_option_names[number], ch_field_text(&is, f, value[0], sizeof value[0]),
                             ch_field_text(&was, f, value[1], sizeof value[1]));
  }
  if (used)
    ch_notice("model.router.name is %s now, which brings defaults of its own: %s; set again what is to stay",
              after->kind->name, text);
}

const char *choir_router_summary(const char *name) {
  if (!name) return NULL;
  const ch_router *router = ch_router_find(name);
  return router ? router->summary : NULL;
}

int choir_router_option_count(const char *name) {
  const ch_router *router = name ? ch_router_find(name) : NULL;
  const ch_plugin *plugin = ch_plugin_of(router);
  int count = plugin ? plugin->options : 0;
  for (int i = 0; router && ch_router_option_names[i]; i++) count += ch_router_takes(router, (ch_router_option)i);
  return count;
}

int choir_router_option_at(const char *name, int index, choir_field *field) {
  CH_ENTER(name, field);
  const ch_router *router = ch_router_find(name);
  if (!router) return CHOIR_ERROR_ARGUMENT;
  option_taker t = router_taker(router);
  choir_config defaults = defaults_of(router);
  int before = index;
  for (int i = 0; i < CH_FIELDS && index >= 0; i++) {
    int number = option_number(&t, &ch_fields[i]);
    if (number < 0 || !takes(&t, number) || before--) continue;
    ch_field_describe(&ch_fields[i], &defaults, field);
    return CHOIR_OK;
  }
  const ch_plugin *plugin = ch_plugin_of(router);
  if (plugin && before >= 0 && before < plugin->options) {
    const choir_plugin_option *option = &plugin->given.options[before];
    int bounded = option->low != 0 || option->high != 0;
    *field = (choir_field){.kind = CHOIR_FIELD_NUMBER,
                           .low = bounded ? option->low : -DBL_MAX,
                           .high = bounded ? option->high : DBL_MAX,
                           .help = option->help ? option->help : ""};
    snprintf(field->key, sizeof field->key, "model.router.%s", option->name);
    ch_format_exact(field->value, sizeof field->value, option->value);
    return CHOIR_OK;
  }
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' has no option number %d; it has %d", name, index,
                  choir_router_option_count(name));
}
