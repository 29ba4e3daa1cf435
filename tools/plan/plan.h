/* What training a config on a cluster would take: memory, time and traffic for every way to lay it out. All of it is
 * estimated from the config and from a file about the cluster; nothing runs. docs/planning.md has the formulas. */
#ifndef CH_PLAN_PLAN_H
#define CH_PLAN_PLAN_H

#include "choir/config.h"

enum { CHOIR_PLAN_LEVELS = 6, CHOIR_PLAN_PURPOSES = 12, CHOIR_PLAN_PARTS = 16, CHOIR_PLAN_TEXT = 512 };

typedef struct choir_plan_options {
  const char *cluster; /* the cluster's file; required */
  int ranks;           /* of the cluster, so many of which train; 0: all */
} choir_plan_options;
#define CHOIR_PLAN_OPTIONS_INIT \
  { 0 }

/* Memory of one rank, of the one that has most. */
typedef struct choir_plan_purpose {
  const char *name; /* "expert weights" */
  int64_t bytes;
} choir_plan_purpose;

/* A part of a step: something computed, or something sent. */
typedef struct choir_plan_part {
  const char *name;  /* "expert rows" */
  const char *limit; /* what makes it take so long: "arithmetic", "memory", or the name of a level of links */
  int sent;          /* it goes over links */
  double seconds;
  double bytes;                          /* that all ranks together send */
  double level_bytes[CHOIR_PLAN_LEVELS]; /* of these, what turns round at each level */
} choir_plan_part;

/* Ranks = replicas x experts x hidden: so many copies of the experts, groups that share the experts of one copy, and
 * parts of the hidden width of each expert. */
typedef struct choir_plan_layout {
  int replicas, experts, hidden;
  int dense_sharded;             /* a dense matrix lives on one rank of a replica, and visits the others */
  int chosen;                    /* choir train on so many ranks takes this one unless told otherwise */
  char refused[CHOIR_PLAN_TEXT]; /* why it cannot be; empty: it can, and what follows is set */
  int purposes;
  choir_plan_purpose memory[CHOIR_PLAN_PURPOSES];
  int64_t bytes; /* of all purposes */
  int parts;
  choir_plan_part part[CHOIR_PLAN_PARTS];
  double sent;                           /* bytes that all ranks together send in a step */
  double level_bytes[CHOIR_PLAN_LEVELS]; /* of these, what turns round at each level */
  double seconds;    /* of a step as choir train takes it: rows of later experts travel while earlier ones compute, and
                        matrices of the next layer while one does */
  double overlapped; /* of one that hides as much of the traffic as its order allows */
  double tokens_per_second, share; /* of the first; share: model FLOPs over the peak of all ranks */
  double cost;                     /* of 10^9 tokens at that rate; 0: the file has no price */
  char bound[128];                 /* the longest part, in words: "expert rows on level ethernet" */
} choir_plan_layout;

/* What all layouts have in common. */
typedef struct choir_plan_about {
  const char *cluster, *notes; /* the file's */
  const char *currency;
  int levels;
  const char *level[CHOIR_PLAN_LEVELS]; /* names, nearest first */
  int ranks;
  int64_t tokens;                        /* of a step */
  int shards;                            /* train.shards that it is planned with */
  int shards_set;                        /* ... because the config's does not go with so many ranks */
  int64_t parameters, active_parameters; /* as choir_config_cost has them */
  double train_flops_per_token;
  double peak;                   /* FLOP/s of one rank, in the config's compute type */
  double memory;                 /* bytes of one rank */
  double price;                  /* of a rank for an hour; 0: the file has none */
  char assumed[CHOIR_PLAN_TEXT]; /* what neither file says; empty: nothing */
} choir_plan_about;

/* Plans every layout of a config. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT: the cluster's file; CHOIR_ERROR_ARGUMENT: a
 * config that no layout goes with, more ranks than there are, bf16 where a rank has none. */
typedef struct choir_plan choir_plan;
int choir_plan_create(const choir_config *config, const choir_plan_options *options, choir_plan **plan);
void choir_plan_free(choir_plan *plan);

const choir_plan_about *choir_plan_common(const choir_plan *plan);

/* By number from 0: those that can be, the fastest first, then those refused; NULL behind the last. */
const choir_plan_layout *choir_plan_layout_at(const choir_plan *plan, int index);

/* Writes one HTML file about it, which needs no network. CHOIR_ERROR_IO, CHOIR_ERROR_MEMORY. */
int choir_plan_page(const choir_plan *plan, const char *output);

#endif
