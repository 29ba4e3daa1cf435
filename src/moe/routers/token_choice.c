#include "moe/routers/token_choice.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

ch_choices ch_choices_alloc(ch_exec *x, const ch_route_args *a, int per_token) {
  int64_t count = (int64_t)a->n * per_token;
  return (ch_choices){.per_token = per_token,
                      .expert = CH_NEW(&x->scratch, int, count),
                      .gate = CH_NEW(&x->scratch, real, count),
                      .held = CH_NEW(&x->scratch, int, a->e),
                      .share = CH_NEW(&x->scratch, double, a->e)};
}

/* Strict comparison: of equal scores the first stays. A row of NaN gives experts 0 and 1, and NaN gates. */
static void best_two(const real *score, int e, int *first, int *second) {
  int a = 0, b = -1;
  for (int i = 1; i < e; i++)
    if (score[i] > score[a]) {
      b = a;
      a = i;
    } else if (b < 0 || score[i] > score[b]) {
      b = i;
    }
  *first = a;
  *second = b;
}

void ch_choices_best(ch_exec *x, const ch_route_args *a, ch_choices *c) {
  int K = c->per_token;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    int best[2] = {-1, -1};
    if (!a->valid || a->valid[t]) best_two(a->scores + (int64_t)t * a->e, a->e, &best[0], &best[1]);
    for (int j = 0; j < K; j++) c->expert[(int64_t)t * K + j] = best[j];
  }
  int valid = ch_valid_count(a->valid, a->n);
  memset(c->held, 0, (size_t)a->e * sizeof *c->held);
  for (int64_t t = 0; t < a->n; t++)
    if (c->expert[t * K] >= 0) c->held[c->expert[t * K]]++;
  for (int i = 0; i < a->e; i++) c->share[i] = valid ? (double)c->held[i] / valid : 0;
}

/* Who gets in: a choice that does not becomes -1. */
static void admit(const ch_route_args *a, ch_choices *c, int capacity) {
  int K = c->per_token;
  ch_route_counts *counts = a->counts;
  counts->capacity = capacity;
  counts->dropped = 0;
  memset(counts->demand, 0, (size_t)a->e * sizeof *counts->demand);
  memset(c->held, 0, (size_t)a->e * sizeof *c->held);
  for (int j = 0; j < K; j++)
    for (int64_t t = 0; t < a->n; t++) {
      int i = c->expert[t * K + j];
      if (i < 0) continue;
      counts->demand[i]++;
      if (c->held[i] < capacity) {
        c->held[i]++;
      } else {
        counts->dropped++;
        c->expert[t * K + j] = -1;
      }
    }
}

/* A counting sort by expert; a token has an expert once at most, so slots come out ascending by token. */
void ch_choices_place(const ch_route_args *a, ch_choices *c, int capacity) {
  admit(a, c, capacity);
  ch_record *r = a->record;
  int sum = 0;
  for (int i = 0; i < a->e; i++) {
    r->expert_begin[i] = sum;
    sum += c->held[i];
    c->held[i] = r->expert_begin[i]; /* from here on: the expert's next slot */
  }
  r->expert_begin[a->e] = r->slots = sum;
  for (int64_t choice = 0; choice < (int64_t)a->n * c->per_token; choice++) {
    if (c->expert[choice] < 0) continue;
    int s = c->held[c->expert[choice]]++;
    r->slot_token[s] = (int)(choice / c->per_token);
    r->slot_gate[s] = c->gate[choice];
  }
}

double ch_balance_loss(const ch_route_args *a, const ch_choices *c) {
  int valid = ch_valid_count(a->valid, a->n);
  double sum = 0; /* of f_i S[t,i] */
  for (int t = 0; t < a->n; t++) {
    if (a->valid && !a->valid[t]) continue;
    for (int i = 0; i < a->e; i++) sum += c->share[i] * (double)a->scores[(int64_t)t * a->e + i];
  }
  return valid ? a->e * sum / valid : 0;
}

void ch_balance_loss_backward(ch_exec *x, const ch_route_args *a, const ch_choices *c) {
  int valid = ch_valid_count(a->valid, a->n);
  if (!valid || (double)a->aux_scale == 0) return;
  double scale = (double)a->aux_scale * a->e / valid;
#pragma omp parallel for num_threads(x->threads)
  for (int t = 0; t < a->n; t++) {
    if (a->valid && !a->valid[t]) continue;
    for (int i = 0; i < a->e; i++) a->dscores[(int64_t)t * a->e + i] += (real)(scale * c->share[i]);
  }
}

void ch_fixed_route(ch_exec *x, const ch_route_args *a) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_choices c = ch_choices_alloc(x, a, 1);
  if (!ch_counting(x)) {
    for (int t = 0; t < a->n; t++) {
      int expert = a->e > 1 ? a->token[t] % a->e : 0;
      c.expert[t] = !a->valid || a->valid[t] ? expert : -1;
      c.gate[t] = 1;
    }
    a->counts->aux_loss = 0;
    ch_choices_place(a, &c, ch_valid_count(a->valid, a->n));
  }
  ch_arena_release(&x->scratch, mark);
}

int ch_fixed_max_slots(const choir_router_options *o, int n, int e, int sequence_length) {
  (void)o, (void)e, (void)sequence_length;
  return n;
}

int ch_token_choice_max_slots(const choir_router_options *o, int per_token, int n, int e) {
  double factor = fmax(o->capacity_factor, o->eval_capacity_factor);
  int64_t room = (int64_t)ch_router_capacity(factor, per_token, n, e) * e, asked = (int64_t)per_token * n;
  return (int)(room < asked ? room : asked);
}

int ch_token_choice_check(const choir_router_options *o, int per_token, int n, int e) {
  CH_TRY(ch_router_check_sizes(o, n, e));
  if (e < per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': every token takes %d experts but there is only %d", o->name,
                    per_token, e);
  if (n > INT32_MAX / per_token)
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': %d tokens are too many for one call", o->name, n);
  if (!(o->aux_loss_weight >= 0 && isfinite(o->aux_loss_weight)))
    return ch_error(CHOIR_ERROR_ARGUMENT, "router '%s': aux_loss_weight %g must not be negative", o->name,
                    o->aux_loss_weight);
  return CHOIR_OK;
}
