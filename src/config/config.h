/* The config struct: numbers, and enums for words. Each field is one line of a .def file. Setting a field converts its
 * text (model/field.c); no later code compares strings. */
#ifndef CH_CONFIG_CONFIG_H
#define CH_CONFIG_CONFIG_H

#include "choir/config.h"
#include "choir/plugin.h"
#include "op/op.h"

/* Enums of the fields' words, and NULL-terminated lists of the words (words.def). */
#define WORD(number, word) number,
#define WORDS(list, type, words) \
  typedef enum { words } type;   \
  extern const char *const list[];
#include "config/words.def"
#undef WORDS
#undef WORD
typedef enum { CH_ADAFACTOR, CH_ADAMW } ch_optimizer_kind;
extern const char *const ch_activation_names[];

/* A line of *.def as a member. */
#define CH_MEMBER_INTEGER(name, ...) int name;
#define CH_MEMBER_LONG(name, ...) int64_t name;
#define CH_MEMBER_SEED(name, ...) uint64_t name;
#define CH_MEMBER_NUMBER(name, ...) double name;
#define CH_MEMBER_ABOVE(name, ...) double name;
#define CH_MEMBER_STEPS(name, ...) double name;
#define CH_MEMBER_FLAG(name, ...) int name;
#define CH_MEMBER_WORD(name, ...) int name;
#define CH_MEMBER_TEXT(name, bytes, ...) char name[bytes];

/* clang-format off */
#define FIELD(kind, name, ...) CH_MEMBER_##kind(name, __VA_ARGS__)
/* The routing of a whole config or, with its capacity resolved, of one layer (ch_config_layer_router). */
typedef struct ch_router_spec {
  const struct ch_router *kind;     /* "name" */
  double plugin_options[CHOIR_PLUGIN_OPTIONS]; /* options of a plug-in router, by number (choir/plugin.h) */
#include "config/router.def"
} ch_router_spec;

typedef struct ch_model_config {
#include "config/model.def"
  ch_router_spec router;
} ch_model_config;

typedef struct ch_train_config {
#include "config/train.def"
} ch_train_config;

typedef struct ch_parallel_config {
#include "config/parallel.def"
} ch_parallel_config;
#undef FIELD
/* clang-format on */

struct choir_config {
  ch_model_config model;
  ch_train_config train;
  ch_parallel_config parallel;
};

#endif
