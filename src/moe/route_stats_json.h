/* The JSON of routing statistics: what `choir route`, `forward` and `eval` print, and metrics.jsonl. */
#ifndef CH_MOE_ROUTE_STATS_JSON_H
#define CH_MOE_ROUTE_STATS_JSON_H

#include <jansson.h>

#include "choir/routing.h"

/* null where no solver assigned. */
json_t *ch_certificate_json(const choir_certificate *certificate);

#endif
