/* Statistics of routings, from what op `tally` leaves. */
#ifndef CH_MOE_ROUTE_STATS_H
#define CH_MOE_ROUTE_STATS_H

#include <jansson.h>

#include "choir/routing.h"
#include "moe/route.h"

/* Public statistics, up to `histogram` (arrays malloc'd). Collecting a routing of `tokens` valid tokens, or adding
 * statistics of as many experts, sums counts and capacities and takes aux_loss, z_loss and gate_mass as means over
 * tokens. Collecting allocates nothing; `make` waits for the device. */
double ch_pooled(double mean, int64_t before, double sum, int64_t more); /* mean of `before` values, with more */
void ch_certificate_add(choir_certificate *sum, const choir_certificate *more);
int ch_route_stats_alloc(int experts, choir_route_stats *stats);
void ch_route_stats_clear(choir_route_stats *stats);
void ch_route_stats_collect(choir_route_stats *sum, int tokens, const ch_route_counts *c, const double *sums,
                            const int64_t *counts);
int ch_route_stats_make(const ch_memory *memory, int tokens, const ch_routing *routing, choir_route_stats *stats);
int ch_route_stats_add(choir_route_stats *sum, const choir_route_stats *more);

/* Statistics of some layers in a few numbers. */
typedef struct ch_route_summary {
  double dropped;                     /* share of choices that found their expert full */
  double unrouted;                    /* share of tokens without an expert */
  double fill;                        /* mean load over capacity */
  double slots;                       /* of a token */
  double imbalance, demand_imbalance; /* most tokens held, and asked for, over the mean, of the worst layer */
  double fullest[3];                  /* as choir_trainer_result has them */
} ch_route_summary;
ch_route_summary ch_route_stats_summary(const choir_route_stats *stats, int layers);

/* The certificate in the JSON of routing statistics, which `choir route`, `forward`, `eval` and metrics.jsonl have:
 * null where no solver assigned. */
json_t *ch_certificate_json(const choir_certificate *certificate);

#endif
