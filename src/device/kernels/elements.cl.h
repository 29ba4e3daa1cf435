/* Elementwise kernels, and sums of squares. */

/* Phi(x), the normal distribution function; erfc keeps relative accuracy in the left tail. In float, because most GPUs
 * have few double units and this would take longer than the products around it. */
INLINE float normal_cdf(float x) { return 0.5f * erfc(-x * 0.70710678f); }

/* d/dx of x Phi(x) = Phi(x) + x phi(x). */
INLINE float gelu_slope(float x) { return normal_cdf(x) + x * exp(-0.5f * x * x) * 0.39894228f; }

INLINE float logistic(float x) { return 1 / (1 + exp(-x)); }

/* d/dx of x s(x) = s(x) + x s(x) (1 - s(x)). */
INLINE float silu_slope(float x) { return logistic(x) * (1 + x * (1 - logistic(x))); }

INLINE U32 gelu_pair(U32 x) { return pair_of(low_of(x) * normal_cdf(low_of(x)), high_of(x) * normal_cdf(high_of(x))); }

INLINE U32 gelu_pair_backward(U32 x, U32 dy) {
  return pair_of(low_of(dy) * gelu_slope(low_of(x)), high_of(dy) * gelu_slope(high_of(x)));
}

KERNEL(activate) {
  I64 count = a.count * (a.rows ? a.rows[0] : 1);
  int pairs = a.x16 && a.y16 && !a.u && !a.silu;
  if (pairs && a.count % 8 == 0 && IN_SIXTEENS(x16) && IN_SIXTEENS(y16)) {
    EACH(i, count / 8) {
      uint4 x = P(uint4, x16)[i];
      x.x = gelu_pair(x.x), x.y = gelu_pair(x.y), x.z = gelu_pair(x.z), x.w = gelu_pair(x.w);
      P(uint4, y16)[i] = x;
    }
    return;
  }
  EACH(i, count) {
    float x = a.x16 ? from_bf16(a.x16[i]) : a.x[i];
    float y = x * (a.silu ? logistic(x) : normal_cdf(x));
    if (a.u) y *= a.u[i];
    if (a.y16)
      a.y16[i] = to_bf16(y);
    else
      a.y[i] = y;
  }
}

/* dx, du and y may alias the inputs: all inputs are read first. */
KERNEL(activate_backward) {
  I64 count = a.count * (a.rows ? a.rows[0] : 1);
  int pairs = a.x16 && a.y16 && a.dy16 && a.dx16 && !a.u && !a.silu;
  if (pairs && a.count % 8 == 0 && IN_SIXTEENS(x16) && IN_SIXTEENS(y16) && IN_SIXTEENS(dy16) && IN_SIXTEENS(dx16)) {
    EACH(i, count / 8) {
      uint4 x = P(uint4, x16)[i], dx = P(uint4, dy16)[i];
      dx.x = gelu_pair_backward(x.x, dx.x), dx.y = gelu_pair_backward(x.y, dx.y);
      dx.z = gelu_pair_backward(x.z, dx.z), dx.w = gelu_pair_backward(x.w, dx.w);
      x.x = gelu_pair(x.x), x.y = gelu_pair(x.y), x.z = gelu_pair(x.z), x.w = gelu_pair(x.w);
      P(uint4, y16)[i] = x;
      P(uint4, dx16)[i] = dx;
    }
    return;
  }
  EACH(i, count) {
    float x = a.x16 ? from_bf16(a.x16[i]) : a.x[i];
    float dy = a.dy16 ? from_bf16(a.dy16[i]) : a.dy[i];
    float u = a.u ? a.u[i] : 1, y = x * (a.silu ? logistic(x) : normal_cdf(x));
    float dx = dy * u * (a.silu ? silu_slope(x) : gelu_slope(x));
    if (a.y16)
      a.y16[i] = to_bf16(y * u);
    else if (a.y)
      a.y[i] = y * u;
    if (a.dx16)
      a.dx16[i] = to_bf16(dx);
    else
      a.dx[i] = dx;
    if (a.u) a.du[i] = dy * y;
  }
}

KERNEL(sigmoid) { EACH(i, a.count) a.y[i] = logistic(a.x[i]); }

KERNEL(sigmoid_backward) { EACH(i, a.count) a.dx[i] = a.dy[i] * a.y[i] * (1 - a.y[i]); }

KERNEL(copy) {
  EACH(i, a.count) {
    float x = a.x ? a.x[i] : 0;
    a.y[i] = a.accumulate ? a.y[i] + x : x;
  }
}

KERNEL(multiply) {
  EACH(i, a.count) {
    float product = a.a[i] * a.b[i];
    a.y[i] = a.accumulate ? a.y[i] + product : product;
  }
}

KERNEL(round_bf16) {
  I64 count = a.count * (a.rows ? a.rows[0] : 1);
  if (a.count % 8 == 0 && IN_SIXTEENS(x) && IN_SIXTEENS(y)) {
    EACH(i, count / 8) P(uint4, y)[i] = rounded_eight(P(uint4, x) + 2 * i);
    return;
  }
  EACH(i, count) a.y[i] = to_bf16(a.x[i]);
}

KERNEL(widen_bf16) {
  I64 count = a.count * (a.rows ? a.rows[0] : 1);
  EACH(i, count) {
    float x = from_bf16(a.x[i]);
    a.y[i] = a.accumulate ? a.y[i] + x : x;
  }
}

/* One 64-bit random number is used for four elements. */
KERNEL(dropout) {
  EACH(i, a.count) {
    U64 number = (U64)(a.first + i), bits = random_bits(a.seed, a.stream, a.place, a.draw << 32 | number / 4);
    float y = a.x[i] * ((bits >> 16 * (number % 4) & 0xFFFF) < a.dropped ? 0 : a.scale); /* NaN stays NaN */
    a.y[i] = a.accumulate ? a.y[i] + y : y;
  }
}

/* One 64-bit random number is used for two columns. */
KERNEL(jitter) {
  U64 pairs = ((U64)a.d + 1) / 2;
  EACH(i, (I64)a.n * a.d) {
    U64 t = (U64)(i / a.d), j = (U64)(i % a.d),
        bits = random_bits(a.seed, a.stream, a.sub, (a.base + t) * pairs + j / 2);
    a.factor[i] = (float)(a.low + a.unit * ((double)(U32)(j % 2 ? bits >> 32 : bits) + 0.5));
  }
}

KERNEL(sum_squares) {
  SHARED double scratch[GROUP];
  for (I64 p = GID; p < a.arrays * a.pieces; p += GROUPS) {
    GLOBAL const float *x = a.x + p / a.pieces * a.count;
    I64 begin = p % a.pieces * PIECE, end = begin + PIECE < a.count ? begin + PIECE : a.count;
    double sum = 0;
    for (I64 i = begin + LID; i < end; i += GROUP) sum += (double)x[i] * x[i];
    sum = sum_over(sum, scratch);
    if (LID == 0) a.partial[p] = sum;
  }
}

/* One group. */
KERNEL(total_squares) {
  SHARED double scratch[GROUP];
  for (I64 array = 0; array < a.arrays; array++) {
    double sum = 0;
    for (I64 p = LID; p < a.pieces; p += GROUP) sum += a.partial[array * a.pieces + p];
    sum = sum_over(sum, scratch);
    if (LID == 0) a.sum[array * a.step] = sum;
    if (LID == 0 && a.total) a.total[0] += sum;
  }
}
