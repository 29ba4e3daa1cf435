/* Gates, auxiliary losses of routers, and the prices of quantile balancing. */

/* Rules: 0 even, 1 score, 2 sigmoid, 3 share. One group per expert. */
KERNEL(gate) {
  for (I64 s = a.begin[GID] + LID; s < a.begin[GID + 1]; s += GROUP) {
    I64 t = a.slot_token[s];
    float gate = a.rule ? a.score[t * a.e + GID] : a.even;
    if (a.rule == 2) gate = (float)(1 / (1 + exp(-(double)gate)));
    if (a.rule == 3) gate = normalize_top2(a.value + 2 * t, gate);
    a.slot_gate[s] = gate;
  }
}

/* dscore must be 0 initially. */
KERNEL(gate_backward) {
  for (I64 s = a.begin[GID] + LID; s < a.begin[GID + 1]; s += GROUP) {
    float dgate = a.dgate[s];
    if (a.sigmoid) dgate = dgate * a.slot_gate[s] * (1 - a.slot_gate[s]);
    a.dscore[(I64)a.slot_token[s] * a.e + GID] = dgate;
  }
}

KERNEL(share_backward) { EACH(t, a.n) normalize_top2_backward(a.choice + 2 * t, a.value + 2 * t, a.dscore + t * a.e); }

KERNEL(normalize_gates) { EACH(t, a.n) a.sum[t] = normalize_gates(a.token_begin + t, a.token_slot, a.slot_gate); }

KERNEL(normalize_backward) {
  EACH(t, a.n)
  normalize_gates_backward(a.token_begin + t, a.token_slot, a.slot_gate, a.sum[t], a.dgate);
}

/* Group GID: an expert's fraction of the choices of a span's valid tokens; the last group counts these tokens. */
KERNEL(choice_shares) {
  SHARED double scratch[GROUP];
  int expert = (int)(GID % (a.e + 1)), first = (int)(GID / (a.e + 1)) * a.span,
      end = a.span < a.n - first ? first + a.span : a.n;
  double valid = 0, chosen = 0;
  for (I64 t = first + LID; t < end; t += GROUP) {
    valid += !(a.valid && !a.valid[t]);
    for (int j = 0; j < a.counted; j++) chosen += a.choice[t * a.count + j] == expert;
  }
  valid = sum_over(valid, scratch);
  chosen = sum_over(chosen, scratch);
  if (LID == 0) a.share[GID] = expert == a.e ? valid : valid > 0 ? chosen / valid / a.counted : 0;
}

/* One group. */
KERNEL(balance) {
  SHARED double scratch[GROUP];
  double loss = 0;
  GLOBAL const double *share = a.share;
  for (int first = 0, end; first < a.n; first = end, share += a.e + 1) {
    double sum = 0, null = null_share(a.e, a.nulls, share);
    end = a.span < a.n - first ? first + a.span : a.n;
    for (I64 t = first + LID; t < end; t += GROUP) {
      double whole = a.shares;
      if (!(a.valid && !a.valid[t])) sum += mean_share(a.e, null, share, a.score + t * a.e, &whole);
    }
    sum = sum_over(sum, scratch);
    loss += share[a.e] > 0 ? (a.e + a.nulls) * sum / share[a.e] + (a.e + a.nulls) * null : 0;
  }
  if (LID == 0) a.loss[0] = a.groups ? loss / a.groups : 0;
}

KERNEL(balance_backward) {
  EACH(t, a.n) {
    GLOBAL const double *share = a.share + t / a.span * (a.e + 1);
    double null = null_share(a.e, a.nulls, share), scale = a.scale * (a.e + a.nulls) / share[a.e];
    if (!(a.valid && !a.valid[t]))
      mean_share_backward(a.e, a.shares, scale, null, share, a.score + t * a.e, a.dscore + t * a.e);
  }
}

KERNEL(z_loss) { EACH(t, a.n) a.lse[t] = log_sum_exp(a.e, a.logit + t * a.e); }

KERNEL(z_loss_backward) {
  EACH(i, (I64)a.n * a.e) {
    double lse = a.lse[i / a.e];
    if (!(a.valid && !a.valid[i / a.e])) a.dlogit[i] += (float)(a.scale * lse * exp(a.logit[i] - lse));
  }
}

/* One item. */
KERNEL(price) {
  if (GID == 0 && LID == 0) move_prices(a.e, a.next, a.beta);
}

KERNEL(update_bias) {
  GLOBAL const int *demand = a.demand;
  EACH(i, a.e) {
    I64 more = (I64)demand[i] * a.e;
    for (int j = 0; j < a.e; j++) more -= demand[j];
    a.price[i] = (float)((a.fresh ? 0 : (double)a.price[i]) + a.rate * ((more > 0) - (more < 0)));
  }
}
