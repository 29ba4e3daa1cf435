/* What a config holds: numbers and the numbers of words, as all code below the files of configs sees it. Each field is
 * one line of a .def file; texts become numbers when it is set (model/field.c), and nobody compares them later. */
#ifndef CH_CONFIG_CONFIG_H
#define CH_CONFIG_CONFIG_H

#include "choir/config.h"
#include "choir/plugin.h"
#include "op/op.h"

/* The words of fields, in the order of words.c. */
typedef enum { CH_POOL_BATCH, CH_POOL_SEQUENCE, CH_POOL_POSITION, CH_POOL_GROUP } ch_pool_kind;
typedef enum { CH_SOLVER_EXACT, CH_SOLVER_DYKSTRA } ch_solver;
typedef enum { CH_SOFTMAX, CH_SIGMOID } ch_score_kind;
typedef enum {
  CH_CAPACITY_CONSTANT,
  CH_CAPACITY_LINEAR,
  CH_CAPACITY_REVERSE,
  CH_CAPACITY_GAUSSIAN
} ch_capacity_schedule;
typedef enum { CH_SCOPE_BATCH, CH_SCOPE_SEQUENCE } ch_aux_scope;
typedef enum { CH_BY_ORDER, CH_BY_SCORE } ch_priority;
typedef enum { CH_GATE_OUTPUT, CH_GATE_INPUT } ch_gate_place;
typedef enum { CH_CAUSAL, CH_BIDIRECTIONAL } ch_attention_kind;
typedef enum { CH_RELATIVE, CH_ROPE } ch_position_kind;
typedef enum { CH_ADAFACTOR, CH_ADAMW } ch_optimizer_kind;
typedef enum { CH_INVERSE_SQRT, CH_COSINE } ch_rate_schedule;
typedef enum { CH_NEXT_TOKEN, CH_MASKED_DIFFUSION, CH_MASKED_LM } ch_objective;
typedef enum { CH_MASK_LINEAR, CH_MASK_COSINE } ch_mask_schedule;
extern const char *const ch_router_pools[], *const ch_router_solvers[], *const ch_router_scores[];
extern const char *const ch_router_schedules[], *const ch_router_scopes[], *const ch_router_priorities[];
extern const char *const ch_router_gate_places[], *const ch_attentions[], *const ch_positions[];
extern const char *const ch_activation_names[], *const ch_rate_schedules[], *const ch_objectives[];
extern const char *const ch_mask_schedules[]; /* each NULL-terminated */

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
  double own[CHOIR_PLUGIN_OPTIONS]; /* of a plug-in's router, by number (choir/plugin.h) */
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
