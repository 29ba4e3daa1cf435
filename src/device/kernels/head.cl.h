/* Cross-entropy of rows of logits. Each row is read three times: for the max, for the sum, and for the gradient. */

/* A row of logits: its max, and the sum of exp(logit - max). */
typedef struct {
  float largest;
  double sum;
} softmax_row;

INLINE softmax_row softmax_of(int V, GLOBAL const float *logits, LOCAL double *scratch, LOCAL float *scratch_max) {
  softmax_row row = {-INF, 0};
  for (int v = LID; v < V; v += GROUP)
    if (logits[v] > row.largest || v == LID) row.largest = logits[v];
  row.largest = largest_over(row.largest, scratch_max);
  for (int v = LID; v < V; v += GROUP) row.sum += (float)exp(logits[v] - row.largest);
  row.sum = sum_over(row.sum, scratch);
  return row;
}

INLINE float share_of(softmax_row row, float logit) { return (float)((float)exp(logit - row.largest) / row.sum); }
INLINE double loss_of(softmax_row row, float logit) { return log(row.sum) - (double)(logit - row.largest); }

/* Writes a gradient over its logit or, in bf16 for products, to `rounded`. */
INLINE void put_gradient(GLOBAL float *logits, GLOBAL ushort *rounded, I64 i, float gradient) {
  if (rounded)
    rounded[i] = to_bf16(gradient);
  else
    logits[i] = gradient;
}

/* Rows without a target have loss 0 and gradient 0. */
KERNEL(head_rows) {
  SHARED double scratch[GROUP];
  SHARED float scratch_max[GROUP];
  int target = a.target[GID];
  GLOBAL float *logits = a.logits + GID * a.V;
  softmax_row row = softmax_of(a.V, logits, scratch, scratch_max);
  float weight = a.row_weight ? a.weight * a.row_weight[GID] : a.weight;
  if (LID == 0) a.loss[GID] = target >= 0 ? loss_of(row, logits[target]) : 0;
  SYNC;
  for (int v = LID; v < a.V && a.gradient; v += GROUP) {
    float share = target >= 0 ? share_of(row, logits[v]) * weight : 0;
    put_gradient(a.logits, a.rounded, GID * a.V + v, share - (v == target ? weight : 0));
  }
}

/* A pair of rows: with delta = z - y, A = <p, delta> and B = <q, delta>, (KL(p|q) + KL(q|p)) / 2 is (A - B) / 2, its
 * gradients (p (1 + delta - A) - q) / 2 and (q (1 - delta + B) - p) / 2. */
KERNEL(head_pairs) {
  SHARED double scratch[GROUP];
  SHARED float scratch_max[GROUP];
  int target = a.target[GID], some = target >= 0;
  GLOBAL float *z = a.logits + GID * a.V, *y = a.other + GID * a.V;
  softmax_row of_z = softmax_of(a.V, z, scratch, scratch_max), of_y = softmax_of(a.V, y, scratch, scratch_max);
  double A = 0, B = 0, share = a.consistency / 2;
  for (int v = LID; v < a.V; v += GROUP) {
    float delta = z[v] - y[v];
    A += (double)share_of(of_z, z[v]) * delta;
    B += (double)share_of(of_y, y[v]) * delta;
  }
  A = sum_over(A, scratch);
  B = sum_over(B, scratch);
  if (LID == 0) {
    a.loss[GID] = some ? loss_of(of_z, z[target]) : 0;
    a.other_loss[GID] = some ? loss_of(of_y, y[target]) : 0;
    a.disagreement[GID] = some ? (A - B) / 2 : 0;
  }
  SYNC;
  for (int v = LID; v < a.V && a.gradient; v += GROUP) {
    float delta = z[v] - y[v];
    double p = share_of(of_z, z[v]), q = share_of(of_y, y[v]), at = v == target ? a.weight : 0;
    double of_p = a.weight * p + share * (p * (1 + delta - A) - q) - at;
    double of_q = a.weight * q + share * (q * (1 - delta + B) - p) - at;
    put_gradient(a.logits, a.rounded, GID * a.V + v, some ? (float)of_p : 0);
    put_gradient(a.other, a.other_rounded, GID * a.V + v, some ? (float)of_q : 0);
  }
}

/* One group sums the losses, as a fixed tree. */
KERNEL(head_losses) {
  SHARED double scratch[GROUP];
  double sum = 0;
  for (I64 t = LID; t < a.n; t += GROUP) {
    sum += a.row_weight ? a.row_weight[t] * a.loss[t] : a.loss[t];
    if (a.token_loss) a.token_loss[t] = (float)a.loss[t];
  }
  sum = sum_over(sum, scratch);
  if (LID == 0) {
    a.sum[0] += sum;
    if (a.total) a.total[0] += sum;
  }
}
