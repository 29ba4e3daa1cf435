/* Elements, one by one; and sums of squares. */

/* Phi(x), the normal distribution function; erfc keeps the small values of the left tail. In float: most GPUs have few
 * units for double, and this would take longer than the products around it. */
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
  I64 count = a.count * (P(int, rows) ? P(int, rows)[0] : 1);
  int pairs = P(ushort, x16) && P(ushort, y16) && !P(float, u) && !a.silu;
  if (pairs && a.count % 8 == 0 && IN_SIXTEENS(x16) && IN_SIXTEENS(y16)) {
    EACH(i, count / 8) {
      uint4 x = P(uint4, x16)[i];
      x.x = gelu_pair(x.x), x.y = gelu_pair(x.y), x.z = gelu_pair(x.z), x.w = gelu_pair(x.w);
      P(uint4, y16)[i] = x;
    }
    return;
  }
  EACH(i, count) {
    float x = P(ushort, x16) ? from_bf16(P(ushort, x16)[i]) : P(float, x)[i];
    float y = x * (a.silu ? logistic(x) : normal_cdf(x));
    if (P(float, u)) y *= P(float, u)[i];
    if (P(ushort, y16))
      P(ushort, y16)[i] = to_bf16(y);
    else
      P(float, y)[i] = y;
  }
}

/* dx, du and y may stand where the inputs do: all are read first. */
KERNEL(activate_backward) {
  I64 count = a.count * (P(int, rows) ? P(int, rows)[0] : 1);
  int pairs = P(ushort, x16) && P(ushort, y16) && P(ushort, dy16) && P(ushort, dx16) && !P(float, u) && !a.silu;
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
    float x = P(ushort, x16) ? from_bf16(P(ushort, x16)[i]) : P(float, x)[i];
    float dy = P(ushort, dy16) ? from_bf16(P(ushort, dy16)[i]) : P(float, dy)[i];
    float u = P(float, u) ? P(float, u)[i] : 1, y = x * (a.silu ? logistic(x) : normal_cdf(x));
    float dx = dy * u * (a.silu ? silu_slope(x) : gelu_slope(x));
    if (P(ushort, y16))
      P(ushort, y16)[i] = to_bf16(y * u);
    else if (P(float, y))
      P(float, y)[i] = y * u;
    if (P(ushort, dx16))
      P(ushort, dx16)[i] = to_bf16(dx);
    else
      P(float, dx)[i] = dx;
    if (P(float, u)) P(float, du)[i] = dy * y;
  }
}

KERNEL(sigmoid) { EACH(i, a.count) P(float, y)[i] = logistic(P(float, x)[i]); }

KERNEL(sigmoid_backward) { EACH(i, a.count) P(float, dx)[i] = P(float, dy)[i] * P(float, y)[i] * (1 - P(float, y)[i]); }

KERNEL(copy) {
  EACH(i, a.count) {
    float x = P(float, x) ? P(float, x)[i] : 0;
    P(float, y)[i] = a.accumulate ? P(float, y)[i] + x : x;
  }
}

KERNEL(multiply) {
  EACH(i, a.count) {
    float product = P(float, a)[i] * P(float, b)[i];
    P(float, y)[i] = a.accumulate ? P(float, y)[i] + product : product;
  }
}

KERNEL(round_bf16) {
  I64 count = a.count * (P(int, rows) ? P(int, rows)[0] : 1);
  if (a.count % 8 == 0 && IN_SIXTEENS(x) && IN_SIXTEENS(y)) {
    EACH(i, count / 8) P(uint4, y)[i] = rounded_eight(P(uint4, x) + 2 * i);
    return;
  }
  EACH(i, count) P(ushort, y)[i] = to_bf16(P(float, x)[i]);
}

KERNEL(widen_bf16) {
  I64 count = a.count * (P(int, rows) ? P(int, rows)[0] : 1);
  EACH(i, count) {
    float x = from_bf16(P(ushort, x)[i]);
    P(float, y)[i] = a.accumulate ? P(float, y)[i] + x : x;
  }
}

/* One random number of 64 bits serves four elements. */
KERNEL(dropout) {
  EACH(i, a.count) {
    U64 number = (U64)(a.first + i), bits = random_bits(a.seed, a.stream, a.place, a.draw << 32 | number / 4);
    float y = P(float, x)[i] * ((bits >> 16 * (number % 4) & 0xFFFF) < a.dropped ? 0 : a.scale); /* NaN stays NaN */
    P(float, y)[i] = a.accumulate ? P(float, y)[i] + y : y;
  }
}

/* One random number of 64 bits serves two columns. */
KERNEL(jitter) {
  U64 pairs = ((U64)a.d + 1) / 2;
  EACH(i, (I64)a.n * a.d) {
    U64 t = (U64)(i / a.d), j = (U64)(i % a.d),
        bits = random_bits(a.seed, a.stream, a.sub, (a.base + t) * pairs + j / 2);
    P(float, factor)[i] = (float)(a.low + a.unit * ((double)(U32)(j % 2 ? bits >> 32 : bits) + 0.5));
  }
}

KERNEL(sum_squares) {
  SHARED double room[GROUP];
  for (I64 p = GID; p < a.arrays * a.pieces; p += GROUPS) {
    GLOBAL const float *x = P(float, x) + p / a.pieces * a.count;
    I64 begin = p % a.pieces * PIECE, end = begin + PIECE < a.count ? begin + PIECE : a.count;
    double sum = 0;
    for (I64 i = begin + LID; i < end; i += GROUP) sum += (double)x[i] * x[i];
    sum = sum_over(sum, room);
    if (LID == 0) P(double, partial)[p] = sum;
  }
}

/* One group. */
KERNEL(total_squares) {
  SHARED double room[GROUP];
  for (I64 array = 0; array < a.arrays; array++) {
    double sum = 0;
    for (I64 p = LID; p < a.pieces; p += GROUP) sum += P(double, partial)[array * a.pieces + p];
    sum = sum_over(sum, room);
    if (LID == 0) P(double, sum)[array * a.step] = sum;
    if (LID == 0 && P(double, total)) P(double, total)[0] += sum;
  }
}
