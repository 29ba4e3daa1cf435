/* Gates, the losses of routers, and the prices of quantile balancing. */

/* Rules: 0 even, 1 score, 2 sigmoid, 3 share. A group has an expert. */
KERNEL(gate) {
  for (I64 s = P(int, begin)[GID] + LID; s < P(int, begin)[GID + 1]; s += GROUP) {
    I64 t = P(int, slot_token)[s];
    float gate = a.rule ? P(float, score)[t * a.e + GID] : a.even;
    if (a.rule == 2) gate = (float)(1 / (1 + exp(-(double)gate)));
    if (a.rule == 3) {
      float sum = P(float, value)[2 * t] + P(float, value)[2 * t + 1];
      float halves =
          0.5f * P(float, value)[2 * t] + 0.5f * P(float, value)[2 * t + 1]; /* finite where the sum is not */
      gate = sum == INF ? 0.5f * gate / halves : gate / (sum == 0 ? 1 : sum);
    }
    P(float, slot_gate)[s] = gate;
  }
}

/* dscore: 0 before. */
KERNEL(gate_backward) {
  for (I64 s = P(int, begin)[GID] + LID; s < P(int, begin)[GID + 1]; s += GROUP) {
    float dgate = P(float, dgate)[s];
    if (a.sigmoid) dgate = dgate * P(float, slot_gate)[s] * (1 - P(float, slot_gate)[s]);
    P(float, dscore)[(I64)P(int, slot_token)[s] * a.e + GID] = dgate;
  }
}

/* d(g1/(g1+g2)) = g2 dg1 / (g1+g2)^2 and so on; the square of a small sum would be 0. */
KERNEL(share_backward) {
  EACH(t, a.n) {
    GLOBAL const int *expert = P(int, choice) + 2 * t;
    GLOBAL float *dscore = P(float, dscore) + t * a.e;
    float first = P(float, value)[2 * t], second = P(float, value)[2 * t + 1], sum = first + second;
    if (expert[0] < 0 || sum == 0) continue; /* with a sum of 0 gates are the scores themselves */
    float slope = (dscore[expert[0]] - dscore[expert[1]]) / sum;
    if (sum == INF) first *= 0.5f, second *= 0.5f, sum = first + second;
    dscore[expert[0]] = second / sum * slope;
    dscore[expert[1]] = -first / sum * slope;
  }
}

KERNEL(normalize_gates) {
  EACH(t, a.n) {
    GLOBAL const int *begin = P(int, token_begin), *slot = P(int, token_slot);
    GLOBAL float *gate = P(float, slot_gate);
    double sum = 0;
    for (int i = begin[t]; i < begin[t + 1]; i++) sum += gate[slot[i]];
    float by = (float)(sum == 0 ? 1 : sum);
    P(float, sum)[t] = by == INF ? 3.40282347e+38f : by;
    for (int i = begin[t]; i < begin[t + 1]; i++)
      gate[slot[i]] = (float)(gate[slot[i]] / (by == INF ? sum : (double)by));
  }
}

KERNEL(normalize_backward) {
  EACH(t, a.n) {
    GLOBAL const int *begin = P(int, token_begin), *slot = P(int, token_slot);
    GLOBAL float *dgate = P(float, dgate);
    double mean = 0;
    for (int i = begin[t]; i < begin[t + 1]; i++) mean += (double)P(float, slot_gate)[slot[i]] * dgate[slot[i]];
    for (int i = begin[t]; i < begin[t + 1]; i++) dgate[slot[i]] = (float)((dgate[slot[i]] - mean) / P(float, sum)[t]);
  }
}

/* Workgroup GID: the share of an expert in the choices of a span's valid tokens; the last one counts these tokens. */
KERNEL(choice_shares) {
  SHARED double room[GROUP];
  int expert = (int)(GID % (a.e + 1)), first = (int)(GID / (a.e + 1)) * a.span,
      end = a.span < a.n - first ? first + a.span : a.n;
  double valid = 0, chosen = 0;
  for (I64 t = first + LID; t < end; t += GROUP) {
    valid += !(P(uchar, valid) && !P(uchar, valid)[t]);
    for (int j = 0; j < a.counted; j++) chosen += P(int, choice)[t * a.count + j] == expert;
  }
  valid = sum_over(valid, room);
  chosen = sum_over(chosen, room);
  if (LID == 0) P(double, share)[GID] = expert == a.e ? valid : valid > 0 ? chosen / valid / a.counted : 0;
}

/* The share of the choices that each of `nulls` null experts gets. */
INLINE double null_share(int e, int nulls, GLOBAL const double *share) {
  double left = 1;
  for (int i = 0; i < e && nulls; i++) left -= share[i];
  return nulls ? left / nulls : 0;
}

/* sum_i (share_i - null) score_i of one token, of its scores divided by their sum if `whole` asks for that, which it
 * becomes. */
INLINE double mean_share(int e, double null, GLOBAL const double *share, GLOBAL const float *score, double *whole) {
  double sum = 0, all = 0;
  for (int i = 0; i < e; i++) {
    sum += (share[i] - null) * score[i];
    all += score[i];
  }
  *whole = *whole == 0 || all == 0 ? 1 : all;
  return sum / *whole;
}

/* One group. */
KERNEL(balance) {
  SHARED double room[GROUP];
  double loss = 0;
  GLOBAL const double *share = P(double, share);
  for (int first = 0, end; first < a.n; first = end, share += a.e + 1) {
    double sum = 0, null = null_share(a.e, a.nulls, share);
    end = a.span < a.n - first ? first + a.span : a.n;
    for (I64 t = first + LID; t < end; t += GROUP) {
      double whole = a.shares;
      if (!(P(uchar, valid) && !P(uchar, valid)[t]))
        sum += mean_share(a.e, null, share, P(float, score) + t * a.e, &whole);
    }
    sum = sum_over(sum, room);
    loss += share[a.e] > 0 ? (a.e + a.nulls) * sum / share[a.e] + (a.e + a.nulls) * null : 0;
  }
  if (LID == 0) P(double, loss)[0] = a.groups ? loss / a.groups : 0;
}

KERNEL(balance_backward) {
  EACH(t, a.n) {
    GLOBAL const double *share = P(double, share) + t / a.span * (a.e + 1);
    double null = null_share(a.e, a.nulls, share), whole = a.shares,
           mean = mean_share(a.e, null, share, P(float, score) + t * a.e, &whole);
    GLOBAL float *dscore = P(float, dscore) + t * a.e;
    for (int i = 0; i < a.e && !(P(uchar, valid) && !P(uchar, valid)[t]); i++)
      dscore[i] += (float)(a.scale * (a.e + a.nulls) / share[a.e] * (share[i] - null - (a.shares ? mean : 0)) / whole);
  }
}

KERNEL(z_loss) {
  EACH(t, a.n) {
    GLOBAL const float *logit = P(float, logit) + t * a.e;
    double most = logit[0], sum = 0;
    for (int i = 1; i < a.e; i++) most = fmax(most, (double)logit[i]);
    for (int i = 0; i < a.e; i++) sum += exp(logit[i] - most);
    P(float, lse)[t] = (float)(most + log(sum));
  }
}

KERNEL(z_loss_backward) {
  EACH(i, (I64)a.n * a.e) {
    double lse = P(float, lse)[i / a.e];
    if (!(P(uchar, valid) && !P(uchar, valid)[i / a.e]))
      P(float, dlogit)[i] += (float)(a.scale * lse * exp(P(float, logit)[i] - lse));
  }
}

/* One item. */
KERNEL(price) {
  GLOBAL const float *next = P(float, next);
  GLOBAL float *beta = P(float, beta);
  if (GID == 0 && LID == 0) {
    double sum = 0;
    int apart = 0;
    for (int i = 0; i < a.e && next; i++) apart |= next[i] != beta[i];
    for (int i = 0; i < a.e; i++) {
      if (next) beta[i] = apart ? (beta[i] + next[i]) / 2 : 0;
      sum += beta[i];
    }
    for (int i = 0; i < a.e; i++) beta[i] = (float)(beta[i] - (sum - 1) / a.e);
  }
}

KERNEL(nudge) {
  GLOBAL const int *demand = P(int, demand);
  EACH(i, a.e) {
    I64 more = (I64)demand[i] * a.e;
    for (int j = 0; j < a.e; j++) more -= demand[j];
    P(float, price)[i] = (float)((a.fresh ? 0 : (double)P(float, price)[i]) + a.rate * ((more > 0) - (more < 0)));
  }
}
