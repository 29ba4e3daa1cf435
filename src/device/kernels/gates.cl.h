/* Gates, the loss that balances loads, and the prices of quantile balancing. */

/* Rules: 0 even, 1 score, 2 sigmoid, 3 share. A group has an expert. */
KERNEL(gate) {
  for (I64 s = P(int, begin)[GID] + LID; s < P(int, begin)[GID + 1]; s += GROUP) {
    I64 t = P(int, slot_token)[s];
    float gate = a.rule ? P(float, score)[t * a.e + GID] : a.even;
    if (a.rule == 2) gate = (float)(1 / (1 + exp(-(double)gate)));
    if (a.rule == 3) {
      float sum = P(float, value)[2 * t] + P(float, value)[2 * t + 1];
      float halves = 0.5f * P(float, value)[2 * t] + 0.5f * P(float, value)[2 * t + 1]; /* finite where the sum is not */
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

/* A group has an expert: the share of the valid tokens whose first choice it is; the last one their number. */
KERNEL(choice_shares) {
  SHARED double room[GROUP];
  double valid = 0, chosen = 0;
  for (I64 t = LID; t < a.n; t += GROUP) {
    valid += !(P(uchar, valid) && !P(uchar, valid)[t]);
    chosen += P(int, choice)[t * a.count] == GID;
  }
  valid = sum_over(valid, room);
  chosen = sum_over(chosen, room);
  if (LID == 0) P(double, share)[GID] = GID == a.e ? valid : valid > 0 ? chosen / valid : 0;
}

/* One group. */
KERNEL(balance) {
  SHARED double room[GROUP];
  double sum = 0, valid = P(double, share)[a.e];
  for (I64 t = LID; t < a.n; t += GROUP)
    for (int i = 0; i < a.e && !(P(uchar, valid) && !P(uchar, valid)[t]); i++)
      sum += P(double, share)[i] * P(float, score)[t * a.e + i];
  sum = sum_over(sum, room);
  if (LID == 0) P(double, loss)[0] = valid > 0 ? a.e * sum / valid : 0;
}

KERNEL(balance_backward) {
  double valid = P(double, share)[a.e];
  EACH(i, valid > 0 ? (I64)a.n * a.e : 0) {
    if (P(uchar, valid) && !P(uchar, valid)[i / a.e]) continue;
    P(float, dscore)[i] += (float)(a.scale * a.e / valid * P(double, share)[i % a.e]);
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
