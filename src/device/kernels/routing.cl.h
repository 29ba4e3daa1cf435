/* Token choice, threshold routing, and router state. */

KERNEL(mean_cutoff) {
  EACH(i, a.e) {
    double sum = 0;
    int finite = 0;
    for (I64 p = 0; p < a.pools; p++) {
      float value = a.cutoff[p * a.e + i];
      if (IS_FINITE(value)) sum += value, finite++;
    }
    a.mean[i] = finite ? (float)(sum / finite) : INF;
  }
}

KERNEL(running_mean) {
  EACH(i, a.count) {
    double mean = a.fresh ? 0 : a.mean[i], value = a.value[i];
    if (IS_FINITE(value)) a.mean[i] = (float)(mean + a.weight * (value - mean));
  }
}

/* The `count` best experts of one token; ties go to the lower expert. */
INLINE void best_of(int e, int count, GLOBAL const float *score, GLOBAL const float *shift, GLOBAL int *expert,
                    GLOBAL float *value) {
  int have = 0;
  for (int i = 0; i < e; i++) {
    float worth = shift ? score[i] - shift[i] : score[i];
    if (have == count && !(worth > value[count - 1])) continue;
    int at = have < count ? have++ : count - 1;
    for (; at > 0 && worth > value[at - 1]; at--) {
      value[at] = value[at - 1];
      expert[at] = expert[at - 1];
    }
    value[at] = worth;
    expert[at] = i;
  }
}

/* 1 - (sum of a token's scores), which null experts share evenly. */
INLINE double left_of(int e, GLOBAL const float *score) {
  double left = 1;
  for (int i = 0; i < e; i++) left -= score[i];
  return left;
}

INLINE void leave_to_nulls(int nulls, int e, int count, GLOBAL const float *score, GLOBAL const float *value,
                           GLOBAL int *expert) {
  double left = left_of(e, score);
  for (int j = count > nulls ? count - nulls : 0; j < count; j++)
    if (value[j] < left / nulls) expert[j] = -1;
}

/* One item per token. */
KERNEL(best) {
  EACH(t, a.n) {
    GLOBAL const float *score = a.score + t * a.e;
    GLOBAL int *expert = a.choice + t * a.count;
    GLOBAL float *value = a.value + t * a.count;
    best_of(a.e, a.count, score, a.shift, expert, value);
    if (a.nulls) leave_to_nulls(a.nulls, a.e, a.count, score, value, expert);
    if (a.margin)
      for (int i = 0; i < a.e; i++) a.margin[t * a.e + i] = score[i] - (value[a.count - 2] + value[a.count - 1]) / 2;
    if (a.valid && !a.valid[t])
      for (int j = 0; j < a.count; j++) expert[j] = -1;
  }
}

KERNEL(modulo) {
  EACH(t, a.n) {
    int active = !a.valid || a.valid[t];
    a.choice[t] = !active ? -1 : a.e > 1 ? a.id[t] % a.e : 0;
  }
}

KERNEL(sample_second) {
  EACH(t, a.n) {
    float second = a.value[2 * t + 1], sum = a.value[2 * t] + second;
    U64 bits = random_bits(a.seed, a.stream, a.sub, a.base + (U64)t);
    double drawn = ((double)(bits >> 11) + 0.5) * (1.0 / 9007199254740992.0);
    if (sum == 0) sum = 1;
    if (!(drawn < 2 * (double)(second / sum))) a.choice[2 * t + 1] = -1;
  }
}

/* Whether token u precedes token t, which chose the same expert: its first value is larger (NaN is smallest). */
INLINE int comes_first(GLOBAL const float *value, int count, I64 u, I64 t) {
  float mine = value[t * count], other = value[u * count];
  if (isnan(mine)) mine = -INF;
  if (isnan(other)) other = -INF;
  return other > mine || (other == mine && u < t);
}

/* One group per expert: visits the first choices of all tokens, then their second choices. It removes choices from
 * `choice`; other groups read a copy. */
KERNEL(place) {
  SHARED int scratch[GROUP];
  int held = 0, demand = 0;
  for (int j = 0; j < a.count; j++) {
    int before = demand;
    for (I64 t0 = 0; t0 < a.n; t0 += GROUP) {
      I64 t = t0 + LID;
      int asks = t < a.n && a.asked[t * a.count + j] == GID, all, rank = rank_over(asks, scratch, &all);
      rank += demand;
      if (asks && a.value) {
        rank = before;
        for (I64 u = 0; u < a.n; u++) rank += a.asked[u * a.count + j] == GID && comes_first(a.value, a.count, u, t);
      }
      if (asks && rank >= a.capacity) a.choice[t * a.count + j] = -1;
      demand += all;
    }
  }
  held = demand < a.capacity ? demand : a.capacity;
  if (LID == 0) {
    a.demand[GID] = demand;
    a.dropped[GID] = demand - held;
    a.held[GID] = held;
  }
}

/* One group per expert; a token chooses it at most once. */
KERNEL(list_chosen) {
  SHARED int scratch[GROUP];
  int slot = a.begin[GID];
  for (I64 t0 = 0; t0 < a.n; t0 += GROUP) {
    I64 t = t0 + LID;
    int chosen = 0, all;
    for (int j = 0; t < a.n && j < a.count; j++) chosen |= a.choice[t * a.count + j] == GID;
    int rank = rank_over(chosen, scratch, &all);
    if (chosen) a.slot_token[slot + rank] = (int)t;
    slot += all;
  }
}

KERNEL(sum_counts) {
  if (GID == 0 && LID == 0) {
    I64 sum = 0;
    for (int i = 0; i < a.count; i++) sum += a.counts[i];
    a.total[0] = sum;
  }
}

KERNEL(threshold) {
  EACH(t, a.n)
  pass_bars(a.e, a.cap, !(a.valid && !a.valid[t]), a.score + t * a.e, a.threshold, a.keep + t * a.e);
}

/* One group per expert. keep must be 0 initially. */
KERNEL(within) {
  SHARED double scratch[GROUP];
  int e = a.e, all = a.threshold[GID] > a.min_cutoff[GID];
  float bar = a.threshold[GID];
  double assigned = 0, demand = 0;
  int from = all ? a.min_begin[GID] : a.max_begin[GID];
  int to = all ? a.min_begin[GID + 1] : a.max_begin[GID + 1];
  for (int s = from + LID; s < to; s += GROUP) {
    I64 t = all ? a.min_token[s] : a.max_token[s];
    if (!all && !(a.score[t * e + GID] >= bar)) continue;
    a.keep[t * e + GID] = 1;
    assigned++;
  }
  for (I64 t = LID; t < a.n; t += GROUP) demand += !(a.valid && !a.valid[t]) && a.score[t * e + GID] >= bar;
  assigned = sum_over(assigned, scratch);
  demand = sum_over(demand, scratch);
  if (LID == 0) {
    a.demand[GID] = (int)demand;
    a.dropped[GID] = demand > assigned ? (int)(demand - assigned) : 0;
  }
}
