#include "moe/gates.h"

static int by_sigmoid(const ch_router_spec *o) { return o->score == CH_SIGMOID; }

void ch_scores_of(ch_exec *x, const ch_router_spec *o, int64_t n, int e, const real CH_DEV *logits,
                  real CH_DEV *scores) {
  if (by_sigmoid(o))
    CH_OP(x, sigmoid, .count = n * e, .x = logits, .y = scores);
  else
    CH_OP(x, softmax, .n = n, .m = e, .nulls = o->null_experts, .x = logits, .y = scores);
}

void ch_scores_of_backward(ch_exec *x, const ch_router_spec *o, int64_t n, int e, real CH_DEV *scores,
                           real CH_DEV *dscores) {
  if (by_sigmoid(o))
    CH_OP(x, sigmoid_backward, .count = n * e, .y = scores, .dy = dscores, .dx = dscores);
  else
    CH_OP(x, softmax_backward, .n = n, .m = e, .y = scores, .dy = dscores, .dx = dscores);
}

void ch_gates_alloc(const ch_route_args *a, ch_arena *keep) {
  ch_routing *r = a->routing;
  if (a->options->normalize_gates) r->gate_sum = CH_NEW(keep, real, a->n);
  if (a->options->z_loss_weight > 0) r->lse = CH_NEW(keep, real, a->n);
}

void ch_router_gates_from_scores(ch_exec *x, const ch_route_args *a) {
  CH_OP(x, gate, .rule = CH_GATE_SCORE, .record = &a->routing->record, .score = a->routing->scores);
}

void ch_router_gates_backward(ch_exec *x, const ch_route_args *a) {
  CH_OP(x, gate_backward, .rule = CH_GATE_SCORE, .record = &a->routing->record, .dgate = a->routing->dgate,
        .dscore = a->routing->dscores);
}

void ch_gates_change(ch_exec *x, const ch_route_args *a) {
  const ch_routing *r = a->routing;
  if (r->gate_sum) CH_OP(x, normalize_gates, .record = &r->record, .sum = r->gate_sum);
}

void ch_gates_change_backward(ch_exec *x, const ch_route_args *a) {
  const ch_routing *r = a->routing;
  if (r->gate_sum) CH_OP(x, normalize_gates_backward, .record = &r->record, .sum = r->gate_sum, .dgate = r->dgate);
}

void ch_route_z_loss(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits) {
  real CH_DEV *lse = a->routing->lse;
  if (lse) CH_OP(x, z_loss, .n = n, .e = a->e, .logit = logits, .lse = lse + first);
}

void ch_route_z_loss_backward(ch_exec *x, const ch_route_args *a, int64_t first, int n, const real CH_DEV *logits,
                              real CH_DEV *dlogits) {
  real CH_DEV *lse = a->routing->lse;
  int valid = ch_valid_count(a->tokens.mask, a->n);
  if (!lse || !valid || (double)a->scale.z == 0) return;
  CH_OP(x, z_loss_backward, .n = n, .e = a->e, .valid = a->tokens.valid ? a->tokens.valid + first : NULL,
        .logit = logits, .lse = lse + first, .scale = 2 * a->scale.z / (real)valid, .dlogit_acc = dlogits);
}
