/* Routers that somebody else wrote: the registry, and their options. */
#include "moe/plugin.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/format.h"
#include "base/hash.h"
#include "file/file.h"
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

#define BUILT_IN(row) row(random)
#define DECLARE(name) extern const choir_plugin_router choir_router_##name;
#define POINTER(name) &choir_router_##name,
BUILT_IN(DECLARE)
static const choir_plugin_router *const built_in[] = {BUILT_IN(POINTER)};
enum { BUILT = sizeof built_in / sizeof *built_in };

static ch_plugin own[BUILT], *plugins[CH_PLUGINS]; /* the latest definition of each name, those of choir's first */
static const char **names(void) { return ch_router_names + (ch_router_plugins() - ch_routers); }

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
    double value = o->own[i];
    const choir_plugin_option *own = p && i < p->options ? &p->given.options[i] : NULL;
    int bounded = own && (own->low != 0 || own->high != 0);
    if (own ? isfinite(value) && (!bounded || (value >= own->low && value <= own->high)) : value == 0) continue;
    if (!own)
      return ch_error(CHOIR_ERROR_ARGUMENT,
                      "model.router.own[%d] is %g, but router '%s' has no such option: set it to 0", i, value,
                      router->name);
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.router.%s is %g: must be %s", own->name, value,
                    ch_plugin_wanted(own, wanted, sizeof wanted));
  }
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

/* ---- registering */

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

static int is_native(const char *name) {
  for (const ch_router **own = ch_routers; own < ch_router_plugins() + BUILT; own++)
    if (!strcmp((*own)->name, name)) return 1;
  return 0;
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

static int count_options(const choir_plugin_router *r) {
  int count = 0;
  while (count < CHOIR_PLUGIN_OPTIONS && r->options[count].name) count++;
  return count;
}

static int check_definition(const choir_plugin_router *r) {
  CH_CHECK_RESERVED(r, "choir_plugin_router");
  if (!is_word(r->name))
    return ch_error(CHOIR_ERROR_ARGUMENT, "the name of a router is '%.40s': must be 1 to 31 letters, digits and _",
                    r->name ? r->name : "");
  if (is_native(r->name))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' is one of choir's own: take another name", r->name);
  if (r->version && !is_version(r->version))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': version is '%.40s': must be 1 to 31 letters, digits and any of ._-", r->name,
                    r->version);
  if (!r->choose) return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': choose is NULL", r->name);
  if (r->looks < CHOIR_DEPENDS_ON_NONE || r->looks > CHOIR_DEPENDS_ON_ALL)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': looks is %d: must be a choir_depends_on", r->name,
                    (int)r->looks);
  if (r->choices < 0 || r->choices > 65536)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': choices is %d: must be from 0 to 65536", r->name, r->choices);
  if (!(r->capacity_factor >= 0 && r->capacity_factor <= 65536) || (!r->choices && !(r->capacity_factor > 0)))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': capacity_factor is %g: must be at most 65536, and above 0 where experts choose "
                    "(choices is 0)",
                    r->name, r->capacity_factor);
  if (!(r->aux_loss_weight >= 0) || isinf(r->aux_loss_weight) || (r->aux_loss_weight > 0 && !r->choices && !r->loss))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': aux_loss_weight is %g with choices %d: tokens that make choices have that loss, and "
                    "routers with one of their own (loss)",
                    r->name, r->aux_loss_weight, r->choices);
  if (r->observe && (!r->choices || r->looks == CHOIR_DEPENDS_ON_PAST || r->looks == CHOIR_DEPENDS_ON_ALL))
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "router '%s': keeps a state (observe) with choices %d and looks %s: tokens must make choices, and look "
        "at no other outside of training; thresholds would have the place of the state",
        r->name, r->choices, ch_plugin_looks[r->looks]);
  if (r->reads && (r->reads != CHOIR_READS_IDS || !r->choices || r->looks > CHOIR_DEPENDS_ON_ALL_IN_TRAINING ||
                   r->gates || r->normalize_gates || r->loss || r->aux_loss_weight > 0))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': reads is %d: must be a choir_reads, and who reads ids has choices, looks at no other "
                    "token outside of training, and has no gates, normalize_gates, loss or aux_loss_weight",
                    r->name, (int)r->reads);
  if (r->gates && (r->normalize_gates || r->looks > CHOIR_DEPENDS_ON_ALL_IN_TRAINING))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': has gates of its own, looks %s and normalize_gates %d: they count as they are (leave "
                    "normalize_gates 0), and a router that looks at other tokens outside of training is served by "
                    "thresholds, whose gates are scores (leave gates NULL)",
                    r->name, ch_plugin_looks[r->looks], r->normalize_gates);
  for (int i = 0; i < count_options(r); i++) {
    CH_TRY(check_option(r->name, &r->options[i]));
    for (int before = 0; before < i; before++)
      if (!strcmp(r->options[before].name, r->options[i].name))
        return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': has two options '%s'", r->name, r->options[i].name);
  }
  return CHOIR_OK;
}

static int copy_text(const char *text, const char **copy, char **owner) {
  if (!text) text = "";
  CH_TRY(CH_ALLOC(owner, strlen(text) + 1, "a router's definition"));
  strcpy(*owner, text);
  *copy = *owner;
  return CHOIR_OK;
}

/* Texts of the caller become our own. */
static int copy_texts(ch_plugin *p) {
  char **text = p->text;
  CH_TRY(copy_text(p->given.name, &p->given.name, text++));
  CH_TRY(copy_text(p->given.summary, &p->given.summary, text++));
  CH_TRY(copy_text(p->given.file, &p->given.file, text++));
  CH_TRY(copy_text(p->given.version, &p->given.version, text++));
  for (int i = 0; i < p->options; i++) {
    CH_TRY(copy_text(p->given.options[i].name, &p->given.options[i].name, text++));
    CH_TRY(copy_text(p->given.options[i].help, &p->given.options[i].help, text++));
  }
  return CHOIR_OK;
}

static void free_texts(ch_plugin *p) {
  for (size_t i = 0; i < sizeof p->text / sizeof *p->text; i++) free(p->text[i]);
}

/* Routers without a look at other tokens are causal by their own rule; the others keep thresholds. */
static void make_router(ch_plugin *p) {
  const choir_plugin_router *g = &p->given;
  int ranked = g->looks == CHOIR_DEPENDS_ON_PAST || g->looks == CHOIR_DEPENDS_ON_ALL,
      scored = g->reads == CHOIR_READS_SCORES;
  p->router = (ch_router){
      .name = g->name,
      .summary = g->summary,
      .reads = g->reads,
      .depends_on = g->looks,
      .gates = !scored    ? CHOIR_GATES_EVEN
               : g->gates ? CHOIR_GATES_OWN
                          : CHOIR_GATES_SCORE,
      .loss = g->loss                ? CHOIR_LOSS_OWN
              : g->choices && scored ? CHOIR_LOSS_BALANCE
                                     : CHOIR_LOSS_NONE,
      .takes = {.capacity = g->looks != CHOIR_DEPENDS_ON_NONE,
                .decay = ranked,
                .consistency_weight = g->draws != 0,
                .experts_per_token = g->choices_default != 0},
      .choices = g->choices,
      .by_step = g->observe != NULL,
      .draws = g->draws,
      .plugin = 1,
      .defaults = {.capacity_factor = g->capacity_factor,
                   .normalize_gates = g->normalize_gates != 0,
                   .aux_loss_weight = g->aux_loss_weight,
                   .experts_per_token = g->choices_default ? g->choices : 0,
                   .cap = g->choices_default ? 0 : g->choices},
      .check = check,
      .max_slots = ch_plugin_max_slots,
      .route = ch_plugin_route,
      .causal = ranked ? ch_router_by_thresholds : ch_plugin_causal,
      .observe = ranked       ? ch_router_observe_cutoffs
                 : g->observe ? ch_plugin_observe
                              : NULL,
      .backward = scored ? ch_plugin_backward : NULL,
  };
  for (int i = 0; i < p->options; i++) p->router.defaults.own[i] = g->options[i].value;
}

/* From now on the name means this definition. Whatever was made of an earlier one keeps that: no definition is freed.
 */
static void publish(ch_plugin *p, int place) {
  p->earlier = plugins[place];
  plugins[place] = p;
  ch_router_plugins()[place] = &p->router;
  names()[place] = p->given.name;
}

__attribute__((constructor)) static void make_built_in(void) {
  for (int i = 0; i < BUILT; i++) {
    own[i] = (ch_plugin){.given = *built_in[i], .options = count_options(built_in[i])};
    own[i].given.file = own[i].given.version = "";
    make_router(&own[i]);
    publish(&own[i], i);
  }
}

/* That of the name, or the next that is free; CH_PLUGINS: there is none. */
static int place_for(const char *name) {
  int i = BUILT;
  while (i < CH_PLUGINS && plugins[i] && strcmp(plugins[i]->given.name, name)) i++;
  return i;
}

_Thread_local const ch_plugin_source *ch_plugin_loading;

int ch_plugin_read(const char *path, uint64_t *checksum) {
  const void *bytes;
  size_t size;
  CH_TRY(ch_file_map(path, &bytes, &size));
  *checksum = XXH64(bytes, size, 0);
  ch_file_unmap(bytes, size);
  return CHOIR_OK;
}

/* Gives a definition the file that is being loaded, if there is one, its checksum, and that as its version, if it names
 * none. version [CHOIR_NAME_BYTES] has room for that. A file that cannot be read has no checksum: a version is needed
 * then. */
static int stamp(ch_plugin *p, char *version) {
  choir_plugin_router *r = &p->given;
  if (!r->file && ch_plugin_loading) r->file = ch_plugin_loading->path;
  if (!r->file) return CHOIR_OK;
  p->has_checksum = 1;
  if (ch_plugin_loading && !strcmp(r->file, ch_plugin_loading->path))
    p->checksum = ch_plugin_loading->checksum;
  else if (ch_plugin_read(r->file, &p->checksum))
    p->has_checksum = 0;
  if (r->version) return CHOIR_OK;
  if (!p->has_checksum) return ch_plugin_read(r->file, &p->checksum);
  r->version = ch_hex(p->checksum, version);
  return CHOIR_OK;
}

/* Of two routers of one name a run would have the one that came later, whichever was meant. */
static int check_place(int place, const ch_plugin *p) {
  const choir_plugin_router *r = &p->given;
  if (place == CH_PLUGINS)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': there are %d plug-ins already, which is all that there is room for", r->name,
                    CH_PLUGINS - BUILT);
  const ch_plugin *before = plugins[place];
  const char *file = r->file ? r->file : "";
  if (!before || !strcmp(before->given.file, file)) return CHOIR_OK;
  if (p->has_checksum && before->has_checksum && p->checksum == before->checksum)
    return CHOIR_OK; /* the same, by another path */
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %s has one of that name, and %s another: rename one", r->name,
                  *before->given.file ? before->given.file : "the program", *file ? file : "the program");
}

static int make(const choir_plugin_router *router, ch_plugin *made) {
  char version[CHOIR_NAME_BYTES];
  *made = (ch_plugin){.given = *router, .options = count_options(router)};
  CH_TRY(stamp(made, version));
  CH_TRY(check_place(place_for(router->name), made));
  CH_TRY(copy_texts(made));
  make_router(made);
  return CHOIR_OK;
}

int choir_router_register(const choir_plugin_router *router) {
  CH_ENTER(router);
  ch_plugin *made;
  CH_TRY(check_definition(router));
  CH_TRY(CH_ALLOC(&made, 1, "a router's definition"));
  int code = make(router, made);
  if (!code) return publish(made, place_for(router->name)), CHOIR_OK;
  free_texts(made);
  free(made);
  return code;
}

int choir_router_is_plugin(const char *name) {
  for (const ch_router **r = ch_router_plugins(); name && *r; r++)
    if (!strcmp((*r)->name, name)) return (*r)->by_step ? 2 : 1;
  return 0;
}

const char *choir_router_version(const char *name) {
  const ch_plugin *p = name ? ch_plugin_of(ch_router_find(name)) : NULL;
  return p && *p->given.version ? p->given.version : NULL;
}
