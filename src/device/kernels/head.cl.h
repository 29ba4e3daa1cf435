/* Cross-entropy by rows of logits. */

/* One row of logits turns into its softmax; all 0 where nothing is to predict. Returns the loss. */
INLINE double softmax_row(int V, int target, GLOBAL float *logits, LOCAL double *room, LOCAL float *most) {
  float largest = -INF;
  double sum = 0;
  for (int v = LID; v < V; v += GROUP)
    if (logits[v] > largest || v == LID) largest = logits[v];
  largest = largest_over(largest, most);
  double at_target = target >= 0 ? (double)(logits[target] - largest) : 0;
  SYNC;
  for (int v = LID; v < V; v += GROUP) sum += logits[v] = target >= 0 ? exp(logits[v] - largest) : 0;
  sum = sum_over(sum, room);
  for (int v = LID; v < V; v += GROUP)
    if (target >= 0) logits[v] = (float)(logits[v] / sum);
  SYNC;
  return target >= 0 ? log(sum) - at_target : 0;
}

KERNEL(head_rows) {
  SHARED double room[GROUP];
  SHARED float most[GROUP];
  int target = P(int, target)[GID];
  GLOBAL float *logits = P(float, logits) + GID * a.V;
  double loss = softmax_row(a.V, target, logits, room, most);
  float weight = P(float, row_weight) ? a.weight * P(float, row_weight)[GID] : a.weight;
  for (int v = LID; v < a.V; v += GROUP) logits[v] = logits[v] * weight - (v == target ? weight : 0);
  if (LID == 0) P(double, loss)[GID] = loss;
}

/* A pair of rows: with delta = z - y, A = <p, delta> and B = <q, delta>, (KL(p|q) + KL(q|p)) / 2 is (A - B) / 2, its
 * gradients (p (1 + delta - A) - q) / 2 and (q (1 - delta + B) - p) / 2. delta [rows,V] is room. */
KERNEL(head_pairs) {
  SHARED double room[GROUP];
  SHARED float most[GROUP];
  int target = P(int, target)[GID];
  GLOBAL float *z = P(float, logits) + GID * a.V, *y = P(float, other) + GID * a.V,
               *delta = P(float, delta) + GID * a.V;
  double A = 0, B = 0, share = a.consistency / 2;
  for (int v = LID; v < a.V; v += GROUP) delta[v] = z[v] - y[v];
  SYNC;
  double loss = softmax_row(a.V, target, z, room, most), other = softmax_row(a.V, target, y, room, most);
  for (int v = LID; v < a.V; v += GROUP) {
    A += (double)z[v] * delta[v];
    B += (double)y[v] * delta[v];
  }
  A = sum_over(A, room);
  B = sum_over(B, room);
  for (int v = LID; v < a.V && target >= 0; v += GROUP) {
    double p = z[v], q = y[v], change = delta[v], at = v == target ? a.weight : 0;
    z[v] = (float)(a.weight * p + share * (p * (1 + change - A) - q) - at);
    y[v] = (float)(a.weight * q + share * (q * (1 - change + B) - p) - at);
  }
  if (LID == 0) {
    P(double, loss)[GID] = loss;
    P(double, other_loss)[GID] = other;
    P(double, disagreement)[GID] = target >= 0 ? (A - B) / 2 : 0;
  }
}

/* One group adds up the losses, in a fixed tree. */
KERNEL(head_losses) {
  SHARED double room[GROUP];
  double sum = 0;
  for (I64 t = LID; t < a.n; t += GROUP) {
    sum += P(float, row_weight) ? P(float, row_weight)[t] * P(double, loss)[t] : P(double, loss)[t];
    if (P(float, token_loss)) P(float, token_loss)[t] = (float)P(double, loss)[t];
  }
  sum = sum_over(sum, room);
  if (LID == 0) {
    P(double, sum)[0] += sum;
    if (P(double, total)) P(double, total)[0] += sum;
  }
}
