#include "moe/experts.h"

#include "op/visits.h"

/* How many slots are filled: only the device knows. */
static const int CH_DEV *filled(const ch_record *r) { return r->expert_begin + r->experts; }

/* What is multiplied at a time. */
typedef struct {
  const ch_moe_args *a;
  ch_dispatch *ex;
  const ch_expert_group *group;
  const ch_record *record; /* the group's */
  ch_operand pre;          /* [group's slots,h] */
  real CH_DEV *up;         /* [group's slots,h] where experts are gated */
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

/* A product, and then what is under way is moved on. */
static void multiply(ch_exec *x, const work *k, const ch_expert_gemm_args *p) {
  x->ops->expert_gemm(x, p);
  k->ex->with->progress(x, k->ex);
  ch_visits_move(x);
}

ch_operand ch_operand_new(const ch_exec *x, ch_arena *arena, int64_t count) {
  if (x->compute == CH_COMPUTE_BF16) return (ch_operand){.rounded = CH_NEW(arena, ch_bf16, count)};
  return (ch_operand){.value = CH_NEW(arena, real, count)};
}

/* Rows of width d that are there, for products. */
static ch_operand as_rows(ch_exec *x, const ch_record *r, real CH_DEV *value, int64_t d) {
  if (x->compute != CH_COMPUTE_BF16) return (ch_operand){.value = value};
  ch_operand out = ch_operand_new(x, &x->scratch, r->max_slots * d);
  x->ops->round_bf16(x, &(ch_round_args){.count = d, .rows = filled(r), .x = value, .y = out.rounded});
  return out;
}

/* The group's part of an array [e,d,h] of this rank's experts; NULL stays. */
#define OF_GROUP(k, w) ((w) ? (w) + (int64_t)(k)->group->first * (k)->a->route.d * (k)->a->h : NULL)

/* C (=|+=) A W (CH_NN, [d] -> [h]), which may go through GELU, or C (=|+=) A W^T (CH_NT, [h] -> [d]). */
static void apply(ch_exec *x, const work *k, ch_gemm_form form, ch_operand in, const real CH_DEV *w,
                  const ch_bf16 CH_DEV *w16, real CH_DEV *out, const ch_gelu_args *gelu, int add) {
  const ch_moe_args *a = k->a;
  ch_expert_gemm_args p =
      product(k->record, form, form == CH_NN ? a->route.d : a->h, form == CH_NN ? a->h : a->route.d);
  p.gelu = gelu;
  p.accumulate = add;
  p.a = in.value;
  p.a16 = in.rounded;
  p.c = out;
  p.w = (real CH_DEV *)OF_GROUP(k, w); /* an input here: only CH_TN writes it */
  p.w16 = OF_GROUP(k, w16);
  multiply(x, k, &p);
}

/* dW[i] (+)= A^T C with A [slots,d] and C [slots,h]. */
static void accumulate(ch_exec *x, const work *k, ch_operand rows_d, ch_operand rows_h, real CH_DEV *dw) {
  ch_expert_gemm_args p = product(k->record, CH_TN, k->a->route.d, k->a->h);
  p.a = rows_d.value;
  p.a16 = rows_d.rounded;
  p.c = rows_h.value;
  p.c16 = rows_h.rounded;
  p.w = OF_GROUP(k, dw);
  p.accumulate = k->a->accumulate;
  multiply(x, k, &p);
}

/* hidden = gelu(pre), or its backward as far as it is the same. */
static ch_gelu_args gelu_of(const work *k, ch_operand hidden) {
  return (ch_gelu_args){.count = k->a->h,
                        .rows = filled(k->record),
                        .x = k->pre.value,
                        .x16 = k->pre.rounded,
                        .y = hidden.value,
                        .y16 = hidden.rounded};
}

/* y = hidden W2^T. */
static void output(ch_exec *x, const work *k, ch_operand hidden) {
  const ch_moe_weights *w = &k->a->weights;
  apply(x, k, CH_NT, hidden, w->w2, w->w2_16, k->rows, NULL, 0);
}

/* Rows that nobody computes beside have the links for themselves: what visits sets out behind the first ones. */
static void arrive(ch_exec *x, const work *k, int group) {
  k->ex->with->arrive(x, k->ex, group, k->rows);
  if (!group) ch_visits_next(x);
}

/* hidden = act(pre) * up, or its backward as far as it is the same. */
static ch_gelu_args glu_of(const work *k, real CH_DEV *hidden) {
  return (ch_gelu_args){.activation = k->a->activation,
                        .count = k->a->h,
                        .rows = filled(k->record),
                        .x = k->pre.value,
                        .u = k->up,
                        .y = hidden};
}

/* pre = x W1, up = x W3, hidden = act(pre) * up: in the place of pre where nobody asks for that again. */
static void forward_gated(ch_exec *x, const work *k, int group) {
  const ch_moe_weights *w = &k->a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *hidden = k->pre.value;
  if (k->a->keep) hidden = CH_NEW(&x->scratch, real, (int64_t)k->record->max_slots * k->a->h);
  arrive(x, k, group);
  ch_operand in = as_rows(x, k->record, k->rows, k->a->route.d);
  apply(x, k, CH_NN, in, w->w1, w->w1_16, k->pre.value, NULL, 0);
  apply(x, k, CH_NN, in, w->w3, w->w3_16, k->up, NULL, 0);
  ch_gelu_args glu = glu_of(k, hidden);
  x->ops->glu(x, &glu);
  output(x, k, (ch_operand){.value = hidden});
  ch_arena_release(&x->scratch, mark);
}

static void again_gated(ch_exec *x, const work *k, int group) {
  (void)group;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *hidden = CH_NEW(&x->scratch, real, (int64_t)k->record->max_slots * k->a->h);
  ch_gelu_args glu = glu_of(k, hidden);
  x->ops->glu(x, &glu);
  output(x, k, (ch_operand){.value = hidden});
  ch_arena_release(&x->scratch, mark);
}

/* Gradients of pre and up take their places, and hidden that of its own. */
static void backward_gated(ch_exec *x, const work *k, int group) {
  const ch_moe_args *a = k->a;
  const ch_moe_weights *w = &a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  real CH_DEV *hidden = CH_NEW(&x->scratch, real, (int64_t)k->record->max_slots * a->h);
  arrive(x, k, group);
  size_t rows = ch_arena_mark(&x->scratch);
  ch_operand dy = as_rows(x, k->record, k->rows, a->route.d);
  apply(x, k, CH_NN, dy, w->w2, w->w2_16, hidden, NULL, 0);
  ch_gelu_args glu = glu_of(k, hidden);
  glu.dy = hidden;
  glu.dx = k->pre.value;
  glu.du = k->up;
  x->ops->glu_backward(x, &glu);
  accumulate(x, k, dy, (ch_operand){.value = hidden}, a->gradients.w2);
  ch_arena_release(&x->scratch, rows);

  k->ex->with->read_again(x, k->ex, group, a->route.x, k->rows);
  ch_operand in = as_rows(x, k->record, k->rows, a->route.d);
  ch_operand dpre = as_rows(x, k->record, k->pre.value, a->h), dup = as_rows(x, k->record, k->up, a->h);
  accumulate(x, k, in, dpre, a->gradients.w1);
  accumulate(x, k, in, dup, a->gradients.w3);
  apply(x, k, CH_NT, dpre, w->w1, w->w1_16, k->rows, NULL, 0);
  apply(x, k, CH_NT, dup, w->w3, w->w3_16, k->rows, NULL, 1);
  ch_arena_release(&x->scratch, mark);
}

/* pre = x W1, hidden = gelu(pre): in the place of pre where nobody asks for that again. */
static void forward(ch_exec *x, const work *k, int group) {
  const ch_moe_weights *w = &k->a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  ch_operand hidden = k->pre;
  if (k->a->keep) hidden = ch_operand_new(x, &x->scratch, (int64_t)k->record->max_slots * k->a->h);
  ch_gelu_args gelu = gelu_of(k, hidden);
  arrive(x, k, group);
  apply(x, k, CH_NN, (ch_operand){.value = k->rows}, w->w1, w->w1_16, k->pre.value, &gelu, 0);
  output(x, k, hidden);
  ch_arena_release(&x->scratch, mark);
}

static void again(ch_exec *x, const work *k, int group) {
  (void)group;
  size_t mark = ch_arena_mark(&x->scratch);
  ch_operand hidden = ch_operand_new(x, &x->scratch, (int64_t)k->record->max_slots * k->a->h);
  ch_gelu_args gelu = gelu_of(k, hidden);
  x->ops->gelu(x, &gelu);
  output(x, k, hidden);
  ch_arena_release(&x->scratch, mark);
}

static void backward(ch_exec *x, const work *k, int group) {
  const ch_moe_args *a = k->a;
  const ch_moe_weights *w = &a->weights;
  size_t mark = ch_arena_mark(&x->scratch);
  arrive(x, k, group);

  /* y = hidden W2^T: dhidden goes on to dpre, and hidden = gelu(pre), computed again, takes the place of pre */
  ch_operand dy_in = as_rows(x, k->record, k->rows, a->route.d), hidden = k->pre;
  ch_operand dpre = ch_operand_new(x, &x->scratch, (int64_t)k->record->max_slots * a->h);
  ch_gelu_args gelu = gelu_of(k, hidden);
  gelu.dy = gelu.dx = dpre.value;
  gelu.dx16 = dpre.rounded;
  apply(x, k, CH_NN, dy_in, w->w2, w->w2_16, dpre.value, &gelu, 0);
  accumulate(x, k, dy_in, hidden, a->gradients.w2);

  /* pre = x_in W1, with x_in in the place of dy, and then its gradient */
  k->ex->with->read_again(x, k->ex, group, a->route.x, k->rows);
  accumulate(x, k, (ch_operand){.value = k->rows}, dpre, a->gradients.w1);
  apply(x, k, CH_NT, dpre, w->w1, w->w1_16, k->rows, NULL, 0);
  ch_arena_release(&x->scratch, mark);
}

static ch_operand rows_from(ch_operand all, int64_t first) {
  if (all.rounded) return (ch_operand){.rounded = all.rounded + first};
  return (ch_operand){.value = all.value + first};
}

static void for_each_group(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s,
                           void (*compute)(ch_exec *x, const work *k, int group)) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_dispatch *ex = &s->dispatch;
  work k = {.a = a, .ex = ex, .rows = ex->with->group_rows(x, ex, s->expert_y)};
  for (int g = 0; g < ex->groups; g++) {
    k.group = &ex->group[g];
    k.record = &k.group->record;
    k.pre = rows_from(s->pre, k.group->slot * a->h);
    k.up = s->up ? s->up + k.group->slot * a->h : NULL;
    compute(x, &k, g);
    ex->with->send_back(x, ex, g, k.rows);
  }
  ch_arena_release(&x->scratch, mark);
}

void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  for_each_group(x, a, s, ch_gated(a->activation) ? forward_gated : forward);
}

void ch_experts_again(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  for_each_group(x, a, s, ch_gated(a->activation) ? again_gated : again);
}

void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  for_each_group(x, a, s, ch_gated(a->activation) ? backward_gated : backward);
}
