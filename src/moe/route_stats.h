/* Routing statistics, from the output of op `tally`. */
#ifndef CH_MOE_ROUTE_STATS_H
#define CH_MOE_ROUTE_STATS_H

#include <jansson.h>

#include "choir/routing.h"
#include "moe/route.h"

/* Fields of choir_route_stats up to `histogram` (arrays malloc'd). ch_route_stats_collect adds a routing of `tokens`
 * valid tokens and allocates nothing; ch_route_stats_add adds statistics with as many experts. Counts and capacities
 * are summed; aux_loss, z_loss and gate_mass are averaged over tokens. ch_route_stats_make waits for the device. */
double ch_pooled(double mean, int64_t before, double sum,
                 int64_t more); /* updates the mean of `before` values by the sum of `more` further values */
void ch_certificate_add(choir_certificate *sum, const choir_certificate *more);
int ch_route_stats_alloc(int experts, choir_route_stats *stats);
void ch_route_stats_clear(choir_route_stats *stats);
void ch_route_stats_collect(choir_route_stats *sum, int tokens, const ch_route_counts *c, const double *sums,
                            const int64_t *counts);
int ch_route_stats_make(const ch_memory *memory, int tokens, const ch_routing *routing, choir_route_stats *stats);
int ch_route_stats_add(choir_route_stats *sum, const choir_route_stats *more);

/* Summary of the statistics of several layers. */
typedef struct ch_route_summary {
  double dropped;                     /* share of choices dropped because the expert was full */
  double unrouted;                    /* share of tokens without an expert */
  double fill;                        /* mean load divided by capacity */
  double slots;                       /* mean slots per token */
  double imbalance, demand_imbalance; /* max load / mean load and max demand / mean demand, in the worst layer */
  double fullest[3];                  /* as in choir_trainer_result */
} ch_route_summary;
ch_route_summary ch_route_stats_summary(const choir_route_stats *stats, int layers);

/* The certificate as JSON, for the routing statistics of `choir route`, `forward`, `eval` and metrics.jsonl; null if no
 * solver was used. */
json_t *ch_certificate_json(const choir_certificate *certificate);

#endif
