/* Third-party routers: the registry. */
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
#include "base/options.h"
#include "file/file.h"
#include "moe/routers/threshold.h"
#include "moe/routers/token_choice.h"

/* A definition of either kind. */
typedef struct {
  const choir_experts_choose *experts_choose;
  const choir_tokens_choose *tokens_choose;
} definition;

#define BUILT_IN(row) row(tokens_choose, random)
#define DECLARE(kind, name) extern const choir_##kind choir_router_##name;
#define POINTER(kind, name) {.kind = &choir_router_##name},
BUILT_IN(DECLARE)
static const definition built_in[] = {BUILT_IN(POINTER)};
enum { BUILT = sizeof built_in / sizeof *built_in };

static int make_router(const definition *d, ch_plugin *made) {
  return d->tokens_choose ? ch_plugin_of_tokens(d->tokens_choose, made) : ch_plugin_of_experts(d->experts_choose, made);
}

static ch_plugin built_in_plugins[BUILT],
    *plugins[CH_PLUGINS]; /* the latest definition of each name, those of choir's first */
static const char **names(void) { return ch_router_names + (ch_router_plugins() - ch_routers); }

/* ---- registering */

static int is_native(const char *name) {
  for (const ch_router **one = ch_routers; one < ch_router_plugins() + BUILT; one++)
    if (!strcmp((*one)->name, name)) return 1;
  return 0;
}

static int copy_text(const char *text, const char **copy, char **owner) {
  if (!text) text = "";
  CH_TRY(CH_ALLOC(owner, strlen(text) + 1, "a router's definition"));
  strcpy(*owner, text);
  *copy = *owner;
  return CHOIR_OK;
}

/* Copies the caller's strings. */
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

/* Makes this the current definition of its name. Existing models keep earlier definitions, which are never freed. */
static void publish(ch_plugin *p, int place) {
  p->earlier = plugins[place];
  plugins[place] = p;
  ch_router_plugins()[place] = &p->router;
  names()[place] = p->given.name;
}

__attribute__((constructor)) static void make_built_in(void) {
  for (int i = 0; i < BUILT; i++) {
    make_router(&built_in[i], &built_in_plugins[i]);
    built_in_plugins[i].given.file = built_in_plugins[i].given.version = "";
    publish(&built_in_plugins[i], i);
  }
}

/* The place of the plug-in with this name, or a free place; CH_PLUGINS: none is free. */
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

/* Sets file and checksum of a definition if a file is being loaded, and uses the checksum as version if the definition
 * has none; version [CHOIR_NAME_BYTES] is the buffer. If the file cannot be read, the definition must have a
 * version. */
static int stamp(ch_plugin *p, char *version) {
  choir_router_common *r = &p->given;
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

/* Refuses a second router with the same name from another file, because a run could use the wrong one. */
static int check_place(int place, const ch_plugin *p) {
  const choir_router_common *r = &p->given;
  if (place == CH_PLUGINS)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "router '%s': there are %d plug-ins already, which is all that there is room for", r->name,
                    CH_PLUGINS - BUILT);
  const ch_plugin *before = plugins[place];
  const char *file = r->file ? r->file : "";
  if (!before || !strcmp(before->given.file, file)) return CHOIR_OK;
  if (p->has_checksum && before->has_checksum && p->checksum == before->checksum)
    return CHOIR_OK; /* the same file by another path */
  return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %s has one of that name, and %s another: rename one", r->name,
                  *before->given.file ? before->given.file : "the program", *file ? file : "the program");
}

static int make(const definition *d, ch_plugin *made) {
  char version[CHOIR_NAME_BYTES];
  CH_TRY(make_router(d, made));
  if (is_native(made->given.name))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s' is one of choir's own: take another name", made->given.name);
  CH_TRY(stamp(made, version));
  CH_TRY(check_place(place_for(made->given.name), made));
  CH_TRY(copy_texts(made));
  made->router.name = made->given.name;
  made->router.summary = made->given.summary;
  return CHOIR_OK;
}

static int add_router(const definition *d) {
  ch_plugin *made;
  CH_TRY(CH_ALLOC(&made, 1, "a router's definition"));
  int code = make(d, made);
  if (!code) return publish(made, place_for(made->given.name)), CHOIR_OK;
  free_texts(made);
  free(made);
  return code;
}

int choir_router_register_experts(const choir_experts_choose *router) {
  CH_ENTER(router);
  CH_OPTIONS(choir_experts_choose, given, router, {0});
  return add_router(&(definition){.experts_choose = &given});
}

int choir_router_register_tokens(const choir_tokens_choose *router) {
  CH_ENTER(router);
  CH_OPTIONS(choir_tokens_choose, given, router, {0});
  return add_router(&(definition){.tokens_choose = &given});
}

/* The one struct of 0.4 and 0.5: experts choose if choices is 0 and the router depends on other tokens in
 * evaluation. */
int choir_router_register(const choir_plugin_router *r) {
  CH_ENTER(r);
  CH_CHECK_RESERVED(r, "choir_plugin_router");
  choir_tokens_choose tokens = {.common = {.name = r->name,
                                           .summary = r->summary,
                                           .file = r->file,
                                           .version = r->version,
                                           .context = r->context,
                                           .normalize_gates = r->normalize_gates,
                                           .draws = r->draws,
                                           .aux_loss_weight = r->aux_loss_weight,
                                           .choose = r->choose,
                                           .loss = r->loss},
                                .depends_on = r->looks,
                                .experts_per_token = r->choices,
                                .experts_per_token_option = r->choices && r->choices_default,
                                .capacity_factor = r->capacity_factor,
                                .reads = r->reads,
                                .gates = r->gates,
                                .observe = r->observe};
  memcpy(tokens.common.options, r->options, sizeof r->options);
  const choir_experts_choose experts = {tokens.common, tokens.depends_on, tokens.capacity_factor};
  int any_number = !r->choices && !r->gates && !r->observe && !r->reads;
  if (any_number && (r->looks == CHOIR_DEPENDS_ON_PAST || r->looks == CHOIR_DEPENDS_ON_ALL))
    return add_router(&(definition){.experts_choose = &experts});
  return add_router(&(definition){.tokens_choose = &tokens});
}

int choir_router_is_plugin(const char *name) {
  for (const ch_router **r = ch_router_plugins(); name && *r; r++)
    if (!strcmp((*r)->name, name)) return (*r)->update_per_step ? 2 : 1;
  return 0;
}

const char *choir_router_version(const char *name) {
  const ch_plugin *p = name ? ch_plugin_of(ch_router_find(name)) : NULL;
  return p && *p->given.version ? p->given.version : NULL;
}
