/* Causal attention, with or without a learned bias by distance. A work group computes one row of scores, one column, or
 * one distance. No T x T matrix is stored: every kernel recomputes the scores that it needs. */

#define SCORE(qi, kj, distance) \
  (a.scale * dot(a.dh, qi, kj) + (P(float, rel_bias) ? P(float, rel_bias)[P(int, bucket)[distance] * a.H + head] : 0))

#define KV_START (task / a.H * a.T * a.kv_ld + head / a.group * a.dh)

INLINE float dot(int count, GLOBAL const float *x, GLOBAL const float *y) {
  float sum = 0;
  for (int i = 0; i < count; i++) sum += x[i] * y[i];
  return sum;
}

/* Keys in tiles of GROUP, with the largest score so far: what stands in out is scaled down when it grows. */
KERNEL(attention) {
  SHARED float p[GROUP], most[GROUP];
  SHARED double room[GROUP];
  I64 task = GID / a.T, head = task % a.H, start = task / a.H * a.T * a.ld + head * a.dh, kv_start = KV_START;
  int i = (int)(GID % a.T);
  GLOBAL const float *q = P(float, q) + start + i * a.ld, *k = P(float, k) + kv_start, *v = P(float, v) + kv_start;
  GLOBAL float *out = P(float, out) + start + i * a.ld;
  float largest = -INF;
  double total = 0;
  for (int j0 = 0; j0 <= i; j0 += GROUP) {
    int j = j0 + LID;
    float score = j <= i ? SCORE(q, k + j * a.kv_ld, i - j) : -INF, before = largest;
    float here = largest_over(score, most);
    if (here > largest || j0 == 0) largest = here;
    p[LID] = j <= i ? exp(score - largest) : 0;
    double shrink = j0 ? exp((double)(before - largest)) : 0;
    total = total * shrink + sum_over(p[LID], room);
    SYNC;
    for (int c = LID; c < a.dh; c += GROUP) {
      float sum = 0;
      for (int l = 0; l < GROUP && j0 + l <= i; l++) sum += p[l] * v[(j0 + l) * a.kv_ld + c];
      out[c] = j0 ? (float)(out[c] * shrink) + sum : sum;
    }
    SYNC;
  }
  for (int c = LID; c < a.dh; c += GROUP) out[c] = (float)(out[c] / total);
  if (LID == 0) P(float, lse)[GID] = (float)(largest + log(total));
}

/* delta = sum_j P dP, and dq = scale sum_j P (dP - delta) k. */
KERNEL(attention_dq) {
  SHARED float ds[GROUP];
  SHARED double room[GROUP];
  I64 task = GID / a.T, head = task % a.H, start = task / a.H * a.T * a.ld + head * a.dh, kv_start = KV_START;
  int i = (int)(GID % a.T);
  GLOBAL const float *q = P(float, q) + start + i * a.ld, *k = P(float, k) + kv_start, *v = P(float, v) + kv_start;
  GLOBAL const float *dout = P(float, dout) + start + i * a.ld;
  GLOBAL float *dq = P(float, dq) + start + i * a.ld;
  float lse = P(float, lse)[GID];
  double mean = 0;
  for (int j = LID; j <= i; j += GROUP)
    mean += exp(SCORE(q, k + j * a.kv_ld, i - j) - lse) * dot(a.dh, dout, v + j * a.kv_ld);
  mean = sum_over(mean, room);
  if (LID == 0) P(float, delta)[GID] = (float)mean;
  for (int j0 = 0; j0 <= i; j0 += GROUP) {
    int j = j0 + LID;
    ds[LID] = 0;
    if (j <= i)
      ds[LID] = exp(SCORE(q, k + j * a.kv_ld, i - j) - lse) * (dot(a.dh, dout, v + j * a.kv_ld) - (float)mean);
    SYNC;
    for (int c = LID; c < a.dh; c += GROUP) {
      float sum = 0;
      for (int l = 0; l < GROUP && j0 + l <= i; l++) sum += ds[l] * k[(j0 + l) * a.kv_ld + c];
      dq[c] = (j0 ? dq[c] : 0) + a.scale * sum;
    }
    SYNC;
  }
}

/* Column j of the keys that a group of heads shares: dv = sum_i P dout_i and dk = scale sum_i dS q_i, over the heads
 * and the rows i >= j. */
KERNEL(attention_dkv) {
  SHARED float p[GROUP], ds[GROUP];
  I64 kv_heads = a.H / a.group, row = GID / a.T / kv_heads * a.T, first = GID / a.T % kv_heads * a.group;
  int j = (int)(GID % a.T);
  I64 place = (row + j) * a.kv_ld + first / a.group * a.dh;
  GLOBAL const float *k = P(float, k) + place, *v = P(float, v) + place;
  GLOBAL float *dk = P(float, dk) + place, *dv = P(float, dv) + place;
  for (I64 head = first; head < first + a.group; head++) {
    I64 start = row * a.ld + head * a.dh, task = row / a.T * a.H + head;
    GLOBAL const float *q = P(float, q) + start, *dout = P(float, dout) + start;
    for (int i0 = j; i0 < a.T; i0 += GROUP) {
      int i = i0 + LID, begins = head == first && i0 == j;
      p[LID] = ds[LID] = 0;
      if (i < a.T) {
        p[LID] = exp(SCORE(q + i * a.ld, k, i - j) - P(float, lse)[task * a.T + i]);
        ds[LID] = p[LID] * (dot(a.dh, dout + i * a.ld, v) - P(float, delta)[task * a.T + i]);
      }
      SYNC;
      for (int c = LID; c < a.dh; c += GROUP) {
        float to_k = 0, to_v = 0;
        for (int l = 0; l < GROUP && i0 + l < a.T; l++) {
          to_k += ds[l] * q[(i0 + l) * a.ld + c];
          to_v += p[l] * dout[(i0 + l) * a.ld + c];
        }
        dk[c] = (begins ? 0 : dk[c]) + a.scale * to_k;
        dv[c] = (begins ? 0 : dv[c]) + to_v;
      }
      SYNC;
    }
  }
}

/* The sum of dS over all pairs at one distance, of one sequence's head. */
KERNEL(attention_slope) {
  SHARED double room[GROUP];
  I64 task = GID / a.T, head = task % a.H, start = task / a.H * a.T * a.ld + head * a.dh, kv_start = KV_START;
  int distance = (int)(GID % a.T);
  GLOBAL const float *q = P(float, q) + start, *k = P(float, k) + kv_start, *v = P(float, v) + kv_start;
  GLOBAL const float *dout = P(float, dout) + start;
  double sum = 0;
  for (int i = distance + LID; i < a.T; i += GROUP) {
    int j = i - distance;
    float p = exp(SCORE(q + i * a.ld, k + j * a.kv_ld, distance) - P(float, lse)[task * a.T + i]);
    sum += p * (dot(a.dh, dout + i * a.ld, v + j * a.kv_ld) - P(float, delta)[task * a.T + i]);
  }
  sum = sum_over(sum, room);
  if (LID == 0) P(float, slope)[GID] = (float)sum;
}

/* ... and of a bucket, of one head in all sequences. */
KERNEL(attention_dbias) {
  EACH(i, (I64)a.buckets * a.H) {
    int bucket = (int)(i / a.H), head = (int)(i % a.H);
    double sum = 0;
    for (I64 b = 0; b < a.B; b++)
      for (int distance = 0; distance < a.T; distance++)
        if (P(int, bucket)[distance] == bucket) sum += P(float, slope)[(b * a.H + head) * a.T + distance];
    P(float, drel_bias)[i] += (float)sum;
  }
}

/* Group: a sequence and a head of keys. */
KERNEL(cache_append) {
  int b = (int)(GID / a.kv_heads), head = (int)(GID % a.kv_heads), first = P(int, begin)[b],
      rows = P(int, begin)[b + 1] - first;
  I64 cache = (GID * a.positions + P(int, past)[b]) * a.dh;
  for (int i = LID; i < rows * a.dh; i += GROUP) {
    I64 from = ((I64)(first + i / a.dh) * a.kv_heads + head) * a.dh + i % a.dh;
    P(float, keys)[cache + i] = P(float, k)[from];
    P(float, values)[cache + i] = P(float, v)[from];
  }
}

/* Group: a new row (of the most that there may be) and a head. */
KERNEL(attention_cached) {
  SHARED float p[GROUP], most[GROUP];
  SHARED double room[GROUP];
  int row = (int)(GID / a.H), head = (int)(GID % a.H), b = 0;
  while (b < a.B && row >= P(int, begin)[b + 1]) b++;
  int at = b < a.B ? P(int, past)[b] + row - P(int, begin)[b] : -1; /* -1: there is no such row, and no loop */
  I64 cache = ((I64)b * (a.H / a.group) + head / a.group) * a.positions * a.dh;
  GLOBAL const float *q = P(float, q) + GID * a.dh, *keys = P(float, keys) + cache, *values = P(float, values) + cache;
  I64 nearest = head * (I64)(a.positions + a.pad) + a.positions - 1 - at;
  GLOBAL float *out = P(float, out) + GID * a.dh;
  float largest = -INF;
  double total = 0;
  for (int j0 = 0; j0 <= at; j0 += GROUP) {
    int j = j0 + LID;
    float bias = P(float, bias) && j <= at ? P(float, bias)[nearest + j] : 0, before = largest;
    float score = j <= at ? a.scale * dot(a.dh, q, keys + (I64)j * a.dh) + bias : -INF;
    float here = largest_over(score, most);
    if (here > largest || j0 == 0) largest = here;
    p[LID] = j <= at ? exp(score - largest) : 0;
    double shrink = j0 ? exp((double)(before - largest)) : 0;
    total = total * shrink + sum_over(p[LID], room);
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
    P(float, bias)[i] = distance >= 0 ? P(float, rel_bias)[P(int, bucket)[distance] * a.H + head] : 0;
  }
}

/* One pair of columns. */
KERNEL(rope) {
  int pairs = a.rotated / 2;
  EACH(i, a.n * a.heads * pairs) {
    I64 t = i / pairs / a.heads, c = i % pairs, position = P(int, position) ? P(int, position)[t] : t % a.T;
    GLOBAL const float *turn = P(float, turn) + position * a.rotated + c;
    GLOBAL float *x = P(float, x) + i / pairs * a.dh + c;
    float cosine = turn[0], sine = a.back ? -turn[pairs] : turn[pairs], first = x[0], second = x[pairs];
    x[0] = first * cosine - second * sine;
    x[pairs] = second * cosine + first * sine;
  }
}

KERNEL(rope_table) {
  int pairs = a.rotated / 2;
  EACH(i, (I64)a.positions * pairs) {
    I64 p = i / pairs, c = i % pairs;
    double angle = (double)p * pow(a.theta, -2.0 * (double)c / a.rotated);
    P(float, turn)[p * a.rotated + c] = (float)cos(angle);
    P(float, turn)[p * a.rotated + pairs + c] = (float)sin(angle);
  }
}
