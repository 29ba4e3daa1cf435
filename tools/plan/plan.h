/* Estimates memory, time and traffic of training a config on a cluster, for every possible layout. The estimates use
 * only the config and a file about the cluster; nothing runs. docs/planning.md has the formulas. */
#ifndef CH_PLAN_PLAN_H
#define CH_PLAN_PLAN_H

#include <jansson.h>

#include "model/param.h"
#include "plan/cluster.h"
#include "train/layout.h"

enum { CH_PLAN_PURPOSES = 12, CH_PLAN_PARTS = 16 };

typedef struct ch_plan_options {
  const char *cluster; /* the cluster's file; required */
  int ranks;           /* number of ranks for training; 0: every rank of the cluster */
} ch_plan_options;

/* Memory for one purpose on the rank that needs most. */
typedef struct ch_plan_purpose {
  const char *name; /* "expert weights" */
  int64_t bytes;
} ch_plan_purpose;

/* A part of a step: a computation or an exchange. */
typedef struct ch_plan_part {
  const char *name;  /* "expert rows" */
  const char *limit; /* the bottleneck: "arithmetic", "memory", or the name of a level of links */
  int sent;          /* nonzero: an exchange over links */
  double seconds;
  double bytes;                  /* sent by all ranks together */
  double level_bytes[CH_LEVELS]; /* the same bytes by the highest network level that they cross */
} ch_plan_part;

/* Ranks = replicas x experts x hidden: copies of the experts, groups that share the experts of one copy, and shards
 * of the hidden width of each expert. */
typedef struct ch_plan_layout {
  int replicas, experts, hidden;
  int dense_sharded; /* one rank of a replica owns each dense matrix; the others prefetch it */
  int chosen;        /* the layout that choir train chooses by default on so many ranks */
  char
      refused[CH_PLAN_TEXT]; /* why the layout is impossible; empty: it is possible, and the following fields are set */
  int purposes;
  ch_plan_purpose memory[CH_PLAN_PURPOSES];
  int64_t bytes; /* over all purposes */
  int parts;
  ch_plan_part part[CH_PLAN_PARTS];
  double sent;                   /* bytes that all ranks together send in a step */
  double level_bytes[CH_LEVELS]; /* the same bytes by the highest network level that they cross */
  double seconds; /* of a step of choir train: rows of later experts are sent while earlier ones compute, and matrices
                     of the next layer during the current layer */
  double overlapped;               /* seconds of a step that hides as much traffic as the order of its work allows */
  double tokens_per_second, share; /* with `seconds`; share: model FLOPs relative to the peak of all ranks */
  double cost;                     /* cost of 10^9 tokens at that speed; 0: the file has no price */
  char bound[128];                 /* the longest part as text: "expert rows on level ethernet" */
} ch_plan_layout;

/* Every layout of a config on a cluster, and their common properties. */
typedef struct ch_plan {
  choir_config config; /* with train.grad_chunks set for so many ranks */
  int shards_set;      /* the config's own value was not suitable */
  ch_cluster cluster;  /* as its file describes it */
  ch_params params;
  int ranks;      /* number of training ranks */
  int64_t tokens; /* tokens per step */
  choir_config_costs costs;
  double peak;                /* FLOP/s of one rank, in the config's compute type */
  char assumed[CH_PLAN_TEXT]; /* values that neither file has and that were assumed; empty: none */
  ch_plan_layout *layout;     /* [count] possible layouts, the fastest first, then refused ones */
  int count;
} ch_plan;

/* Plans every layout of a config. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: the cluster's file; CHOIR_ERROR_ARGUMENT: a
 * config for which no layout is possible, more ranks than the cluster has, bf16 if its ranks do not support it. */
int ch_plan_create(const choir_config *config, const ch_plan_options *options, ch_plan **plan);
void ch_plan_free(ch_plan *plan);

/* Reports: the basis of the figures as text; the command that trains with a layout; and as JSON (docs/planning.md) the
 * facts common to all layouts, and one layout. NULL: no memory. */
extern const char ch_plan_basis[];
const char *ch_plan_command(const ch_plan_layout *layout);
json_t *ch_plan_about_json(const ch_plan *plan);
json_t *ch_plan_layout_json(const ch_plan *plan, const ch_plan_layout *layout);

/* ---- memory of the rank that needs most, and the time of a training step ---- */

/* Peak FLOP/s of a rank in the config's compute type; 0: not supported. */
double ch_peak_of(const choir_config *config, const ch_cluster *cluster);

/* memory.c: sets memory, purposes and bytes from the memory plan of training. CHOIR_ERROR_ARGUMENT, like
 * ch_trainer_plan. */
int ch_plan_memory(const choir_config *config, const ch_layout *layout, ch_plan_layout *out);

/* step.c: sets the parts of a step and everything derived from them. `params` is the whole model's table. */
void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                ch_plan_layout *out);

#endif
