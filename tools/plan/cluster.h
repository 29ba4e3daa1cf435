/* The description of a cluster in a file (docs/formats.md): number of ranks, compute rate and memory of each, and
 * the links between them. */
#ifndef CH_PLAN_CLUSTER_H
#define CH_PLAN_CLUSTER_H

#include <stddef.h>

#include "file/json.h"
#include "train/step.h"

enum { CH_LEVELS = 6, CH_TORUS_DIMS = 4, CH_PLAN_TEXT = 512 };

typedef enum { CH_FLAT, CH_FAT_TREE, CH_TORUS } ch_topology;

/* A level of links connects units: ranks at the first level, groups of the previous level at the others. */
typedef struct ch_level {
  char name[32];
  int ranks;        /* ranks connected by one switch, or torus, of this level */
  double bandwidth; /* bytes/s of a unit's link in one direction, shared by its ranks; torus: of one link */
  double latency;   /* seconds per message */
  ch_topology topology;
  double oversubscription; /* fat tree: ratio of bandwidth below to bandwidth above; else 1 */
  int dims, dim[CH_TORUS_DIMS];
} ch_level;

typedef struct ch_cluster {
  char name[64], notes[CH_PLAN_TEXT], currency[8];
  char bench[256]; /* output file of `choir bench --json`, relative to this file; empty: none */
  int ranks;
  double fp32, bf16;            /* peak FLOP/s of a rank; 0: not supported, or not specified */
  double share[CH_FLOPS_PARTS]; /* fraction of the peak that each part of a step reaches */
  unsigned assumed;             /* bit p: share[p] is a default */
  double memory;                /* bytes per rank */
  double memory_bandwidth;      /* bytes/s per rank */
  double message;               /* seconds that a rank spends on each message */
  double price;                 /* price of a rank per hour; 0: not specified */
  int levels;
  ch_level level[CH_LEVELS]; /* nearest first; the last one connects all ranks */
} ch_cluster;

/* Reads and checks a cluster's file, and its benchmark file if it names one. CHOIR_ERROR_IO, CHOIR_ERROR_FORMAT. */
int ch_cluster_load(const char *path, ch_cluster *cluster);

/* Parses the text of a cluster alone: values that only a benchmark provides may still be 0. bench: the text is a
 * document of `choir bench --json`, which sets values that are still missing. */
int ch_cluster_parse(const char *text, size_t length, const char *name, int bench, ch_cluster *cluster);

/* Refuses a cluster whose files lack a required value. */
int ch_cluster_check(const char *name, const ch_cluster *cluster);

#endif
