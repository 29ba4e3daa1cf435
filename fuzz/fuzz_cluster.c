/* Files about clusters, and behind a byte 0 what a bench has measured: any JSON becomes a cluster on which traffic has
 * a time, or is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/traffic.h"

static void send(const ch_cluster *c, int size, int stride) {
  const ch_flow flow = {.bytes = 1e9, .exchanges = 3, .size = size, .stride = stride};
  ch_passage p = ch_passage_of(c, c->ranks, &flow);
  double sum = 0;
  for (int i = 0; i < c->levels; i++) sum += p.bytes[i];
  if (!isfinite(p.seconds) || p.seconds < 0) abort();
  if (size > 1 && !(fabs(sum - flow.bytes) < 1)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ch_cluster c;
  const char *text = (const char *)data, *cut = size ? memchr(text, 0, size) : NULL;
  size_t first = cut ? (size_t)(cut - text) : size;
  if (ch_cluster_parse(text, first, "cluster", 0, &c)) return 0;
  if (cut && ch_cluster_parse(cut + 1, size - first - 1, "bench", 1, &c)) return 0;
  if (ch_cluster_check("cluster", &c)) return 0;
  if (c.ranks < 1 || (c.ranks > 1 && (!c.levels || c.level[c.levels - 1].ranks != c.ranks))) abort();
  for (int p = 0; p < CH_FLOPS_PARTS; p++)
    if (!(c.share[p] > 0 && c.share[p] <= 1)) abort();
  for (int part = 1; part <= c.ranks; part++)
    if (c.ranks % part == 0) send(&c, part, 1), send(&c, part, c.ranks / part);
  return 0;
}
