/* Time on links. Every exchange is spread evenly over a group of ranks, so the traffic of a level follows from the
 * number of the group's ranks below each of its units. docs/planning.md has the formulas. */
#include <math.h>

#include "plan/traffic.h"

/* Members of a group that are in one unit of `ranks` ranks whose first rank is a member. */
static int members(const ch_flow *f, int ranks) {
  int count = (ranks + f->stride - 1) / f->stride;
  return count < f->size ? count : f->size;
}

/* Traffic of the busiest link of a torus, relative to the bytes of a unit, if each of `count` units at distance
 * `stride` sends evenly to all of them, itself included: in each dimension k/8 for a ring of k links, k/4 for a line of
 * k units. */
static double torus_load(const ch_level *l, int count, int stride) {
  double worst = 0, inner = 1;
  for (int i = 0; i < l->dims; i++) {
    double k = l->dim[i], from = fmin((double)stride / inner, k), to = fmin((double)stride * count / inner, k);
    if (from < 1) from = 1;
    double load = to <= from ? 0 : to == k && k > 2 ? k / 8 : to / 4;
    if (load > worst) worst = load;
    inner *= k;
  }
  return worst;
}

/* Seconds that the links of level `i` are busy if each rank sends `bytes` to the others of its group. */
static double busy(const ch_cluster *c, int i, int ranks, const ch_flow *f, double bytes) {
  const ch_level *l = &c->level[i];
  int unit = i ? c->level[i - 1].ranks : 1, below = members(f, unit), within = members(f, l->ranks);
  double senders = fmin(unit, ranks), others = f->size - 1;
  double leaving = senders * bytes * (f->size - below) / others;
  if (l->topology != CH_TORUS) return leaving * l->oversubscription / l->bandwidth;
  if (within == below) return 0;
  int units = (within + below - 1) / below, stride = f->stride > unit ? f->stride / unit : 1;
  double inside = senders * bytes * (within - below) / others; /* torus_load includes traffic to itself: scaled below */
  return inside * units / (units - 1) * torus_load(l, units, stride) / l->bandwidth;
}

ch_passage ch_passage_of(const ch_cluster *c, int ranks, const ch_flow *f) {
  ch_passage p = {.level = 0};
  double longest = 0, latency = 0, each = (f->busiest > 0 ? f->busiest : f->bytes) / ranks;
  if (f->size < 2 || f->bytes <= 0) return p;
  for (int i = 0, below = 1; i < c->levels; i++) {
    int within = members(f, c->level[i].ranks);
    double seconds = busy(c, i, ranks, f, each);
    p.bytes[i] = f->bytes * (within - below) / (f->size - 1);
    if (within > below) latency = c->level[i].latency; /* of the highest level crossed */
    if (seconds > longest) longest = seconds, p.level = i;
    below = within;
  }
  p.seconds = longest + (double)f->exchanges * latency + (double)(f->messages * (f->size - 1)) * c->message;
  return p;
}
