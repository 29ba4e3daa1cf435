/* Reference: gates and the losses of routers, and their gradients. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "cpu/ref/ref.h"

static real sigmoid(real x) { return (real)(1 / (1 + exp(-(double)x))); }

/* The share that a score has of the sum of a token's two; both 0, which no softmax gives: the score itself. The sum of
 * two finite scores may overflow; their halves are added then. */
static real share_of(const ch_gate_args *a, int t, real score) {
  const real *value = a->value + 2 * (int64_t)t, half = (real)0.5;
  real sum = value[0] + value[1];
  return isinf(sum) ? half * score / (half * value[0] + half * value[1]) : score / (sum == 0 ? 1 : sum);
}

enum { WORTH_IT = 2048 }; /* slots, tokens or scores that are worth waking a thread for */

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
      gate[s] = share_of(a, r->slot_token[s], gate[s]);
  }
}

/* d(g1/(g1+g2)) = g2 dg1 / (g1+g2)^2 and so on; the square of a small sum would be 0. */
static void share_backward(ch_exec *x, const ch_gate_args *a) {
#pragma omp parallel for num_threads(ch_threads_for(x, a->record->tokens, WORTH_IT))
  for (int t = 0; t < a->record->tokens; t++) {
    const int *expert = a->choice + 2 * (int64_t)t;
    if (expert[0] < 0) continue;
    real *dscore = a->dscore + (int64_t)t * a->record->experts;
    real first = a->value[2 * (int64_t)t], second = a->value[2 * (int64_t)t + 1], sum = first + second;
    if (sum == 0) continue; /* gates are the scores themselves */
    real slope = (dscore[expert[0]] - dscore[expert[1]]) / sum;
    if (isinf(sum))
      first *= (real)0.5, second *= (real)0.5, sum = first + second; /* the slope is 0: below all floats */
    dscore[expert[0]] = second / sum * slope;
    dscore[expert[1]] = -first / sum * slope;
  }
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

/* share [e]: the share of the choices of the valid tokens begin .. end-1 that go to expert i, minus *null, the share of
 * each null expert. With shares so shifted the loss needs no mean score of null experts, which is 1 minus the others'.
 * Returns how many tokens are valid. */
static int choice_shares(const ch_balance_args *a, int begin, int end, double *share, double *null) {
  int valid = ch_valid_count(a->valid ? a->valid + begin : NULL, end - begin);
  for (int i = 0; i < a->e; i++) share[i] = 0;
  for (int64_t t = begin; t < end; t++)
    for (int j = 0; j < a->counted; j++)
      if (a->choice[t * a->count + j] >= 0) share[a->choice[t * a->count + j]]++;
  for (int i = 0; i < a->e; i++) share[i] = valid ? share[i] / valid / a->counted : 0;
  double left = 1;
  for (int i = 0; i < a->e; i++) left -= share[i];
  *null = a->nulls && valid ? left / a->nulls : 0;
  for (int i = 0; i < a->e; i++) share[i] -= *null;
  return valid;
}

/* The sum of a token's scores that it is divided by; 0 of 0 counts as 0. */
static double whole_of(const ch_balance_args *a, const real *score) {
  double sum = 0;
  for (int i = 0; i < a->e && a->shares; i++) sum += (double)score[i];
  return sum == 0 ? 1 : sum;
}

/* Mean share of the experts of a token's scores. */
static double mean_share(const ch_balance_args *a, const double *share, const real *score) {
  double sum = 0;
  for (int i = 0; i < a->e; i++) sum += share[i] * (double)score[i];
  return sum / whole_of(a, score);
}

CH_REF_SCRATCH_OP(balance) {
  CH_SCRATCH(x);
  double *share = CH_NEW(&x->scratch, double, a->e), all = 0;
  if (ch_counting(x)) return;
  for (int begin = 0, end; begin < a->n; begin = end) {
    double sum = 0, null;
    end = begin + (a->span < a->n - begin ? a->span : a->n - begin);
    int valid = choice_shares(a, begin, end, share, &null);
    for (int t = begin; t < end; t++)
      if (!a->valid || a->valid[t]) sum += mean_share(a, share, a->score + (int64_t)t * a->e);
    all += valid ? (a->e + a->nulls) * sum / valid + (a->e + a->nulls) * null : 0;
  }
  *a->loss = a->groups ? all / a->groups : 0;
}

CH_REF_SCRATCH_OP(balance_backward) {
  CH_SCRATCH(x);
  double *share = CH_NEW(&x->scratch, double, a->e);
  if (ch_counting(x) || (double)a->scale == 0) return;
  for (int begin = 0, end; begin < a->n; begin = end) {
    double null;
    end = begin + (a->span < a->n - begin ? a->span : a->n - begin);
    int valid = choice_shares(a, begin, end, share, &null);
    double scale = valid ? (double)a->scale * (a->e + a->nulls) / valid / a->groups : 0;
#pragma omp parallel for num_threads(ch_threads_for(x, (int64_t)(end - begin) * a->e, WORTH_IT))
    for (int t = begin; t < end; t++) {
      if (a->valid && !a->valid[t]) continue;
      const real *score = a->score + (int64_t)t * a->e;
      double whole = whole_of(a, score), mean = a->shares ? mean_share(a, share, score) : 0;
      for (int i = 0; i < a->e; i++) a->dscore_acc[(int64_t)t * a->e + i] += (real)(scale * (share[i] - mean) / whole);
    }
  }
}

CH_REF_OP(z_loss) {
#pragma omp parallel for num_threads(ch_threads_for(x, (int64_t)a->n * a->e, WORTH_IT))
  for (int t = 0; t < a->n; t++) {
    const real *logit = a->logit + (int64_t)t * a->e;
    double most = (double)logit[0], sum = 0;
    for (int i = 1; i < a->e; i++) most = fmax(most, (double)logit[i]);
    for (int i = 0; i < a->e; i++) sum += exp((double)logit[i] - most);
    a->lse[t] = (real)(most + log(sum));
  }
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
  for (int t = 0; t < r->tokens; t++) {
    double sum = 0;
    for (int i = r->token_begin[t]; i < r->token_begin[t + 1]; i++) sum += (double)r->slot_gate[r->token_slot[i]];
    a->sum[t] = (real)(sum == 0 ? 1 : sum);
    double by = (double)a->sum[t];
    if (isinf(by)) by = sum, a->sum[t] = (real)FLT_MAX; /* finite gates, whose sum no float holds */
    for (int i = r->token_begin[t]; i < r->token_begin[t + 1]; i++)
      r->slot_gate[r->token_slot[i]] = (real)((double)r->slot_gate[r->token_slot[i]] / by);
  }
}

CH_REF_OP(normalize_gates_backward) {
  const ch_record *r = a->record;
#pragma omp parallel for num_threads(ch_threads_for(x, r->tokens, WORTH_IT))
  for (int t = 0; t < r->tokens; t++) {
    double mean = 0;
    for (int i = r->token_begin[t]; i < r->token_begin[t + 1]; i++)
      mean += (double)r->slot_gate[r->token_slot[i]] * (double)a->dgate[r->token_slot[i]];
    for (int i = r->token_begin[t]; i < r->token_begin[t + 1]; i++) {
      int s = r->token_slot[i];
      a->dgate[s] = (real)(((double)a->dgate[s] - mean) / (double)a->sum[t]);
    }
  }
}
