#include "infer/sample.h"

#include <math.h>
#include <stdlib.h>

/* The most likely token; -1 if a logit is NaN or +infinity, or all are -infinity. */
static int32_t likeliest(const float *logits, int V) {
  int32_t best = -1;
  for (int32_t v = 0; v < V; v++) {
    if (isnan(logits[v]) || logits[v] == INFINITY) return -1;
    if (logits[v] > -INFINITY && (best < 0 || logits[v] > logits[best])) best = v;
  }
  return best;
}

/* Larger weight first, then lower id: an order without ties, so that the kept tokens do not depend on the sort. */
static int before(const ch_candidate *a, const ch_candidate *b) {
  return a->weight != b->weight ? a->weight > b->weight : a->token < b->token;
}

static int compare_candidates(const void *a, const void *b) { return before(a, b) ? -1 : 1; }

/* Sift-down of a heap whose root is the last element in the order. */
static void sift(ch_candidate *heap, int count, int at) {
  for (int child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && before(&heap[child], &heap[child + 1])) child++;
    if (!before(&heap[at], &heap[child])) return;
    ch_candidate other = heap[at];
    heap[at] = heap[child];
    heap[child] = other;
  }
}

/* Moves the first k elements of the order to the front, unsorted. */
static int keep_first(ch_candidate *all, int count, int k) {
  if (k <= 0 || k >= count) return count;
  for (int i = k / 2 - 1; i >= 0; i--) sift(all, k, i);
  for (int i = k; i < count; i++)
    if (before(&all[i], &all[0])) {
      all[0] = all[i];
      sift(all, k, 0);
    }
  return k;
}

/* The smallest number of candidates whose weights reach `share` of the sum. Candidates so light that even together
 * they could not matter are not sorted. */
static int keep_share(ch_candidate *all, int count, double sum, double share) {
  if (!(share < 1)) return count;
  double min = (1 - share) * sum / count, reached = 0;
  int kept = 0, used = 0;
  for (int i = 0; i < count; i++)
    if (all[i].weight >= min) all[kept++] = all[i];
  qsort(all, (size_t)kept, sizeof *all, compare_candidates);
  while (used < kept && reached < share * sum) reached += all[used++].weight;
  return used > 0 ? used : 1;
}

static double total(const ch_candidate *all, int count) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += all[i].weight;
  return sum;
}

int32_t ch_sample(const ch_sampling *how, const float *logits, int V, double uniform, ch_candidate *candidates) {
  int32_t best = likeliest(logits, V);
  if (best < 0 || how->temperature <= 0 || how->top_k == 1) return best;
  int count = V;
  for (int32_t v = 0; v < V; v++) candidates[v] = (ch_candidate){(double)logits[v], v};
  count = keep_first(candidates, count, how->top_k);
  for (int i = 0; i < count; i++)
    candidates[i].weight = exp((candidates[i].weight - (double)logits[best]) / how->temperature);
  count = keep_share(candidates, count, total(candidates, count), how->top_p);
  double left = uniform * total(candidates, count);
  for (int i = 0; i < count; i++)
    if ((left -= candidates[i].weight) < 0) return candidates[i].token;
  return best; /* only rounding errors are left */
}

ch_summary ch_summarize(const float *logits, int V) {
  ch_summary s = {0};
  double sum = 0;
  for (int v = 1; v < V; v++)
    if (logits[v] > logits[s.best]) s.best = v;
  for (int v = 0; v < V; v++) sum += exp((double)logits[v] - (double)logits[s.best]);
  s.log_sum = (double)logits[s.best] + log(sum);
  return s;
}
