/* Dispatch, combine, gates and the load-balancing loss in double: gradients by central differences, and that dispatch
 * is combine's transpose. */
#include "op/backend.h"
#include "testing.h"

enum { N = 9, E = 3, D = 5, SLOTS = 10 };

/* Token 1 has no slot, token 4 three, token 8 two; expert 1 holds nothing. */
static int expert_begin[E + 1] = {0, 6, 6, SLOTS};
static int slot_token[SLOTS] = {0, 2, 4, 4, 5, 8, 3, 4, 6, 8};

typedef struct {
  ch_exec *x;
  ch_combine_args args;
  const real *cotangent;
} problem;

static ch_record make_record(void) {
  return (ch_record){.tokens = N,
                     .experts = E,
                     .max_slots = SLOTS,
                     .expert_begin = expert_begin,
                     .slot_token = slot_token,
                     .slot_gate = test_new_normal(SLOTS, 1),
                     .token_begin = calloc(N + 1, sizeof(int)),
                     .token_slot = calloc(SLOTS, sizeof(int))};
}

static void free_record(ch_record *r) { free(r->slot_gate), free(r->token_begin), free(r->token_slot); }

static double loss(void *context) {
  problem *p = context;
  p->x->ops->combine(p->x, &p->args);
  return test_dot(p->args.out, p->cotangent, N * D);
}

static void test_combine(void **state) {
  ch_record r = make_record();
  real *y = test_new_normal(SLOTS * D, 2), *out = test_new(N * D), *dout = test_new_normal(N * D, 3);
  real *dy = test_new(SLOTS * D), *dgate = test_new(SLOTS);
  for (int gated = 0; gated < 2; gated++)
    TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
      problem p = {.x = &x, .cotangent = dout};
      p.args = (ch_combine_args){
          .record = &r, .d = D, .gated = gated, .y = y, .out = out, .dout = dout, .dy = dy, .dgate = dgate};
      test_poison(dy, SLOTS * D), test_poison(dgate, SLOTS), test_poison(out, N * D);
      x.ops->index(&x, &(ch_index_args){&r});
      x.ops->combine_backward(&x, &p.args);
      if (pass_) test_gradient_agrees(__func__, loss, &p, y, SLOTS * D, dy);
      if (pass_ && gated) test_gradient_agrees(__func__, loss, &p, r.slot_gate, SLOTS, dgate);
      p.args.dy = y; /* in place */
      test_poison(dgate, SLOTS);
      x.ops->combine_backward(&x, &p.args);
      if (pass_) test_close(y, dy, SLOTS * D, 0);
      test_normal(y, SLOTS * D, 2);
      if (pass_ && gated) test_gradient_agrees(__func__, loss, &p, r.slot_gate, SLOTS, dgate);
    });
  free(y), free(out), free(dout), free(dy), free(dgate);
  free_record(&r);
}

/* <gather(x), y> = <x, combine without gates(y)>; with out_acc what stood there is added. */
static void test_transpose(void **state) {
  ch_record r = make_record();
  real *in = test_new_normal(N * D, 4), *gathered = test_new(SLOTS * D), *y = test_new_normal(SLOTS * D, 5);
  real *out = test_new(N * D), *more = test_new_normal(N * D, 6);
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    test_poison(gathered, SLOTS * D), test_poison(out, N * D);
    x.ops->index(&x, &(ch_index_args){&r});
    x.ops->gather(&x, &(ch_gather_args){.record = &r, .d = D, .x = in, .y = gathered});
    x.ops->combine(&x, &(ch_combine_args){.record = &r, .d = D, .y = y, .out = out});
    x.ops->combine(&x, &(ch_combine_args){.record = &r, .d = D, .y = y, .out = more, .out_acc = 1});
  });
  double forward = test_dot(gathered, y, SLOTS * D), backward = test_dot(in, out, N * D);
  if (!(fabs(forward - backward) <= 1e-12)) fail_msg("%.17g is not %.17g", forward, backward);
  real *before = test_new_normal(N * D, 6);
  for (int i = 0; i < N * D; i++) before[i] += out[i];
  test_close(more, before, N * D, 1e-15);
  free(in), free(gathered), free(y), free(out), free(more), free(before);
  free_record(&r);
}

/* Gates as a function of scores: of a share, the values of both choices change with them. */
typedef struct {
  ch_exec *x;
  ch_gate_args gate;
  ch_balance_args balance;
  ch_z_loss_args z;
  const int *choice;
  real *score, *value;
  const real *cotangent;
} gating;

static double gate_loss(void *context) {
  gating *p = context;
  for (int at = 0; at < 2 * N; at++) p->value[at] = p->score[at / 2 * E + p->choice[at]];
  p->x->ops->gate(p->x, &p->gate);
  return test_dot(p->gate.record->slot_gate, p->cotangent, SLOTS - 1);
}

static double balance_loss(void *context) {
  gating *p = context;
  p->x->ops->balance(p->x, &p->balance);
  return (double)p->balance.scale * *p->balance.loss;
}

/* Sum over valid tokens. */
static double z_loss(void *context) {
  gating *p = context;
  double sum = 0;
  p->x->ops->z_loss(p->x, &p->z);
  for (int t = 0; t < N; t++) sum += p->z.valid[t] ? (double)p->z.lse[t] * (double)p->z.lse[t] : 0;
  return sum;
}

static void test_gate(void **state) {
  static const uint8_t valid[N] = {1, 1, 0, 1, 1, 1, 1, 0, 1};
  int choice[2 * N];
  double loss_value;
  ch_record r = make_record();
  int begin[E + 1] = {0, 5, 5, SLOTS - 1}, token[SLOTS - 1] = {0, 2, 4, 5, 8, 3, 4, 6, 8}; /* a pair at most once */
  r.expert_begin = begin, r.slot_token = token;
  real *score = test_new_normal(N * E, 7), *value = test_new(2 * N), *dscore = test_new(N * E),
       *dgate = test_new_normal(SLOTS, 8);
  for (int i = 0; i < N * E; i++) score[i] = (real)exp((double)score[i]);
  for (int t = 0; t < N; t++) choice[2 * t] = t > 5 || t == 3 ? 2 : 0, choice[2 * t + 1] = t > 5 || t == 3 ? 0 : 2;
  TEST_EXEC("reference", CH_COMPUTE_FP32, 1, {
    gating p = {.x = &x, .choice = choice, .score = score, .value = value, .cotangent = dgate};
    p.gate = (ch_gate_args){
        .record = &r, .score = score, .choice = choice, .value = value, .dgate = dgate, .dscore = dscore};
    for (p.gate.rule = CH_GATE_SCORE; p.gate.rule <= CH_GATE_SHARE; p.gate.rule++) {
      if (!pass_) continue;
      test_poison(dscore, N * E);
      gate_loss(&p);
      x.ops->gate_backward(&x, &p.gate);
      double error = test_gradient(gate_loss, &p, score, N * E, dscore, 1000);
      if (!(error <= 1e-8)) fail_msg("gate %d: relative error of the gradient: %.3g", (int)p.gate.rule, error);
    }
    for (int variant = 0; variant < 6; variant++) {
      p.balance = (ch_balance_args){.n = N,
                                    .e = E,
                                    .count = 2,
                                    .counted = 1 + (variant & 1),
                                    .nulls = variant & 4 ? 3 : 0,
                                    .shares = variant >> 1 & 1,
                                    .span = variant ? 4 : N,
                                    .groups = variant ? 3 : 1,
                                    .valid = valid,
                                    .choice = choice,
                                    .score = score,
                                    .loss = &loss_value,
                                    .scale = (real)0.7,
                                    .dscore_acc = dscore};
      memset(dscore, 0, sizeof *dscore * N * E);
      x.ops->balance(&x, &p.balance);
      x.ops->balance_backward(&x, &p.balance);
      double error = pass_ ? test_gradient(balance_loss, &p, score, N * E, dscore, 1000) : 0;
      if (!(error <= 1e-8)) fail_msg("balance %d: relative error of the gradient: %.3g", variant, error);
    }
    p.z = (ch_z_loss_args){
        .n = N, .e = E, .valid = valid, .logit = score, .lse = value, .scale = 2, .dlogit_acc = dscore};
    memset(dscore, 0, sizeof *dscore * N * E);
    x.ops->z_loss(&x, &p.z);
    x.ops->z_loss_backward(&x, &p.z);
    double error = pass_ ? test_gradient(z_loss, &p, score, N * E, dscore, 1000) : 0;
    if (!(error <= 1e-8)) fail_msg("z-loss: relative error of the gradient: %.3g", error);
  });
  free(score), free(value), free(dscore), free(dgate);
  free_record(&r);
}

TEST_MAIN(NULL, NULL, test_combine, test_transpose, test_gate)
