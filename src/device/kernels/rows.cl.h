/* Rows: a group processes one row at a time, with sums as a fixed tree. */

KERNEL(softmax) {
  SHARED double scratch[GROUP];
  SHARED float scratch_max[GROUP];
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL const float *in = a.x + t * a.m;
    GLOBAL float *out = a.y + t * a.m;
    float largest = a.nulls ? 0 : -INF;
    double sum = 0;
    for (int j = LID; j < a.m; j += GROUP)
      if (in[j] > largest) largest = in[j];
    largest = largest_over(largest, scratch_max);
    for (int j = LID; j < a.m; j += GROUP) sum += out[j] = (float)exp((double)(in[j] - largest));
    sum = sum_over(sum, scratch);
    if (a.nulls) sum += a.nulls * exp(-(double)largest);
    for (int j = LID; j < a.m; j += GROUP) out[j] = (float)(out[j] / sum);
  }
}

KERNEL(softmax_backward) {
  SHARED double scratch[GROUP];
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL const float *y = a.y + t * a.m, *dy = a.dy + t * a.m;
    GLOBAL float *dx = a.dx + t * a.m;
    double dot = 0;
    for (int j = LID; j < a.m; j += GROUP) dot += (double)y[j] * dy[j];
    dot = sum_over(dot, scratch);
    for (int j = LID; j < a.m; j += GROUP) dx[j] = (float)(y[j] * (dy[j] - dot));
  }
}

KERNEL(rmsnorm) {
  SHARED double scratch[GROUP];
  GLOBAL const float *w = a.w;
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL const float *in = a.x + t * a.d;
    GLOBAL float *out = a.y + t * a.d;
    double squares = 0;
    for (int j = LID; j < a.d; j += GROUP) squares += (double)in[j] * in[j];
    squares = sum_over(squares, scratch);
    double rstd = 1 / sqrt(squares / a.d + (double)a.eps);
    for (int j = LID; j < a.d; j += GROUP) out[j] = (float)(in[j] * rstd * w[j]);
    if (LID == 0) a.rstd[t] = (float)rstd;
  }
}

/* With g = w dy and r = rstd: dx = r g - x r^3 <x, g> / d, because dr/dx = -r^3 x / d. */
KERNEL(rmsnorm_dx) {
  SHARED double scratch[GROUP];
  GLOBAL const float *w = a.w;
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL const float *in = a.x + t * a.d, *dy = a.dy + t * a.d;
    GLOBAL float *dx = a.dx + t * a.d;
    double rstd = a.rstd[t], dot = 0;
    for (int j = LID; j < a.d; j += GROUP) dot += (double)in[j] * w[j] * dy[j];
    dot = sum_over(dot, scratch);
    double slope = rstd * rstd * rstd * dot / a.d;
    for (int j = LID; j < a.d; j += GROUP) {
      double gradient = rstd * w[j] * dy[j] - in[j] * slope;
      dx[j] = (float)(a.dx_acc ? dx[j] + gradient : gradient);
    }
  }
}

/* Sums over BLOCK rows; add_blocks adds the blocks, in ascending order. */
KERNEL(rmsnorm_dw) {
  GLOBAL const float *x = a.x, *dy = a.dy, *rstd = a.rstd;
  I64 blocks = (a.n + BLOCK - 1) / BLOCK;
  EACH(i, blocks * a.d) {
    I64 first = i / a.d * BLOCK, j = i % a.d;
    double sum = 0;
    for (I64 t = first; t < a.n && t < first + BLOCK; t++) sum += (double)dy[t * a.d + j] * x[t * a.d + j] * rstd[t];
    a.partial[i] = sum;
  }
}

KERNEL(add_blocks) {
  EACH(j, a.d) {
    double sum = 0;
    for (I64 block = 0; block < a.blocks; block++) sum += a.partial[block * a.d + j];
    a.sum[j] += (float)sum;
  }
}

/* The number of filled slots may be known only on the device. */
KERNEL(gather) {
  int slots = a.begin[a.e], eights = a.d % 8 == 0 && IN_SIXTEENS(x) && IN_SIXTEENS(y) && IN_SIXTEENS(y16);
  for (I64 s = GID; s < slots; s += GROUPS) {
    I64 from = (I64)a.slot_token[s] * a.d, to = s * a.d;
    if (eights && a.y16)
      for (int j = LID; j < a.d / 8; j += GROUP)
        P(uint4, y16)[to / 8 + j] = rounded_eight(P(uint4, x) + from / 4 + 2 * j);
    else if (eights)
      for (int j = LID; j < a.d / 4; j += GROUP) P(uint4, y)[to / 4 + j] = P(uint4, x)[from / 4 + j];
    else if (a.y16)
      for (int j = LID; j < a.d; j += GROUP) a.y16[to + j] = to_bf16(a.x[from + j]);
    else
      for (int j = LID; j < a.d; j += GROUP) a.y[to + j] = a.x[from + j];
  }
}

KERNEL(combine) {
  GLOBAL const int *begin = a.token_begin, *slot = a.token_slot;
  GLOBAL const float *gate = a.slot_gate, *y = a.y;
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL float *out = a.out + t * a.d;
    int first = begin[t], end = begin[t + 1];
    for (int j = LID; j < a.d; j += GROUP) {
      double sum = 0;
      for (int s = first; s < end; s++) sum += (a.gated ? (double)gate[slot[s]] : 1) * y[(I64)slot[s] * a.d + j];
      out[j] = (float)(a.out_acc ? out[j] + sum : sum);
    }
  }
}

KERNEL(combine_backward) {
  SHARED double scratch[GROUP];
  int slots = a.begin[a.e];
  for (I64 s = GID; s < slots; s += GROUPS) {
    GLOBAL const float *dout = a.dout + (I64)a.slot_token[s] * a.d, *y = a.y + s * a.d;
    double gate = a.gated ? (double)a.slot_gate[s] : 1, dot = 0;
    for (int j = LID; j < a.d; j += GROUP) dot += (double)dout[j] * y[j];
    dot = sum_over(dot, scratch); /* before dy is written: dy may alias y */
    for (int j = LID; j < a.d; j += GROUP) a.dy[s * a.d + j] = (float)(gate * dout[j]);
    if (LID == 0) a.dgate[s] = (float)dot;
  }
}

KERNEL(embedding) {
  for (I64 t = GID; t < a.n; t += GROUPS) {
    GLOBAL const float *w = a.w + (I64)a.token[t] * a.d;
    for (int j = LID; j < a.d; j += GROUP) a.x[t * a.d + j] = a.scale * w[j];
  }
}

/* One item per column and class of ids (id % CLASSES), so that repeated tokens add up in ascending order. */
KERNEL(embedding_backward) {
  EACH(i, (I64)CLASSES * a.d) {
    I64 j = i % a.d;
    for (I64 t = 0; t < a.n; t++) {
      I64 token = a.token[t];
      if (token % CLASSES == i / a.d) a.dw[token * a.d + j] += a.scale * a.dx[t * a.d + j];
    }
  }
}
