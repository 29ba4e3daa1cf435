#include "moe/experts.h"

#include "op/prefetch.h"

/* Pointer to the number of filled slots, which may only be known on the device. */
static const int CH_DEV *filled(const ch_record *r) { return r->expert_begin + r->experts; }

/* The products of one group of experts. */
typedef struct {
  const ch_moe_args *a;
  ch_dispatch *ex;
  const ch_expert_group *group;
  const ch_record *record; /* the group's */
  ch_operand pre;          /* [group's slots,h] */
  real CH_DEV *up;         /* [group's slots,h] where experts are gated */
  real CH_DEV *rows;       /* [group's slots,d] */
} experts_work;

/* One product with all experts: rows of the record, k and n as ch_expert_gemm_args has them. */
static ch_expert_gemm_args product(const ch_record *r, ch_gemm_form form, int64_t k, int64_t n) {
  return (ch_expert_gemm_args){.form = form,
                               .experts = r->experts,
                               .begin = r->expert_begin,
                               .max_rows = r->max_slots,
                               .load = r->load,
                               .max = r->max,
                               .host_begin = r->host_begin,
                               .k = k,
                               .n = n};
}

/* Runs a product, then makes progress on active transfers. */
static void multiply(ch_exec *x, const experts_work *k, const ch_expert_gemm_args *p) {
  x->ops->expert_gemm(x, p);
  k->ex->with->progress(x, k->ex);
  ch_prefetch_move(x);
}

ch_operand ch_hidden_new(const ch_exec *x, const ch_moe_args *a, ch_arena *arena, int64_t slots) {
  if (x->compute != CH_COMPUTE_BF16 || ch_gated(a->activation))
    return (ch_operand){.value = CH_NEW(arena, real, slots * a->h)};
  return (ch_operand){.rounded = CH_NEW(arena, ch_bf16, slots * a->h)};
}

/* Scratch for the hidden activations of the group's slots. */
static ch_operand scratch_hidden(ch_exec *x, const experts_work *k) {
  return ch_hidden_new(x, k->a, &x->scratch, k->record->max_slots);
}

/* Rows as an operand of several products, rounded to bf16 once. */
static ch_operand as_rows(ch_exec *x, const ch_record *r, real CH_DEV *value, int64_t width) {
  if (x->compute != CH_COMPUTE_BF16) return (ch_operand){.value = value};
  ch_operand out = {.rounded = CH_NEW(&x->scratch, ch_bf16, r->max_slots * width)};
  CH_OP(x, round_bf16, .count = width, .rows = filled(r), .x = value, .y = out.rounded);
  return out;
}

/* The received rows as an operand of one product, or of two for gated experts. */
static ch_operand arrived(ch_exec *x, const experts_work *k) {
  if (k->ex->rounds) return (ch_operand){.rounded = (ch_bf16 CH_DEV *)k->rows};
  return k->up ? as_rows(x, k->record, k->rows, k->a->route.d) : (ch_operand){.value = k->rows};
}

/* The group's part of an array [e,d,h] of this rank's experts, or NULL. */
#define OF_GROUP(k, w) ((w) ? (w) + (int64_t)(k)->group->first * (k)->a->route.d * (k)->a->h : NULL)

/* C (=|+=) A W (CH_NN, [d] -> [h]), with an optional activation, or C (=|+=) A W^T (CH_NT, [h] -> [d]). */
static void apply(ch_exec *x, const experts_work *k, ch_gemm_form form, ch_operand in, const real CH_DEV *w,
                  const ch_bf16 CH_DEV *w16, const ch_q8 CH_DEV *w8, real CH_DEV *out, const ch_activate_args *then,
                  int add) {
  const ch_moe_args *a = k->a;
  ch_expert_gemm_args p =
      product(k->record, form, form == CH_NN ? a->route.d : a->h, form == CH_NN ? a->h : a->route.d);
  p.activate = then;
  p.accumulate = add;
  p.a = in.value;
  p.a16 = in.rounded;
  p.c = out;
  p.w = (real CH_DEV *)OF_GROUP(k, w); /* an input here: only CH_TN writes it */
  p.w16 = OF_GROUP(k, w16);
  p.w8 = w8 ? w8 + k->group->first * ch_q8_matrix_bytes(p.n, p.k) : NULL;
  multiply(x, k, &p);
}

/* dW[i] (+)= A^T C with A [slots,d] and C [slots,h]. */
static void accumulate(ch_exec *x, const experts_work *k, ch_operand rows_d, ch_operand rows_h, real CH_DEV *dw) {
  ch_expert_gemm_args p = product(k->record, CH_TN, k->a->route.d, k->a->h);
  p.a = rows_d.value;
  p.a16 = rows_d.rounded;
  p.c = rows_h.value;
  p.c16 = rows_h.rounded;
  p.w = OF_GROUP(k, dw);
  p.accumulate = k->a->accumulate;
  multiply(x, k, &p);
}

/* Arguments for hidden = act(pre) or act(pre) * up, and the common arguments of its backward. */
static ch_activate_args activation_of(const experts_work *k, ch_operand hidden) {
  return (ch_activate_args){.activation = k->a->activation,
                            .count = k->a->h,
                            .rows = filled(k->record),
                            .x = k->pre.value,
                            .u = k->up,
                            .x16 = k->pre.rounded,
                            .y = hidden.value,
                            .y16 = hidden.rounded};
}

/* y = hidden W2^T. */
static void output(ch_exec *x, const experts_work *k, ch_operand hidden) {
  const ch_moe_weights *w = &k->a->weights;
  apply(x, k, CH_NT, hidden, w->w2, w->w2_16, w->w2_8, k->rows, NULL, 0);
}

/* Waits for a group's rows. No product overlaps with the transfer of the first group, so it gets the full bandwidth;
 * the prefetch begins after it. */
static void arrive(ch_exec *x, const experts_work *k, int group) {
  k->ex->with->arrive(x, k->ex, group, k->rows);
  if (!group) ch_prefetch_next(x);
}

/* pre = x W1, up = x W3, hidden = activation; hidden overwrites pre if backward does not need it. */
static void forward_group(ch_exec *x, const experts_work *k, int group) {
  const ch_moe_weights *w = &k->a->weights;
  CH_SCRATCH(x);
  ch_operand hidden = k->a->keep ? scratch_hidden(x, k) : k->pre;
  ch_activate_args then = activation_of(k, hidden);
  arrive(x, k, group);
  ch_operand in = arrived(x, k);
  apply(x, k, CH_NN, in, w->w1, w->w1_16, w->w1_8, k->pre.value, k->up ? NULL : &then, 0);
  if (k->up) apply(x, k, CH_NN, in, w->w3, w->w3_16, w->w3_8, k->up, &then, 0);
  output(x, k, hidden);
}

static void again(ch_exec *x, const experts_work *k, int group) {
  (void)group;
  CH_SCRATCH(x);
  ch_operand hidden = scratch_hidden(x, k);
  ch_activate_args then = activation_of(k, hidden);
  x->ops->activate(x, &then);
  output(x, k, hidden);
}

/* Backward of pre = x_in W1 and up = x_in W3: computes weight gradients from dpre and dup (stored in up), and replaces
 * x_in (in the buffer of dy) by its gradient. */
static void backward_in(ch_exec *x, const experts_work *k, ch_operand dpre) {
  const ch_moe_args *a = k->a;
  const ch_moe_weights *w = &a->weights;
  ch_operand in = arrived(x, k), dup = {0};
  if (k->up) {
    dpre = as_rows(x, k->record, dpre.value, a->h);
    dup = as_rows(x, k->record, k->up, a->h);
  }
  accumulate(x, k, in, dpre, a->gradients.w1);
  if (k->up) accumulate(x, k, in, dup, a->gradients.w3);
  apply(x, k, CH_NT, dpre, w->w1, w->w1_16, NULL, k->rows, NULL, 0);
  if (k->up) apply(x, k, CH_NT, dup, w->w3, w->w3_16, NULL, k->rows, NULL, 1);
}

static void backward_group(ch_exec *x, const experts_work *k, int group) {
  const ch_moe_args *a = k->a;
  CH_SCRATCH(x);
  arrive(x, k, group);

  /* y = hidden W2^T: dhidden becomes dpre; recomputed hidden overwrites pre */
  ch_operand hidden = k->pre, dpre = scratch_hidden(x, k);
  size_t rows = ch_arena_mark(&x->scratch);
  ch_operand dy_in = as_rows(x, k->record, k->rows, a->route.d);
  ch_activate_args then = activation_of(k, hidden);
  then.dy = then.dx = dpre.value;
  then.dx16 = dpre.rounded;
  then.du = k->up;
  apply(x, k, CH_NN, dy_in, a->weights.w2, a->weights.w2_16, NULL, dpre.value, &then, 0);
  accumulate(x, k, dy_in, hidden, a->gradients.w2);
  ch_arena_release(&x->scratch, rows);

  k->ex->with->read_again(x, k->ex, group, a->route.x, k->rows);
  backward_in(x, k, dpre);
}

static ch_operand rows_from(ch_operand all, int64_t first) {
  if (all.rounded) return (ch_operand){.rounded = all.rounded + first};
  return (ch_operand){.value = all.value + first};
}

static void for_each_group(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s,
                           void (*compute)(ch_exec *x, const experts_work *k, int group)) {
  CH_SCRATCH(x);
  ch_dispatch *ex = &s->dispatch;
  experts_work k = {.a = a, .ex = ex, .rows = ex->with->group_rows(x, ex, s->expert_y)};
  for (int g = 0; g < ex->groups; g++) {
    k.group = &ex->group[g];
    k.record = &k.group->record;
    k.pre = rows_from(s->pre, k.group->slot * a->h);
    k.up = s->up ? s->up + k.group->slot * a->h : NULL;
    compute(x, &k, g);
    ex->with->send_back(x, ex, g, k.rows);
  }
}

void ch_experts_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, forward_group); }

void ch_experts_recompute(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, again); }

void ch_experts_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) { for_each_group(x, a, s, backward_group); }
