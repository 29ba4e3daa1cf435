#include "moe/prefer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "moe/gates.h"

int ch_prefer_check(const ch_router *router) {
  int ranks =
      ch_router_scored(router) && (!router->plugin || router->causal == ch_router_by_thresholds) && !router->ranking;
  if (ranks && (router->gates == CHOIR_GATES_SCORE || router->gates == CHOIR_GATES_SHARE)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "router '%s' does not rank the experts of a token by scores that are its gates, so no other experts "
                  "can replace them; use a model with a router that does, such as expert_choice or topk",
                  router->name);
}

typedef struct candidate {
  int expert;
  real preference;
} candidate;

/* Descending preference, NaN last; ties: the lower expert first. */
static int compare(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  int order = (x->preference < y->preference) - (x->preference > y->preference);
  if (!order) order = !!isnan(x->preference) - !!isnan(y->preference);
  return order ? order : x->expert - y->expert;
}

/* Host arrays of one call. */
typedef struct choice {
  const ch_route_args *a;
  const real *score, *shift; /* [n,e]; [e] thresholds or biases, or NULL */
  uint8_t *mark;             /* [n,e] 1: the token uses the expert */
  real *pair;                /* [n,2] scores of the token's two experts, for gates divided by their sum */
  candidate *order;          /* [e] */
  uint8_t *cached;           /* [e] */
  ch_recent recent;
} choice;

static choice choice_new(ch_exec *x, const ch_route_args *a) {
  ch_arena *host = &ch_host(x)->scratch;
  size_t n = (size_t)a->n, e = (size_t)a->e;
  const real CH_DEV *shift = ch_router_has_thresholds(a->router) ? a->router_state.thresholds : NULL;
  return (choice){.a = a,
                  .score = ch_download(x, a->routing->scores, n * e * sizeof(real)),
                  .shift = shift ? ch_download(x, shift, e * sizeof(real)) : NULL,
                  .mark = CH_NEW_HOST(host, uint8_t, n * e),
                  .pair = CH_NEW_HOST(host, real, 2 * n),
                  .order = CH_NEW_HOST(host, candidate, e),
                  .cached = CH_NEW_HOST(host, uint8_t, e),
                  .recent.expert = CH_NEW_HOST(host, int, e)};
}

/* Marks the router's default choice. */
static void mark_own(ch_exec *x, choice *c) {
  const ch_record *r = &c->a->routing->record;
  size_t e = (size_t)c->a->e;
  const int *begin = ch_download(x, r->expert_begin, (e + 1) * sizeof *begin);
  const int *token = ch_download(x, r->slot_token, (size_t)r->max_slots * sizeof *token);
  if (ch_counting(x)) return;
  memset(c->mark, 0, (size_t)c->a->n * e);
  for (size_t i = 0; i < e; i++)
    for (int s = begin[i]; s < begin[i + 1]; s++) c->mark[(size_t)token[s] * e + i] = 1;
}

/* Sorts a token's experts; returns the number of candidates, 0: the default choice. */
static int sort_experts(choice *c, int t) {
  const ch_prefer *p = c->a->prefer;
  int e = c->a->e, among = 0;
  for (int i = 0; i < e; i++) {
    real score = c->score[(int64_t)t * e + i];
    c->order[i] = (candidate){i, c->shift ? score - c->shift[i] : score};
  }
  qsort(c->order, (size_t)e, sizeof *c->order, compare);
  if (ch_router_choices(c->a->options)) return p->among < e ? p->among : e;
  while (p->lowered > 0 && among < e && c->order[among].preference >= -p->lowered) among++;
  return among;
}

/* Chooses cached candidates first, then other candidates, each in order of preference; the number of experts does not
 * change. */
static void choose_experts(choice *c, int t) {
  int e = c->a->e, left = 0, among = sort_experts(c, t);
  uint8_t *mark = c->mark + (size_t)t * (size_t)e;
  for (int i = 0; i < e; i++) left += mark[i];
  if (!left || left >= among) return;
  memset(mark, 0, (size_t)e);
  memset(c->cached, 0, (size_t)e);
  for (int i = 0; i < c->recent.count && i < c->a->prefer->size; i++) c->cached[c->recent.expert[i]] = 1;
  for (int cached = 1; cached >= 0; cached--)
    for (int i = 0; i < among && left; i++)
      if (c->cached[c->order[i].expert] == cached) {
        mark[c->order[i].expert] = 1;
        left--;
      }
}

/* Looks up and inserts the token's experts in the cache, in ascending order. */
static void use(choice *c, int t) {
  int e = c->a->e, found = 0;
  for (int i = 0; i < e; i++) {
    if (!c->mark[(size_t)t * (size_t)e + (size_t)i]) continue;
    c->a->prefer->hits.part += ch_recent_use(&c->recent, i) < c->a->prefer->size;
    c->a->prefer->hits.whole++;
    if (found < 2) c->pair[2 * (int64_t)t + found++] = c->score[(int64_t)t * e + i];
  }
}

/* Margins below -1 are in the first bin, those of 1 and above in the last one. */
static void count_margins(const choice *c, int t) {
  ch_prefer *p = c->a->prefer;
  if (!p->margins || (c->a->tokens.mask && !c->a->tokens.mask[t])) return;
  for (int i = 0; i < c->a->e; i++) {
    double margin = (double)(c->score[(int64_t)t * c->a->e + i] - c->shift[i]);
    double bin = floor((margin + 1) * (CH_MARGIN_BINS / 2.0));
    p->margins[bin >= CH_MARGIN_BINS ? CH_MARGIN_BINS - 1 : bin > 0 ? (int)bin : 0]++;
  }
}

real ch_prefer_lowered(const int64_t *margins, int64_t tokens, int among) {
  int64_t count = 0;
  int bin = CH_MARGIN_BINS;
  while (bin > 0 && count < among * tokens) count += margins[--bin];
  double lowered = 1 - (double)bin / (CH_MARGIN_BINS / 2.0);
  return lowered > 0 ? (real)lowered : 0;
}

static void set_gates(ch_exec *x, const choice *c) {
  const ch_route_args *a = c->a;
  if (a->router->gates == CHOIR_GATES_SHARE)
    CH_OP(x, gate, .rule = CH_GATE_SHARE, .record = &a->routing->record, .score = a->routing->scores,
          .value = ch_upload(&x->scratch, c->pair, 2 * (size_t)a->n * sizeof *c->pair));
  else
    ch_router_gates_from_scores(x, a);
}

void ch_prefer_cached(ch_exec *x, const ch_route_args *a) {
  CH_SCRATCH(x);
  choice c = choice_new(x, a);
  int length = a->sequence_length ? a->sequence_length : a->n;
  mark_own(x, &c);
  for (int t = 0; t < a->n && !ch_counting(x); t++) {
    if (t % length == 0) c.recent.count = 0;
    count_margins(&c, t);
    choose_experts(&c, t);
    use(&c, t);
  }
  CH_OP(x, collect, .keep = ch_upload(&x->scratch, c.mark, (size_t)a->n * (size_t)a->e), .record = &a->routing->record);
  set_gates(x, &c);
  ch_router_demand_is_load(x, a);
}
