#include "moe/experts.h"

#include "op/visits.h"

/* How many slots are filled: only the device knows. */
static const int CH_DEV *filled(const ch_record *r) { return r->expert_begin + r->experts; }

/* What is multiplied at a time. */
typedef struct {
  const ch_moe_args *a;
  ch_exchange *ex;
  const ch_expert_group *group;
  const ch_record *record; /* the group's */
  real CH_DEV *pre;        /* [group's slots,h] */
  real CH_DEV *rows;       /* [group's slots,d] */
} work;

/* One product with all experts: rows of the record, k and n as ch_expert_gemm_args has them. */
static ch_expert_gemm_args product(const ch_record *r, ch_gemm_form form, int64_t k, int64_t n) {
  return (ch_expert_gemm_args){.form = form,
                               .experts = r->experts,
                               .begin = r->expert_begin,
                               .max_rows = r->max_slots,
                               .load = r->load,
                               .k = k,
                               .n = n};
}

/* Rows that only products read: in the type they compute in. */
typedef struct {
  real CH_DEV *value;
  ch_bf16 CH_DEV *rounded; /* then value is NULL */
} rows;

static rows new_rows(ch_exec *x, int64_t count) {
  if (x->compute == CH_COMPUTE_BF16) return (rows){.rounded = CH_NEW(&x->scratch, ch_bf16, count)};
  return (rows){.value = CH_NEW(&x->scratch, real, count)};
}

/* The same of rows of width d that are there. */
static rows as_rows(ch_exec *x, const ch_record *r, real CH_DEV *value, int64_t d) {
  if (x->compute != CH_COMPUTE_BF16) return (rows){.value = value};
  rows out = new_rows(x, r->max_slots * d);
  x->ops->round_bf16(x, &(ch_round_args){.count = d, .rows = filled(r), .x = value, .y = out.rounded});
  return out;
}

/* The group's part of an array [e,d,h] of this rank's experts; NULL stays. */
#define OF_GROUP(k, w) ((w) ? (w) + (int64_t)(k)->group->first * (k)->a->d * (k)->a->h : NULL)

/* C = A W (CH_NN, [d] -> [h]) or C = A W^T (CH_NT, [h] -> [d]). */
static void apply(ch_exec *x, const work *k, ch_gemm_form form, rows in, const real CH_DEV *w,
                  const ch_bf16 CH_DEV *w16, real CH_DEV *out) {
  const ch_moe_args *a = k->a;
  ch_expert_gemm_args p = product(k->record, form, form == CH_NN ? a->d : a->h, form == CH_NN ? a->h : a->d);
  p.a = in.value;
  p.a16 = in.rounded;
  p.c = out;
  p.w = (real CH_DEV *)OF_GROUP(k, w); /* an input here: only CH_TN writes it */
  p.w16 = OF_GROUP(k, w16);
  x->ops->expert_gemm(x, &p);
  ch_exchange_progress(x, k->ex);
}

/* dW[i] (+)= A^T C with A [slots,d] and C [slots,h]. */
static void accumulate(ch_exec *x, const work *k, rows rows_d, rows rows_h, real CH_DEV *dw) {
  ch_expert_gemm_args p = product(k->record, CH_TN, k->a->d, k->a->h);
  p.a = rows_d.value;
  p.a16 = rows_d.rounded;
  p.c = rows_h.value;
  p.c16 = rows_h.rounded;
  p.w = OF_GROUP(k, dw);
  p.accumulate = k->a->accumulate;
  x->ops->expert_gemm(x, &p);
  ch_exchange_progress(x, k->ex);
}

/* y = gelu(pre) W2^T. */
static void output(ch_exec *x, const work *k) {
  const ch_moe_weights *w = &k->a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  rows hidden = new_rows(x, (int64_t)k->record->max_slots * k->a->h);
  x->ops->gelu(x,
               &(ch_gelu_args){
                   .count = k->a->h, .rows = filled(k->record), .x = k->pre, .y = hidden.value, .y16 = hidden.rounded});
  apply(x, k, CH_NT, hidden, w->w2, w->w2_16, k->rows);
  ch_arena_release(&x->scratch, mark);
}

/* Rows that nobody computes beside have the links for themselves: what visits sets out behind the first ones. */
static void arrive(ch_exec *x, const work *k, int group) {
  ch_exchange_arrive(x, k->ex, group, k->rows);
  if (!group) ch_visits_next(x);
}

static void forward(ch_exec *x, const work *k, int group) {
  const ch_moe_weights *w = &k->a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  arrive(x, k, group);
  apply(x, k, CH_NN, (rows){.value = k->rows}, w->w1, w->w1_16, k->pre);
  ch_arena_release(&x->scratch, mark);
  output(x, k);
}

static void again(ch_exec *x, const work *k, int group) {
  (void)group;
  output(x, k);
}

static void backward(ch_exec *x, const work *k, int group) {
  const ch_moe_args *a = k->a;
  const ch_record *r = k->record;
  const ch_moe_weights *w = &a->weights;
  int64_t most = (int64_t)r->max_slots * a->h;
  size_t mark = ch_arena_mark(&x->scratch);
  arrive(x, k, group);
  real CH_DEV *dhidden = CH_NEW(&x->scratch, real, most);
  int rounds = x->compute == CH_COMPUTE_BF16;

  /* y = hidden W2^T */
  rows dy_in = as_rows(x, r, k->rows, a->d);
  apply(x, k, CH_NN, dy_in, w->w2, w->w2_16, dhidden);

  /* hidden = gelu(pre), computed again: unless they are rounded, hidden and dpre take the places of pre and dhidden,
   * which are done with */
  rows hidden = rounds ? new_rows(x, most) : (rows){.value = k->pre};
  rows dpre = rounds ? new_rows(x, most) : (rows){.value = dhidden};
  x->ops->gelu_backward(x, &(ch_gelu_args){.count = a->h,
                                           .rows = filled(r),
                                           .x = k->pre,
                                           .y = hidden.value,
                                           .y16 = hidden.rounded,
                                           .dy = dhidden,
                                           .dx = dpre.value,
                                           .dx16 = dpre.rounded});
  accumulate(x, k, dy_in, hidden, a->gradients.w2);

  /* pre = x_in W1, with x_in in the place of dy, and then its gradient */
  ch_exchange_read_again(x, k->ex, group, a->x, k->rows);
  accumulate(x, k, (rows){.value = k->rows}, dpre, a->gradients.w1);
  apply(x, k, CH_NT, dpre, w->w1, w->w1_16, k->rows);
  ch_arena_release(&x->scratch, mark);
}

/* Rows of the largest group; in one process they are y. */
static real CH_DEV *rows_of_group(ch_exec *x, const ch_exchange *ex, real CH_DEV *y) {
  int64_t most = 0;
  if (!ex->slots) return y;
  for (int g = 0; g < ex->groups; g++)
    if (ex->group[g].record.max_slots > most) most = ex->group[g].record.max_slots;
  return CH_NEW(&x->scratch, real, most * ex->d);
}

static void for_each_group(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s,
                           void (*compute)(ch_exec *x, const work *k, int group)) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_exchange *ex = &s->exchange;
  work k = {.a = a, .ex = ex, .rows = rows_of_group(x, ex, s->expert_y)};
  for (int g = 0; g < ex->groups; g++) {
    k.group = &ex->group[g];
    k.record = &k.group->record;
    k.pre = s->pre + k.group->slot * a->h;
    compute(x, &k, g);
    ch_exchange_send_back(x, ex, g, k.rows);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, forward); }

void ch_experts_again(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, again); }

void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, backward); }
