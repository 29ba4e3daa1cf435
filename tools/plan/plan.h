/* Estimates what training a config on a cluster would take: memory, time and traffic for every way to lay it out. All
 * of it is estimated from the config and from a file about the cluster; nothing runs. docs/planning.md has the
 * formulas. */
#ifndef CH_PLAN_PLAN_H
#define CH_PLAN_PLAN_H

#include <jansson.h>

#include "model/param.h"
#include "plan/cluster.h"
#include "train/layout.h"

enum { CH_PLAN_PURPOSES = 12, CH_PLAN_PARTS = 16 };

typedef struct ch_plan_options {
  const char *cluster; /* the cluster's file; required */
  int ranks;           /* number of ranks that train; 0: every rank of the cluster */
} ch_plan_options;

/* Memory of the rank that needs most, for one purpose. */
typedef struct ch_plan_purpose {
  const char *name; /* "expert weights" */
  int64_t bytes;
} ch_plan_purpose;

/* A part of a step: something computed, or something sent. */
typedef struct ch_plan_part {
  const char *name;  /* "expert rows" */
  const char *limit; /* what makes it take so long: "arithmetic", "memory", or the name of a level of links */
  int sent;          /* it goes over links */
  double seconds;
  double bytes;                  /* sent by all ranks together */
  double level_bytes[CH_LEVELS]; /* the same bytes by the highest network level that they cross */
} ch_plan_part;

/* Ranks = replicas x experts x hidden: so many copies of the experts, groups that share the experts of one copy, and
 * parts of the hidden width of each expert. */
typedef struct ch_plan_layout {
  int replicas, experts, hidden;
  int dense_sharded;          /* one rank of a replica owns each dense matrix; the others prefetch it */
  int chosen;                 /* choir train on so many ranks takes this one unless told otherwise */
  char refused[CH_PLAN_TEXT]; /* why it cannot be; empty: it can, and what follows is set */
  int purposes;
  ch_plan_purpose memory[CH_PLAN_PURPOSES];
  int64_t bytes; /* of all purposes */
  int parts;
  ch_plan_part part[CH_PLAN_PARTS];
  double sent;                   /* bytes that all ranks together send in a step */
  double level_bytes[CH_LEVELS]; /* the same bytes by the highest network level that they cross */
  double seconds;    /* of a step of choir train: rows of later experts travel while earlier ones compute, and matrices
                        of the next layer during the current layer */
  double overlapped; /* seconds of a step that hides as much traffic as the order of its work allows */
  double tokens_per_second, share; /* of the first; share: model FLOPs over the peak of all ranks */
  double cost;                     /* of 10^9 tokens at that rate; 0: the file has no price */
  char bound[128];                 /* the longest part, in words: "expert rows on level ethernet" */
} ch_plan_layout;

/* Every layout of a config on a cluster, and what they have in common. */
typedef struct ch_plan {
  choir_config config; /* with train.grad_chunks for so many ranks: */
  int shards_set;      /* the config's does not go with them */
  ch_cluster cluster;  /* as its file describes it */
  ch_params params;
  int ranks;      /* that train */
  int64_t tokens; /* of a step */
  choir_config_costs costs;
  double peak;                /* FLOP/s of one rank, in the config's compute type */
  char assumed[CH_PLAN_TEXT]; /* what neither file says; empty: nothing */
  ch_plan_layout *layout;     /* [count] possible layouts, the fastest first, then refused ones */
  int count;
} ch_plan;

/* Plans every layout of a config. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: the cluster's file; CHOIR_ERROR_ARGUMENT: a
 * config that no layout goes with, more ranks than there are, bf16 where a rank has none. */
int ch_plan_create(const choir_config *config, const ch_plan_options *options, ch_plan **plan);
void ch_plan_free(ch_plan *plan);

/* Reports: the basis of the figures as text; the command that trains with a layout; and as JSON (docs/planning.md) the
 * facts common to all layouts, and one layout. NULL: no memory. */
extern const char ch_plan_basis[];
const char *ch_plan_command(const ch_plan_layout *layout);
json_t *ch_plan_about_json(const ch_plan *plan);
json_t *ch_plan_layout_json(const ch_plan *plan, const ch_plan_layout *layout);

/* ---- what a layout takes: memory of the rank that has most of it, and the time of a training step ---- */

/* FLOP/s of a rank's peak in the config's compute type; 0: it has none. */
double ch_peak_of(const choir_config *config, const ch_cluster *cluster);

/* room.c: memory, purposes and bytes, by the engine's own plan. CHOIR_ERROR_ARGUMENT, as ch_trainer_plan. */
int ch_plan_memory(const choir_config *config, const ch_layout *layout, ch_plan_layout *out);

/* step.c: the parts of a step and what follows from them. `params` is the whole model's table. */
void ch_step_of(const choir_config *config, const ch_params *params, const ch_cluster *cluster, const ch_layout *layout,
                ch_plan_layout *out);

#endif
