/* Matrix products: a group computes one tile of C. Sums over k are in ascending order, so results do not depend on the
 * number of rows. */
INLINE float operand(GLOBAL const char *base, int is, I64 i) {
  if (is == AS_BF16) return from_bf16(((GLOBAL const ushort *)base)[i]);
  float x = ((GLOBAL const float *)base)[i];
  return is == ROUNDED ? from_bf16(to_bf16(x)) : x;
}

KERNEL(product) {
  SHARED float left[TILE][TILE + 1], right[TILE][TILE + 1];
  I64 across = (a.n + TILE - 1) / TILE, down = (a.m + TILE - 1) / TILE;
  I64 batch = GID / (across * down), tile = GID % (across * down);
  I64 i0 = tile / across * TILE, j0 = tile % across * TILE, m = a.m, k = a.k;
  I64 row = LID / TILE, column = LID % TILE;
  I64 A = batch * a.a_stride, B = batch * a.b_stride; /* offsets of the batch's matrices */
  I64 C = batch * a.c_stride;
  if (a.begin) {
    I64 first = a.begin[batch], rows = a.begin[batch + 1] - first;
    A += first * a.lda;
    if (a.ragged_k) {
      B += first * a.ldb;
      k = rows;
    } else {
      C += first * a.ldc;
      m = rows;
    }
  }
  float sum = 0;
  for (I64 p0 = 0; p0 < k && i0 < m; p0 += TILE) {
    I64 i = i0 + row, j = j0 + row, p = p0 + column, q = p0 + row;
    /* Coalesced loads: adjacent items read along k if k is contiguous, else along rows or columns. */
    if (a.trans_a)
      left[column][row] = i0 + column < m && q < k ? operand(P(char, a), a.a_is, A + q * a.lda + i0 + column) : 0;
    else
      left[row][column] = i < m && p < k ? operand(P(char, a), a.a_is, A + i * a.lda + p) : 0;
    if (a.trans_b)
      right[column][row] = j < a.n && p < k ? operand(P(char, b), a.b_is, B + j * a.ldb + p) : 0;
    else
      right[row][column] = j0 + column < a.n && q < k ? operand(P(char, b), a.b_is, B + q * a.ldb + j0 + column) : 0;
    SYNC;
    for (int l = 0; l < TILE; l++) sum += left[row][l] * right[l][column];
    SYNC;
  }
  I64 i = i0 + row, j = j0 + column;
  if (i < m && j < a.n) {
    float value = a.alpha * sum;
    I64 at = C + i * a.ldc + j;
    if (a.c_is == AS_BF16)
      P(ushort, c)[at] = to_bf16(value);
    else
      P(float, c)[at] = a.accumulate ? P(float, c)[at] + value : value;
  }
}

/* Index of a padded row among the rows, or -1 for padding. */
INLINE I64 unpadded(GLOBAL const int *begin, I64 row, int max) {
  I64 expert = row / max, at = begin[expert] + row % max;
  return at < begin[expert + 1] ? at : -1;
}

KERNEL(pad_rows) {
  for (I64 row = GID; row < (I64)a.e * a.max; row += GROUPS) {
    I64 at = unpadded(a.begin, row, a.max);
    for (I64 j = LID; j < a.width; j += GROUP) {
      float x = at < 0 ? 0 : operand(P(char, rows), a.is, at * a.width + j);
      if (a.is == AS_FLOAT)
        P(float, padded)[row * a.width + j] = x;
      else
        P(ushort, padded)[row * a.width + j] = to_bf16(x);
    }
  }
}

KERNEL(unpad_rows) {
  for (I64 row = GID; row < (I64)a.e * a.max; row += GROUPS) {
    I64 at = unpadded(a.begin, row, a.max);
    for (I64 j = LID; at >= 0 && j < a.width; j += GROUP) {
      I64 from = row * a.width + j, to = at * a.width + j;
      if (a.is == AS_BF16)
        P(ushort, rows)[to] = P(ushort, padded)[from];
      else
        P(float, rows)[to] = P(float, padded)[from] + (a.accumulate ? P(float, rows)[to] : 0);
    }
  }
}
