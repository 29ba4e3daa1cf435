/* A routing as whoever asked to see it does: the public view. */
#ifndef CH_API_ROUTING_H
#define CH_API_ROUTING_H

#include "choir/routing.h"
#include "moe/route.h"

/* One copy of everything to the host, in its scratch; where the memory is its own, these are the arrays themselves. Its
 * numbers of the layer are 0. */
choir_routing ch_routing_view(ch_exec *x, const ch_route_args *a, const ch_routing *routing);

#endif
