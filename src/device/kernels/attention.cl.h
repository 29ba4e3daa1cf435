/* Attention by matrix products. A product computes the scores of a block of rows for some heads; the kernels here
 * compute weights from scores and, in backward, gradients of scores. Operands of products have a head's rows
 * contiguous. */

/* LENGTH: positions of a pair's sequence. Row i sees keys 0 .. SEEN(i)-1; rows beyond LENGTH see none. Distances begin
 * at -AHEAD. */
#define LENGTH (a.length ? a.length[pair / a.H] : a.T)
#define SEEN(i) ((i) >= LENGTH ? 0 : a.bidirectional ? LENGTH : (i) + 1)
#define AHEAD (a.bidirectional ? a.T - 1 : 0)

/* The bias of a score; uses the row's `head`. */
#define BIAS(distance) (a.rel_bias ? a.rel_bias[a.bucket[(distance) + AHEAD] * a.H + head] : 0)

#define STORE(field, at, value)              \
  do {                                       \
    if (a.is == AS_BF16)                     \
      P(ushort, field)[at] = to_bf16(value); \
    else                                     \
      P(float, field)[at] = value;           \
  } while (0)

/* x [B,T,ld] to y [B,H,T,dh]; `group` consecutive heads of y are copies of one head of x. Here and in merge_heads a
 * group of items processes one position at a time. */
KERNEL(split_heads) {
  for (I64 at = GID; at < (I64)a.B * a.T; at += GROUPS) {
    I64 first = at / a.T * a.H * a.T + at % a.T;
    for (int i = LID; i < a.H * a.dh; i += GROUP) {
      int head = i / a.dh, c = i % a.dh;
      STORE(y, (first + (I64)head * a.T) * a.dh + c, a.x[at * a.ld + head / a.group * a.dh + c]);
    }
  }
}

/* x [B,H,T,dh] to y [B,T,ld]: sums of `group` consecutive heads of x. */
KERNEL(merge_heads) {
  for (I64 at = GID; at < (I64)a.B * a.T; at += GROUPS) {
    I64 first = at / a.T * a.H * a.T + at % a.T;
    for (int i = LID; i < a.H / a.group * a.dh; i += GROUP) {
      int head = i / a.dh * a.group, c = i % a.dh;
      float sum = 0;
      for (int g = 0; g < a.group; g++) sum += a.x[(first + (I64)(head + g) * a.T) * a.dh + c];
      a.y[at * a.ld + i] = sum;
    }
  }
}

/* In the next two kernels LANES items process one row of scores [pairs,rows,pitch], of `columns` keys. They read a row
 * several times, which the L1 cache serves, and write it once. */
#define LANE (LID % LANES)
#define ROW (GID * (GROUP / LANES) + LID / LANES)
#define ROW_EXISTS (ROW < (I64)a.pairs * a.rows)

/* Scores become softmax weights. */
KERNEL(attention_weights) {
  SHARED float scratch_max[GROUP];
  SHARED double scratch[GROUP];
  I64 pair = a.first_pair + ROW / a.rows, head = pair % a.H, at = ROW * a.pitch;
  int i = (int)(a.first_row + ROW % a.rows), seen = ROW_EXISTS ? SEEN(i) : 0;
  GLOBAL const float *score = a.score + at;
  float largest = -INF;
  double total = 0;
  for (int j = LANE; j < seen; j += LANES) {
    float biased = score[j] + BIAS(i - j);
    if (biased > largest || j == LANE) largest = biased;
  }
  largest = largest_of(largest, scratch_max, LANES);
  for (int j = LANE; j < seen; j += LANES) total += exp(score[j] + BIAS(i - j) - largest);
  total = sum_of(total, scratch, LANES);
  if (!ROW_EXISTS) return;
  double share = 1 / total;
  for (int j = LANE; j < a.columns; j += LANES)
    STORE(weight, at + j, j < seen ? (float)(exp(score[j] + BIAS(i - j) - largest) * share) : 0);
  if (LANE == 0) a.lse[pair * a.T + i] = seen ? (float)(largest + log(total)) : 0;
}

/* Scores become weights P, and dP becomes dS = P (dP - sum_j P dP). */
KERNEL(attention_slopes) {
  SHARED double scratch[GROUP];
  I64 pair = a.first_pair + ROW / a.rows, head = pair % a.H, at = ROW * a.pitch;
  int i = (int)(a.first_row + ROW % a.rows), seen = ROW_EXISTS ? SEEN(i) : 0;
  GLOBAL const float *score = a.score + at, *dweight = a.dweight + at;
  float lse = seen ? a.lse[pair * a.T + i] : 0;
  double mean = 0;
  for (int j = LANE; j < seen; j += LANES) mean += (double)exp(score[j] + BIAS(i - j) - lse) * dweight[j];
  mean = sum_of(mean, scratch, LANES);
  if (!ROW_EXISTS) return;
  for (int j = LANE; j < a.columns; j += LANES) {
    float p = j < seen ? exp(score[j] + BIAS(i - j) - lse) : 0, ds = j < seen ? p * (dweight[j] - (float)mean) : 0;
    STORE(weight, at + j, p);
    STORE(dscore, at + j, ds);
  }
}

/* Adds dS of a block's rows to slope [pairs,segments,distances]. An item sums the rows of one segment, at most
 * ROWS_SUMMED, because its reads wait for memory one after the other. */
KERNEL(attention_distances) {
  int distances = a.T + AHEAD;
  EACH(i, (I64)a.pairs * a.segments * distances) {
    I64 to = a.first_pair * a.segments * distances + i, pair = i / distances / a.segments;
    int distance = (int)(i % distances) - AHEAD, segment = (int)(i / distances % a.segments);
    int first = a.first_row + segment * ROWS_SUMMED, end = first + ROWS_SUMMED;
    if (end > a.first_row + a.rows) end = a.first_row + a.rows;
    if (first < distance) first = distance; /* rows i with 0 <= i - distance < columns */
    if (end > a.columns + distance) end = a.columns + distance;
    I64 at = (pair * a.rows - a.first_row) * a.pitch - distance;
    double sum = a.accumulate ? a.slope[to] : 0;
    for (int row = first; row < end; row++) sum += operand(P(char, dscore), a.is, at + row * (a.pitch + 1));
    a.slope[to] = sum;
  }
}

/* One group per bucket and head: the sum over all sequences, segments, and the bucket's distances. */
KERNEL(attention_dbias) {
  SHARED double scratch[GROUP];
  I64 bucket = GID / a.H, head = GID % a.H, per_pair = (I64)a.segments * a.distances;
  double sum = 0;
  for (I64 at = LID; at < a.B * per_pair; at += GROUP)
    if (a.bucket[at % a.distances] == bucket) sum += a.slope[(at / per_pair * a.H + head) * per_pair + at % per_pair];
  sum = sum_over(sum, scratch);
  if (LID == 0) a.drel_bias[GID] += (float)sum;
}

INLINE float dot(int count, GLOBAL const float *x, GLOBAL const float *y) {
  float sum = 0;
  for (int i = 0; i < count; i++) sum += x[i] * y[i];
  return sum;
}

/* One group per sequence and KV head. */
KERNEL(cache_append) {
  int b = (int)(GID / a.kv_heads), head = (int)(GID % a.kv_heads), first = a.begin[b], rows = a.begin[b + 1] - first;
  I64 cache = (GID * a.positions + a.past[b]) * a.dh;
  for (int i = LID; i < rows * a.dh; i += GROUP) {
    I64 from = ((I64)(first + i / a.dh) * a.kv_heads + head) * a.dh + i % a.dh;
    a.keys[cache + i] = a.k[from];
    a.values[cache + i] = a.v[from];
  }
}

/* One group per new row (up to the max number of rows) and head. */
KERNEL(attention_cached) {
  SHARED float p[GROUP], scratch_max[GROUP];
  SHARED double scratch[GROUP];
  int row = (int)(GID / a.H), head = (int)(GID % a.H), b = 0;
  while (b < a.B && row >= a.begin[b + 1]) b++;
  int at = b < a.B ? a.past[b] + row - a.begin[b] : -1; /* -1: no such row, so the loops are empty */
  I64 cache = ((I64)b * (a.H / a.group) + head / a.group) * a.positions * a.dh;
  GLOBAL const float *q = a.q + GID * a.dh, *keys = a.keys + cache, *values = a.values + cache;
  I64 nearest = head * (I64)(a.positions + a.pad) + a.positions - 1 - at;
  GLOBAL float *out = a.out + GID * a.dh;
  float largest = -INF;
  double total = 0;
  for (int j0 = 0; j0 <= at; j0 += GROUP) {
    int j = j0 + LID;
    float bias = a.bias && j <= at ? a.bias[nearest + j] : 0, before = largest;
    float score = j <= at ? a.scale * dot(a.dh, q, keys + (I64)j * a.dh) + bias : -INF;
    float here = largest_over(score, scratch_max);
    if (here > largest || j0 == 0) largest = here;
    p[LID] = j <= at ? exp(score - largest) : 0;
    double shrink = j0 ? exp((double)(before - largest)) : 0;
    total = total * shrink + sum_over(p[LID], scratch);
    SYNC;
    for (int c = LID; c < a.dh; c += GROUP) {
      float sum = 0;
      for (int l = 0; l < GROUP && j0 + l <= at; l++) sum += p[l] * values[(I64)(j0 + l) * a.dh + c];
      out[c] = j0 ? (float)(out[c] * shrink) + sum : sum;
    }
    SYNC;
  }
  if (at >= 0)
    for (int c = LID; c < a.dh; c += GROUP) out[c] = (float)(out[c] / total);
}

KERNEL(attention_bias) {
  I64 width = a.positions + a.pad;
  EACH(i, a.H * width) {
    I64 head = i / width, distance = a.positions - 1 - i % width;
    a.bias[i] = distance >= 0 ? a.rel_bias[a.bucket[distance] * a.H + head] : 0;
  }
}

/* One item per pair of columns. */
KERNEL(rope) {
  int pairs = a.rotated / 2;
  EACH(i, a.n * a.heads * pairs) {
    I64 t = i / pairs / a.heads, c = i % pairs, position = a.position ? a.position[t] : t % a.T;
    GLOBAL const float *rope_table = a.rope_table + position * a.rotated + c;
    GLOBAL float *x = a.x + i / pairs * a.dh + c;
    float cosine = rope_table[0], sine = a.back ? -rope_table[pairs] : rope_table[pairs], first = x[0],
          second = x[pairs];
    x[0] = first * cosine - second * sine;
    x[pairs] = second * cosine + first * sine;
  }
}

KERNEL(rope_table) {
  int pairs = a.rotated / 2;
  EACH(i, (I64)a.positions * pairs) {
    I64 p = i / pairs, c = i % pairs;
    double angle = (double)p * pow(a.theta, -2.0 * (double)c / a.rotated);
    a.rope_table[p * a.rotated + c] = (float)cos(angle);
    a.rope_table[p * a.rotated + pairs + c] = (float)sin(angle);
  }
}
