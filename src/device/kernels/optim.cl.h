/* Optimizer steps. Nothing changes if *finite is not finite. */
#define STOPPED (a.finite && !IS_FINITE(a.finite[0]))

INLINE double scaled_square(float g, double scale) { return g * scale * g * scale; }

/* Updates a second moment: moving average with the mean of this step's squares. */
INLINE float decayed(float moment, double beta2, double eps1, double sum, double count) {
  return (float)(beta2 * moment + (1 - beta2) * (sum / count + eps1));
}

/* One item per column of each of `batch` matrices; it loads AHEAD_ROWS rows before it adds them, in ascending order. */
#define AHEAD_ROWS 16
KERNEL(adafactor_columns) {
  EACH(i, STOPPED ? 0 : a.batch * a.cols) {
    GLOBAL const float *g = a.g + i / a.cols * a.rows * a.cols + i % a.cols;
    double sum = 0;
    for (I64 row = 0; row < a.rows; row += AHEAD_ROWS) {
      float some[AHEAD_ROWS];
      for (int j = 0; j < AHEAD_ROWS; j++) some[j] = row + j < a.rows ? g[(row + j) * a.cols] : 0;
      for (int j = 0; j < AHEAD_ROWS; j++) sum += scaled_square(some[j], a.grad_scale);
    }
    a.col[i] = decayed(a.col[i], a.beta2, a.eps1, sum, (double)a.rows);
  }
}

/* One group per row: sums of g^2, of w^2, and of g^2 / col. */
KERNEL(adafactor_rows) {
  SHARED double scratch[GROUP];
  for (I64 row = GID; row < (STOPPED ? 0 : a.batch * a.rows); row += GROUPS) {
    GLOBAL const float *g = a.g + row * a.cols, *w = a.w + row * a.cols;
    GLOBAL const float *col = a.col + row / a.rows * a.cols;
    double of_g = 0, of_w = 0, of_u = 0;
    for (I64 j = LID; j < a.cols; j += GROUP) {
      of_g += scaled_square(g[j], a.grad_scale);
      of_w += (double)w[j] * w[j];
      of_u += scaled_square(g[j], a.grad_scale) / col[j];
    }
    of_g = sum_over(of_g, scratch);
    of_w = sum_over(of_w, scratch);
    of_u = sum_over(of_u, scratch);
    if (LID == 0) {
      a.measures[3 * row] = (float)of_g;
      a.measures[3 * row + 1] = (float)of_w;
      a.measures[3 * row + 2] = (float)of_u;
    }
  }
}

/* One group per matrix: row moments, their mean, and learning rate times max(eps2, rms(w)) / max(1, rms(u) / clip). */
KERNEL(adafactor_scales) {
  SHARED double scratch[GROUP];
  for (I64 m = GID; m < (STOPPED ? 0 : a.batch); m += GROUPS) {
    GLOBAL const float *measures = a.measures + 3 * m * a.rows;
    double mean = 0, of_w = 0, of_u = 0, size = (double)(a.rows * a.all_cols);
    for (I64 i = LID; i < a.rows; i += GROUP) {
      double moment = 1;
      if (a.row) {
        GLOBAL float *row = a.row + m * a.rows + i;
        moment = *row = decayed(*row, a.beta2, a.eps1, measures[3 * i], (double)a.all_cols);
      }
      mean += moment / a.rows;
      of_w += measures[3 * i + 1];
      of_u += measures[3 * i + 2] / moment;
    }
    mean = sum_over(mean, scratch);
    of_w = sum_over(of_w, scratch);
    of_u = sum_over(of_u, scratch);
    if (LID == 0) {
      a.scales[2 * m] = mean;
      a.scales[2 * m + 1] =
          a.learning_rate * fmax(a.eps2, sqrt(of_w / size)) / fmax(1.0, sqrt(mean * of_u / size) / a.clip);
    }
  }
}

/* One group per row. */
KERNEL(adafactor_apply) {
  for (I64 row = GID; row < (STOPPED ? 0 : a.batch * a.rows); row += GROUPS) {
    I64 m = row / a.rows;
    GLOBAL const float *g = a.g + row * a.cols, *col = a.col + m * a.cols;
    GLOBAL float *w = a.w + row * a.cols;
    double factor = a.row ? a.row[row] / a.scales[2 * m] : 1;
    for (I64 j = LID; j < a.cols; j += GROUP) {
      double u = g[j] * a.grad_scale / sqrt(factor * col[j]);
      float next = (float)(w[j] - a.scales[2 * m + 1] * u);
      w[j] = next;
      if (a.w16) a.w16[row * a.cols + j] = to_bf16(next);
    }
  }
}

KERNEL(adamw) {
  EACH(i, STOPPED ? 0 : a.count) {
    double g = a.g[i] * a.grad_scale, w = a.w[i];
    float m = (float)(a.beta1 * a.m[i] + (1 - a.beta1) * g);
    float v = (float)(a.beta2 * a.v[i] + (1 - a.beta2) * g * g);
    double step = m / a.correct_m / (sqrt(v / a.correct_v) + a.eps);
    a.m[i] = m;
    a.v[i] = v;
    float next = (float)(w - a.learning_rate * (step + a.weight_decay * w));
    a.w[i] = next;
    if (a.w16) a.w16[i] = to_bf16(next);
  }
}
