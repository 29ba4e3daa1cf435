/* What a config holds: numbers and the numbers of words, as all code below the files of configs sees it. Each field is
 * one line of a .def file; texts become numbers when it is set (model/field.c), and nobody compares them later. */
#ifndef CH_CONFIG_CONFIG_H
#define CH_CONFIG_CONFIG_H

#include "choir/config.h"
#include "choir/plugin.h"
#include "op/op.h"

/* The words of fields as numbers, and their NULL-terminated lists (words.def). */
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
/* How tokens meet experts: of a whole config or, with its capacity resolved, of one layer (ch_config_layer_router). */
typedef struct ch_router_spec {
  const struct ch_router *kind;     /* "name" */
  double plugin_options[CHOIR_PLUGIN_OPTIONS]; /* of a plug-in's router, by number (choir/plugin.h) */
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
