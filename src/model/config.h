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
  double low, high; /* limits of a number, both allowed unless `open`, which excludes low itself */
  int open;
  const char *const *words; /* what a word may be; NULL: it is none */
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

/* What a field of kind CH_FIELD_STEPS means in a run of `of` steps: a share is rounded. */
int64_t ch_config_steps(double steps, int64_t of);

/* Describes the values that a field takes: "an integer from 1 to 4096". Returns `text`. */
const char *ch_field_wanted(const ch_field *f, char *text, size_t size);

/* ch_did_you_mean for the name of a field, which also knows what other programs call it ("lr": train.learning_rate). */
const char *ch_field_did_you_mean(char *text, size_t size, const char *key, const char *const *known);

/* Nonzero when `key` is the path or its end, at a dot. */
int ch_path_ends(const char *path, const char *key);

/* The field that files of earlier versions have so in a section; NULL: none. */
const ch_field *ch_field_former(const char *section, const char *key);

/* The path of the field that an earlier version called so; NULL: none. */
const char *ch_field_renamed(const char *key);

/* The field of a dotted path, or of an end of it that fits one field. CHOIR_ERROR_ARGUMENT names the nearest or both.
 * A former name is taken, with a notice. */
int ch_field_find(const char *key, const ch_field **found);

void ch_field_default(choir_config *config, const ch_field *f);
/* The JSON value into the field; CHOIR_ERROR_ARGUMENT with path, value, and what is allowed. */
int ch_field_set(choir_config *config, const ch_field *f, const json_t *value);
/* The same check for the value that the struct holds. */
int ch_field_check(const choir_config *config, const ch_field *f);
/* For the public interface; the default is the value of `defaults`. */
void ch_field_describe(const ch_field *f, const choir_config *defaults, choir_field *field);
json_t *ch_field_json(const choir_config *config, const ch_field *f); /* NULL: out of memory */
/* The value for people, and whether two configs have the same one. Returns `text`. */
const char *ch_field_text(const choir_config *config, const ch_field *f, char *text, size_t size);
/* The value as a number; NaN: it is a text. */
double ch_field_number(const choir_config *config, const ch_field *f);
int ch_field_same(const choir_config *a, const choir_config *b, const ch_field *f);

/* Options of a plug-in's router (moe/plugin.h): the number of one by its path or the end of it, -1: the chosen router
 * has none of that name; their values in and out. ch_plugin_option_json adds them to an object; nonzero: out of memory.
 */
int ch_plugin_option_find(const choir_config *config, const char *key);
int ch_plugin_option_set(choir_config *config, int number, const json_t *value);
int ch_plugin_option_set_text(choir_config *config, int number, const char *value);
double ch_plugin_option_value(const choir_config *config, int number);
int ch_plugin_option_json(const choir_config *config, json_t *router);
/* Gives a config from which something is made the latest definition of its plug-in's router; what was set stays. */
int ch_plugin_option_renew(choir_config *config);

/* CHOIR_ERROR_ARGUMENT, naming field, value and permitted values, if an option that the chosen router or optimizer does
 * not use differs from its default, or if a router's option is out of range. Every function that receives options must
 * call this first, because routers rely on valid options. */
int ch_options_check_router(const ch_router_spec *options);
/* A notice of the options that both routers take, and that were set and fell back to what the new one brings; but for
 * those of keys [count], which the caller has set again. */
void ch_options_notice_reset(const ch_router_spec *before, const ch_router_spec *after, const char *const *keys,
                             int count);
int ch_options_check_optimizer(const choir_config *config);

/* CHOIR_ERROR_ARGUMENT, naming field, value and what to set, unless the objective fits the attention and all options
 * that go with it. What sees later tokens has nothing to predict in the next one; what does not see them would fill
 * gaps without a look at their right side. */
int ch_options_check_objective(const choir_config *config);

/* Whether both describe the same model; names and evaluation settings of the router count too. If not, `difference`
 * [size] has the first field that differs, "model.layers is 6, not 4". */
int ch_config_same_model(const choir_config *a, const choir_config *b, char *difference, size_t size);

/* Whether training masks tokens and predicts them. The last token of such a model's vocabulary is the mask, which the
 * tokenizer does not have. */
static inline int ch_config_masked(const choir_config *c) { return c->train.objective != CH_NEXT_TOKEN; }
static inline int ch_config_diffusion(const choir_config *c) { return c->train.objective == CH_MASKED_DIFFUSION; }
static inline int ch_config_pieces(const choir_config *c) { return c->model.vocab_size - ch_config_masked(c); }

/* CHOIR_ERROR_UNSUPPORTED, naming train.objective, unless the model predicts the next token. `what` needs that. */
int ch_config_check_next_token(const choir_config *c, const char *what);

/* Every field as JSON, nested as in the file; NULL: out of memory. */
json_t *ch_config_json(const choir_config *config);

/* A number of all fields: another one where a field differs. */
uint64_t ch_config_hash(const choir_config *config);

/* choir_config_create and choir_config_load of a struct that the caller has. */
void ch_config_default(choir_config *config);
int ch_config_load(const char *path, choir_config *config);

/* choir_config_load on a text; `name` starts every message. */
int ch_config_parse(const char *text, size_t length, const char *name, choir_config *config);

#endif
