/* A cluster as a file describes it (docs/formats.md): ranks, what one can compute and keep, and the links between them.
 */
#ifndef CH_PLAN_CLUSTER_H
#define CH_PLAN_CLUSTER_H

#include <stddef.h>

#include "file/json.h"
#include "train/step.h"

enum { CH_LEVELS = 6, CH_TORUS_DIMS = 4, CH_PLAN_TEXT = 512 };

typedef enum { CH_FLAT, CH_FAT_TREE, CH_TORUS } ch_topology;

/* A level of links ties units together: ranks at the first, groups of the level before at the others. */
typedef struct ch_level {
  char name[32];
  int ranks;        /* below one switch, or torus, of this level */
  double bandwidth; /* bytes/s of the link of one unit, in one direction; its ranks share it. torus: of one link */
  double latency;   /* seconds of a message */
  ch_topology topology;
  double oversubscription; /* of a fat tree: how many times less there is above than below; else 1 */
  int dims, dim[CH_TORUS_DIMS];
} ch_level;

typedef struct ch_cluster {
  char name[64], notes[CH_PLAN_TEXT], currency[8];
  char bench[256]; /* file of `choir bench --json`, relative to this one; empty: none */
  int ranks;
  double fp32, bf16;            /* FLOP/s of a rank at its peak; 0: cannot, or not said */
  double share[CH_FLOPS_PARTS]; /* fraction of the peak that each part of a step reaches */
  unsigned assumed;             /* bit p: share[p] is a default */
  double memory;                /* bytes of a rank */
  double memory_bandwidth;      /* bytes/s of a rank */
  double message;               /* seconds that a rank spends on each message */
  double price;                 /* of a rank for an hour; 0: not said */
  int levels;
  ch_level level[CH_LEVELS]; /* nearest first; the last one holds all ranks */
} ch_cluster;

/* Reads and checks a cluster's file, and the bench's where it names one. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
int ch_cluster_load(const char *path, ch_cluster *cluster);

/* The same from text, of a cluster alone: what only the bench can say may still be 0. bench: takes what is not said yet
 * from a document of `choir bench --json`. */
int ch_cluster_parse(const char *text, size_t length, const char *name, int bench, ch_cluster *cluster);

/* Refuses a cluster of which neither file says what must be known. */
int ch_cluster_check(const char *name, const ch_cluster *cluster);

#endif
