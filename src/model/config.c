#include "config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/embedded.h"
#include "base/enter.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "file/json.h"
#include "file/path_status.h"
#include "model/capacity.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/router.h"

/* ---- handles ---- */

int choir_config_copy(const choir_config *from, choir_config **config) {
  CH_ENTER(from, config);
  CH_TRY(CH_ALLOC(config, 1, "a config"));
  **config = *from;
  return CHOIR_OK;
}

int choir_config_create(choir_config **config) {
  CH_ENTER(config);
  choir_config made;
  ch_config_default(&made);
  return choir_config_copy(&made, config);
}

int choir_config_load(const char *path, choir_config **config) {
  CH_ENTER(path, config);
  choir_config made;
  *config = NULL;
  CH_TRY(ch_config_load(path, &made));
  return choir_config_copy(&made, config);
}

void choir_config_free(choir_config *config) { free(config); }

/* ---- JSON: one nested object per dot of a path ---- */

static const char *const sections[] = {"model", "model.router", "train", "parallel"};
enum { SECTIONS = sizeof sections / sizeof *sections };

/* The last component of `path` if the rest equals `section` ("": top level), else NULL. */
static const char *member_of(const char *path, const char *section) {
  size_t length = strlen(section);
  if (strncmp(path, section, length) || (length && path[length] != '.')) return NULL;
  const char *member = path + length + (length > 0);
  return strchr(member, '.') ? NULL : member;
}

static const ch_field *find_field(const char *section, const char *key) {
  for (int i = 0; i < CH_FIELDS; i++) {
    const char *member = member_of(ch_fields[i].path, section);
    if (member && !strcmp(member, key)) return &ch_fields[i];
  }
  return NULL;
}

static const char *find_section(const char *section, const char *key) {
  for (int s = 0; s < SECTIONS; s++) {
    const char *member = member_of(sections[s], section);
    if (member && !strcmp(member, key)) return sections[s];
  }
  return NULL;
}

static int unknown_key(const char *section, const char *key) {
  const char *known[CH_FIELDS + SECTIONS + 1];
  char suggestion[100];
  int count = 0;
  for (int i = 0; i < CH_FIELDS; i++)
    if ((known[count] = member_of(ch_fields[i].path, section))) count++;
  for (int s = 0; s < SECTIONS; s++)
    if ((known[count] = member_of(sections[s], section))) count++;
  known[count] = NULL;
  return ch_error(CHOIR_ERROR_FORMAT, "unknown key '%s%s%.80s'%s", section, *section ? "." : "", key,
                  ch_field_did_you_mean(suggestion, sizeof suggestion, key, known));
}

/* The name is read first, because it sets defaults that the router's other keys override. An unknown name is not an
 * error of the file, so no other checkpoint is tried. */
static int read_router(choir_config *config, const ch_field *name, json_t *value) {
  int code = ch_field_set(config, name, value);
  return code == CHOIR_ERROR_ARGUMENT && json_is_string(value) ? CHOIR_ERROR_UNSUPPORTED : code;
}

static int read_section(choir_config *config, const char *section, json_t *object) {
  const char *key;
  json_t *value;
  const ch_field *name = find_field(section, "name");
  if (name && (value = json_object_get(object, "name"))) CH_TRY(read_router(config, name, value));
  json_object_foreach(object, key, value) {
    const ch_field *f = find_field(section, key), *former = f ? NULL : ch_field_former(section, key);
    const char *inner = find_section(section, key);
    int option = f || former || strcmp(section, "model.router") ? -1 : ch_plugin_option_find(config, key);
    if (former && json_object_get(object, strrchr(former->path, '.') + 1))
      return ch_error(CHOIR_ERROR_FORMAT, "%s.%s is called %s now, and both are there: leave one out", section, key,
                      former->path);
    if (f || former)
      CH_TRY(ch_field_set(config, f ? f : former, value));
    else if (option >= 0)
      CH_TRY(ch_plugin_option_set(config, option, value));
    else if (!inner)
      return unknown_key(section, key);
    else if (!json_is_object(value))
      return ch_error(CHOIR_ERROR_FORMAT, "%s must be an object {...}", inner);
    else
      CH_TRY(read_section(config, inner, value));
  }
  return CHOIR_OK;
}

static int read_root(json_t *root, const char *name, choir_config *config) {
  ch_config_default(config);
  int code = read_section(config, "", root);
  if (!code) code = choir_config_check(config);
  json_decref(root);
  /* A bad value in a struct is CHOIR_ERROR_ARGUMENT; in a file it is CHOIR_ERROR_FORMAT. */
  return code ? ch_error_in(code == CHOIR_ERROR_ARGUMENT ? CHOIR_ERROR_FORMAT : code, "%s", name) : CHOIR_OK;
}

int ch_config_parse(const char *text, size_t length, const char *name, choir_config *config) {
  json_t *root;
  CH_TRY(ch_json_parse(text, length, name, &root));
  return read_root(root, name, config);
}

const char *const *choir_config_names(void) {
  enum { MAX = 63 };
  static const char *names[MAX + 1]; /* static: every thread writes equal contents */
  for (int i = 0; i < MAX && ch_configs[i].name; i++) names[i] = ch_configs[i].name;
  return names;
}

/* A file takes precedence over a built-in config of the same name. */
static const char *built_in(const char *name) {
  int there;
  for (const ch_embedded *b = ch_configs; b->name; b++)
    if (!strcmp(b->name, name))
      return ch_path_exists(name, &there) || there ? NULL : b->text; /* opening the file reports the error */
  return NULL;
}

int ch_config_load(const char *path, choir_config *config) {
  const char *text = built_in(path);
  char nearest[128];
  int there = 1;
  json_t *root;
  if (!text && !strchr(path, '/')) CH_TRY(ch_path_exists(path, &there));
  errno = ENOENT;
  if (!there)
    return ch_error_errno("there is no built-in config '%s'%s, and no file %s", path,
                          ch_did_you_mean(nearest, sizeof nearest, path, choir_config_names()), path);
  CH_TRY(text ? ch_json_parse(text, strlen(text), path, &root) : ch_json_load(path, &root));
  return read_root(root, path, config);
}

/* JSON object of the fields of a section, then of its subsections. NULL: out of memory. */
static json_t *section_json(const choir_config *config, const char *section) {
  json_t *object = json_object();
  int failed = 0;
  for (int i = 0; i < CH_FIELDS; i++) {
    const char *member = member_of(ch_fields[i].path, section);
    if (member) failed |= json_object_set_new(object, member, ch_field_json(config, &ch_fields[i]));
  }
  for (int s = 0; s < SECTIONS; s++) {
    const char *member = member_of(sections[s], section);
    if (member) failed |= json_object_set_new(object, member, section_json(config, sections[s]));
  }
  if (!strcmp(section, "model.router")) failed |= ch_plugin_option_json(config, object);
  if (!failed) return object;
  json_decref(object);
  return NULL;
}

/* "model.layers is 6, not 4". */
static void say_difference(const char *path, const json_t *left, const json_t *right, char *text, size_t size) {
  char *is = ch_json_dump(left, JSON_ENCODE_ANY), *other = ch_json_dump(right, JSON_ENCODE_ANY);
  snprintf(text, size, "%s is %s, not %s", path, is ? is : "?", other ? other : "?");
  free(is);
  free(other);
}

int ch_config_same_model(const choir_config *a, const choir_config *b, char *difference, size_t size) {
  int same = 1;
  for (int i = 0; i < CH_FIELDS && same; i++) {
    if (strncmp(ch_fields[i].path, "model.", 6) != 0) continue;
    json_t *left = ch_field_json(a, &ch_fields[i]), *right = ch_field_json(b, &ch_fields[i]);
    same = left && right && json_equal(left, right);
    if (!same) say_difference(ch_fields[i].path, left, right, difference, size);
    json_decref(left);
    json_decref(right);
  }
  return same;
}

json_t *ch_config_json(const choir_config *config) { return section_json(config, ""); }

uint64_t ch_config_hash(const choir_config *config) {
  json_t *whole = ch_config_json(config);
  char *text = ch_json_dump(whole, JSON_COMPACT | JSON_SORT_KEYS);
  uint64_t hash = text ? XXH64(text, strlen(text), 0) : 0;
  free(text);
  json_decref(whole);
  return hash;
}

int choir_config_save(const choir_config *config, const char *path) {
  CH_ENTER(config, path);
  int code = choir_config_check(config); /* a saved config must be loadable */
  return code ? ch_error_in(code, "%s: not written", path) : ch_json_save(ch_config_json(config), path);
}

/* ---- constraints between fields ---- */

int ch_config_check_next_token(const choir_config *c, const char *what) {
  if (!ch_config_masked(c)) return CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_UNSUPPORTED,
      "train.objective is %s: %s needs a model that predicts the next token; 'choir eval' and 'inspect' take "
      "this one",
      ch_objectives[c->train.objective], what);
}

int choir_config_mask_token(const choir_config *config) {
  return config && ch_config_masked(config) && config->model.vocab_size ? config->model.vocab_size - 1 : -1;
}

/* Counts the rotated columns as other programs do: rounded down, then in pairs. */
static int check_rope(const ch_model_config *m) {
  int rotated = ch_config_rotated(m);
  if (!ch_config_has_rope(m) && (m->rope_theta != 1e4 || m->rope_fraction != 1))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.rope_theta is %g and model.rope_fraction %g, which model.position '%s' does not read: leave "
                    "them out, or set model.position to rope",
                    m->rope_theta, m->rope_fraction, ch_positions[m->position]);
  if (ch_config_has_rope(m) && (rotated < 2 || rotated % 2))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.rope_fraction is %g, of heads of %d columns %d: must be an even number of them, at least 2",
                    m->rope_fraction, ch_config_d_head(m), rotated);
  return CHOIR_OK;
}

static int check_attention(const ch_model_config *m) {
  if (!m->d_head && m->d_model % m->heads)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.d_model is %d and model.heads %d: d_model must be divisible by heads, or model.d_head given",
                    m->d_model, m->heads);
  if (ch_config_kv_heads(m) > m->heads || m->heads % ch_config_kv_heads(m))
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.kv_heads is %d: must divide model.heads, which is %d", m->kv_heads,
                    m->heads);
  if (m->qk_norm_whole && !m->qk_norm)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.qk_norm_whole is true and model.qk_norm false: set that too, or leave both out");
  CH_TRY(check_rope(m));
  if (ch_config_bidirectional(m) && ch_config_has_bias(m) && m->rel_buckets % 2)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "model.rel_buckets is %d with model.attention bidirectional, where one half is for positions ahead: "
        "must be even",
        m->rel_buckets);
  if (m->rel_max_distance <= m->rel_buckets / 2)
    return ch_error(
        CHOIR_ERROR_ARGUMENT,
        "model.rel_max_distance is %d: must be above half of model.rel_buckets (%d), whose first half holds "
        "one distance each",
        m->rel_max_distance, m->rel_buckets);
  return CHOIR_OK;
}

/* Training with threshold_after requires pool batch. The router's own check does not test this, because evaluation may
 * use any pool. */
static int check_threshold_training(const ch_router_spec *o) {
  if (!o->threshold_after) return CHOIR_OK;
  if (ch_router_takes(o->kind, CH_OPTION_pool) && o->pool != CH_POOL_BATCH)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.router.threshold_after is %lld with pool '%s': it goes with pool 'batch' only, since a "
                    "threshold knows no pool",
                    (long long)o->threshold_after, ch_router_pools[o->pool]);
  return CHOIR_OK;
}

static int check_shards(const ch_model_config *m, const ch_train_config *t) {
  if (t->batch_sequences % t->grad_chunks)
    return ch_error(CHOIR_ERROR_ARGUMENT, "train.grad_chunks is %d: it must divide train.batch_sequences, which is %d",
                    t->grad_chunks, t->batch_sequences);
  if (t->grad_chunks > 1 && m->moe_every && ch_router_draws_per_sequence(&m->router) > 1)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.grad_chunks is %d with model.router.consistency_weight, which compares all sequences with "
                    "themselves: it must be 1",
                    t->grad_chunks);
  return CHOIR_OK;
}

static int check_routing(const choir_config *config) {
  const ch_model_config *m = &config->model;
  const ch_train_config *t = &config->train;
  int64_t n = (int64_t)t->batch_sequences * t->sequence_length * ch_router_draws_per_sequence(&m->router);
  if (n > INT_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "train.batch_sequences %d times train.sequence_length %d is %lld tokens: at most %d at once; use "
                    "train.accumulate",
                    t->batch_sequences, t->sequence_length, (long long)n, INT_MAX);
  CH_TRY(check_shards(m, t));
  if (!m->moe_every && *m->layer_capacity)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.layer_capacity is \"%s\" with model.moe_every 0, which has no MoE layer: leave it out",
                    m->layer_capacity);
  if (!m->moe_every) return CHOIR_OK;
  if (!ch_config_moe_layers(m))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "model.moe_every is %d with %d layers, of which the first %d are dense (model.dense_layers), which "
                    "gives no MoE layer; use 0 for a dense model",
                    m->moe_every, m->layers, m->dense_layers);
  if (m->experts > n)
    return ch_error(CHOIR_ERROR_ARGUMENT, "model.experts is %d: more than the %lld tokens of a batch (%d times %d)",
                    m->experts, (long long)n, t->batch_sequences, t->sequence_length);
  CH_TRY(ch_config_check_capacity(config, (int)n));
  return check_threshold_training(&m->router);
}

static int check_schedule(const ch_train_config *c) {
  if (c->schedule != CH_COSINE || !c->cooldown_steps) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT,
                  "train.cooldown_steps is %g and train.schedule cosine, which falls to the end by itself: set one "
                  "to 0 or the other to inverse_sqrt",
                  c->cooldown_steps);
}

int choir_config_check(const choir_config *config) {
  CH_ENTER(config);
  ch_params params;
  for (int i = 0; i < CH_FIELDS; i++) CH_TRY(ch_field_check(config, &ch_fields[i]));
  CH_TRY(ch_options_check_router(&config->model.router));
  CH_TRY(ch_options_check_optimizer(config));
  CH_TRY(check_schedule(&config->train));
  CH_TRY(check_attention(&config->model));
  CH_TRY(ch_options_check_objective(config));
  CH_TRY(check_routing(config));
  CH_TRY(ch_params_build(&config->model, &params)); /* refuses a parameter count that overflows */
  ch_params_free(&params);
  return CHOIR_OK;
}
