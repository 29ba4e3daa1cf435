/* The fields of a config, in one table, and configs from memory. */
#ifndef CH_MODEL_CONFIG_H
#define CH_MODEL_CONFIG_H

#include "config/config.h"
#include "file/json.h"

typedef enum {
  CH_FIELD_INTEGER, /* int */
  CH_FIELD_LONG,    /* int64_t */
  CH_FIELD_SEED,    /* uint64_t */
  CH_FIELD_NUMBER,  /* double */
  CH_FIELD_STEPS,   /* double: steps, or below 1 a share of train.steps */
  CH_FIELD_FLAG,    /* int, 0 or 1 */
  CH_FIELD_WORD,    /* int, a number of its words */
  CH_FIELD_TEXT,    /* char [high + 1] */
  CH_FIELD_ROUTER   /* const ch_router *; setting it sets the options of routers */
} ch_field_kind;

/* One row drives default, parsing, saving, --set, limits and messages. */
typedef struct ch_field {
  const char *path; /* dotted, as in JSON */
  ch_field_kind kind;
  size_t offset;    /* in choir_config */
  double value;     /* default of a number or a word */
  double low, high; /* range of a number, inclusive; `open` excludes low */
  int open;
  const char *const *words; /* permitted words; NULL: not a word */
  const char *help;
} ch_field;

/* clang-format off */
enum {
#define FIELD(...) +1
  CH_FIELDS = 1 /* the router's name */
#include "config/model.def"
#include "config/router.def"
#include "config/train.def"
#include "config/parallel.def"
#undef FIELD
};
/* clang-format on */
extern const ch_field ch_fields[];

/* The number of steps of a CH_FIELD_STEPS value in a run of `of` steps; a fraction is multiplied by `of` and
 * rounded. */
int64_t ch_config_steps(double steps, int64_t of);

/* Describes the values that a field takes: "an integer from 1 to 4096". Returns `text`. */
const char *ch_field_wanted(const ch_field *f, char *text, size_t size);

/* ch_did_you_mean for field names, including the names that other programs use ("lr": train.learning_rate). */
const char *ch_field_did_you_mean(char *text, size_t size, const char *key, const char *const *known);

/* Whether `key` is the path, or a suffix of the path after a dot. */
int ch_path_ends(const char *path, const char *key);

/* Finds a field by its name in files of earlier versions; NULL: none. */
const ch_field *ch_field_former(const char *section, const char *key);

/* The current path of a field by its name in an earlier version; NULL: none. */
const char *ch_field_renamed(const char *key);

/* Finds a field by its path, or by a suffix of the path that is unambiguous. CHOIR_ERROR_ARGUMENT names the nearest
 * field, or both candidates. Former names are accepted, with a notice. */
int ch_field_find(const char *key, const ch_field **found);

void ch_field_default(choir_config *config, const ch_field *f);
/* Sets the field from JSON; CHOIR_ERROR_ARGUMENT names path, value, and permitted values. */
int ch_field_set(choir_config *config, const ch_field *f, const json_t *value);
/* The same check for the value that the struct holds. */
int ch_field_check(const choir_config *config, const ch_field *f);
/* For the public interface; the default is the value of `defaults`. */
void ch_field_describe(const ch_field *f, const choir_config *defaults, choir_field *field);
json_t *ch_field_json(const choir_config *config, const ch_field *f); /* NULL: out of memory */
/* Formats the value as text; returns `text`. The second function compares the values of two configs. */
const char *ch_field_text(const choir_config *config, const ch_field *f, char *text, size_t size);
/* The value as a number; NaN for a text. */
double ch_field_number(const choir_config *config, const ch_field *f);
int ch_field_same(const choir_config *a, const choir_config *b, const ch_field *f);

/* Custom options of a plug-in router (moe/plugin.h). find returns the index of an option by its path or the end of its
 * path; -1: no such option of the chosen router. The other functions read and write values; ch_plugin_option_json adds
 * them to a JSON object, nonzero: out of memory. */
int ch_plugin_option_find(const choir_config *config, const char *key);
int ch_plugin_option_set(choir_config *config, int number, const json_t *value);
int ch_plugin_option_set_text(choir_config *config, int number, const char *value);
double ch_plugin_option_value(const choir_config *config, int number);
int ch_plugin_option_json(const choir_config *config, json_t *router);
/* Updates a config to the latest definition of its plug-in router, before a model is created; options that were set
 * keep their values. */
int ch_plugin_option_renew(choir_config *config);

/* CHOIR_ERROR_ARGUMENT, naming field, value and permitted values, if an option that the chosen router or optimizer does
 * not use differs from its default, or if a router's option is out of range. Every function that receives options must
 * call this first, because routers rely on valid options. */
int ch_options_check_router(const ch_router_spec *options);
/* Writes a notice that names the options that both routers accept, that had been set, and that a change of the router
 * reset to its defaults, except those in keys [count], which the caller sets again. */
void ch_options_notice_reset(const ch_router_spec *before, const ch_router_spec *after, const char *const *keys,
                             int count);
int ch_options_check_optimizer(const choir_config *config);

/* CHOIR_ERROR_ARGUMENT, naming field, value and what to set, unless train.objective, model.attention and their options
 * are compatible. Next-token prediction needs causal attention, because later tokens contain the target; masked
 * objectives need bidirectional attention. */
int ch_options_check_objective(const choir_config *config);

/* Whether both configs describe the same model, including the router's name and its evaluation settings. If not,
 * `difference` [size] has the first field that differs, "model.layers is 6, not 4". */
int ch_config_same_model(const choir_config *a, const choir_config *b, char *difference, size_t size);

/* Whether the training objective masks tokens. The mask is then the last token of the vocabulary, which the tokenizer
 * never produces. */
static inline int ch_config_masked(const choir_config *c) { return c->train.objective != CH_NEXT_TOKEN; }
static inline int ch_config_diffusion(const choir_config *c) { return c->train.objective == CH_MASKED_DIFFUSION; }
static inline int ch_config_pieces(const choir_config *c) { return c->model.vocab_size - ch_config_masked(c); }

/* CHOIR_ERROR_UNSUPPORTED, naming train.objective, unless the model predicts the next token. what: the caller's
 * operation, for the message. */
int ch_config_check_next_token(const choir_config *c, const char *what);

/* Every field as JSON, nested as in the file; NULL: out of memory. */
json_t *ch_config_json(const choir_config *config);

/* A hash of all fields. */
uint64_t ch_config_hash(const choir_config *config);

/* choir_config_create and choir_config_load for a struct of the caller. */
void ch_config_default(choir_config *config);
int ch_config_load(const char *path, choir_config *config);

/* choir_config_load on a text; `name` starts every message. */
int ch_config_parse(const char *text, size_t length, const char *name, choir_config *config);

#endif
