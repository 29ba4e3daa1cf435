/* Reference: gates and auxiliary losses of routers, and their gradients. */
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"
#include "op/token.cl.h"

static real sigmoid(real x) { return (real)(1 / (1 + exp(-(double)x))); }

enum { WORTH_IT = 2048 }; /* min slots, tokens or scores for a second thread */

CH_REF_OP(gate) {
  const ch_record *r = a->record;
  real even = a->rule == CH_GATE_EVEN ? (real)(1.0 / a->count) : 0, *gate = r->slot_gate;
#pragma omp parallel for num_threads(ch_threads_for(x, r->expert_begin[r->experts], WORTH_IT))
  for (int i = 0; i < r->experts; i++) {
    int end = r->expert_begin[i + 1];
    for (int s = r->expert_begin[i]; s < end; s++)
      gate[s] = a->rule == CH_GATE_EVEN ? even : a->score[(int64_t)r->slot_token[s] * r->experts + i];
    for (int s = r->expert_begin[i]; s < end && a->rule == CH_GATE_SIGMOID; s++) gate[s] = sigmoid(gate[s]);
    for (int s = r->expert_begin[i]; s < end && a->rule == CH_GATE_SHARE; s++)
      gate[s] = normalize_top2(a->value + 2 * (int64_t)r->slot_token[s], gate[s]);
  }
}

static void share_backward(ch_exec *x, const ch_gate_args *a) {
#pragma omp parallel for num_threads(ch_threads_for(x, a->record->tokens, WORTH_IT))
  for (int64_t t = 0; t < a->record->tokens; t++)
    normalize_top2_backward(a->choice + 2 * t, a->value + 2 * t, a->dscore + t * a->record->experts);
}

CH_REF_OP(gate_backward) {
  const ch_record *r = a->record;
  memset(a->dscore, 0, (size_t)r->tokens * (size_t)r->experts * sizeof *a->dscore);
#pragma omp parallel for num_threads(ch_threads_for(x, r->expert_begin[r->experts], WORTH_IT))
  for (int i = 0; i < r->experts; i++)
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++) {
      real dgate = a->dgate[s];
      if (a->rule == CH_GATE_SIGMOID) dgate = dgate * r->slot_gate[s] * (1 - r->slot_gate[s]);
      a->dscore[(int64_t)r->slot_token[s] * r->experts + i] = dgate;
    }
  if (a->rule == CH_GATE_SHARE) share_backward(x, a);
}

/* share [e]: fraction of the choices of valid tokens begin .. end-1 per expert. Returns the number of valid tokens. */
static int choice_shares(const ch_balance_args *a, int begin, int end, double *share) {
  int valid = ch_valid_count(a->valid ? a->valid + begin : NULL, end - begin);
  for (int i = 0; i < a->e; i++) share[i] = 0;
  for (int64_t t = begin; t < end; t++)
    for (int j = 0; j < a->counted; j++)
      if (a->choice[t * a->count + j] >= 0) share[a->choice[t * a->count + j]]++;
  for (int i = 0; i < a->e; i++) share[i] = valid ? share[i] / valid / a->counted : 0;
  return valid;
}

CH_REF_SCRATCH_OP(balance) {
  CH_SCRATCH(x);
  double *share = CH_NEW(&x->scratch, double, a->e), all = 0;
  if (ch_counting(x)) return;
  for (int begin = 0, end; begin < a->n; begin = end) {
    end = begin + (a->span < a->n - begin ? a->span : a->n - begin);
    int valid = choice_shares(a, begin, end, share);
    double sum = 0, null = null_share(a->e, a->nulls, share), whole;
    for (int t = begin; t < end; t++)
      if (!a->valid || a->valid[t])
        whole = a->shares, sum += mean_share(a->e, null, share, a->score + (int64_t)t * a->e, &whole);
    all += valid ? (a->e + a->nulls) * sum / valid + (a->e + a->nulls) * null : 0;
  }
  *a->loss = a->groups ? all / a->groups : 0;
}

CH_REF_SCRATCH_OP(balance_backward) {
  CH_SCRATCH(x);
  double *share = CH_NEW(&x->scratch, double, a->e);
  if (ch_counting(x) || (double)a->scale == 0) return;
  for (int begin = 0, end; begin < a->n; begin = end) {
    end = begin + (a->span < a->n - begin ? a->span : a->n - begin);
    int valid = choice_shares(a, begin, end, share);
    double scale = valid ? (double)a->scale * (a->e + a->nulls) / valid / a->groups : 0;
    double null = null_share(a->e, a->nulls, share);
#pragma omp parallel for num_threads(ch_threads_for(x, (int64_t)(end - begin) * a->e, WORTH_IT))
    for (int64_t t = begin; t < end; t++)
      if (!a->valid || a->valid[t])
        mean_share_backward(a->e, a->shares, scale, null, share, a->score + t * a->e, a->dscore_acc + t * a->e);
  }
}

CH_REF_OP(z_loss) {
#pragma omp parallel for num_threads(ch_threads_for(x, (int64_t)a->n * a->e, WORTH_IT))
  for (int64_t t = 0; t < a->n; t++) a->lse[t] = log_sum_exp(a->e, a->logit + t * a->e);
}

CH_REF_OP(z_loss_backward) {
#pragma omp parallel for num_threads(ch_threads_for(x, (int64_t)a->n * a->e, WORTH_IT))
  for (int t = 0; t < a->n; t++) {
    double lse = (double)a->lse[t], scale = (double)a->scale * lse;
    for (int64_t j = (int64_t)t * a->e; j < (int64_t)(t + 1) * a->e && (!a->valid || a->valid[t]); j++)
      a->dlogit_acc[j] += (real)(scale * exp((double)a->logit[j] - lse));
  }
}

CH_REF_OP(normalize_gates) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(ch_threads_for(x, r->tokens, WORTH_IT))
  for (int t = 0; t < r->tokens; t++) a->sum[t] = normalize_gates(r->token_begin + t, r->token_slot, r->slot_gate);
}

CH_REF_OP(normalize_gates_backward) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(ch_threads_for(x, r->tokens, WORTH_IT))
  for (int t = 0; t < r->tokens; t++)
    normalize_gates_backward(r->token_begin + t, r->token_slot, r->slot_gate, a->sum[t], a->dgate);
}
