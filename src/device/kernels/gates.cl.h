/* Gates, the losses of routers, and the prices of quantile balancing. */

/* Rules: 0 even, 1 score, 2 sigmoid, 3 share. A group has an expert. */
KERNEL(gate) {
  for (I64 s = P(int, begin)[GID] + LID; s < P(int, begin)[GID + 1]; s += GROUP) {
    I64 t = P(int, slot_token)[s];
    float gate = a.rule ? P(float, score)[t * a.e + GID] : a.even;
    if (a.rule == 2) gate = (float)(1 / (1 + exp(-(double)gate)));
    if (a.rule == 3) gate = share_of_two(P(float, value) + 2 * t, gate);
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

KERNEL(share_backward) {
  EACH(t, a.n) share_of_two_backward(P(int, choice) + 2 * t, P(float, value) + 2 * t, P(float, dscore) + t * a.e);
}

KERNEL(normalize_gates) {
  EACH(t, a.n) P(float, sum)[t] = sum_to_one(P(int, token_begin) + t, P(int, token_slot), P(float, slot_gate));
}

KERNEL(normalize_backward) {
  EACH(t, a.n)
  sum_to_one_backward(P(int, token_begin) + t, P(int, token_slot), P(float, slot_gate), P(float, sum)[t],
                      P(float, dgate));
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
    double null = null_share(a.e, a.nulls, share), scale = a.scale * (a.e + a.nulls) / share[a.e];
    if (!(P(uchar, valid) && !P(uchar, valid)[t]))
      mean_share_backward(a.e, a.shares, scale, null, share, P(float, score) + t * a.e, P(float, dscore) + t * a.e);
  }
}

KERNEL(z_loss) { EACH(t, a.n) P(float, lse)[t] = log_sum_exp(a.e, P(float, logit) + t * a.e); }

KERNEL(z_loss_backward) {
  EACH(i, (I64)a.n * a.e) {
    double lse = P(float, lse)[i / a.e];
    if (!(P(uchar, valid) && !P(uchar, valid)[i / a.e]))
      P(float, dlogit)[i] += (float)(a.scale * lse * exp(P(float, logit)[i] - lse));
  }
}

/* One item. */
KERNEL(price) {
  if (GID == 0 && LID == 0) move_prices(a.e, P(float, next), P(float, beta));
}

KERNEL(nudge) {
  GLOBAL const int *demand = P(int, demand);
  EACH(i, a.e) {
    I64 more = (I64)demand[i] * a.e;
    for (int j = 0; j < a.e; j++) more -= demand[j];
    P(float, price)[i] = (float)((a.fresh ? 0 : (double)P(float, price)[i]) + a.rate * ((more > 0) - (more < 0)));
  }
}
