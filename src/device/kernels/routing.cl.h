/* Routing where tokens choose or pass thresholds, and what routers keep. */

KERNEL(mean_cutoff) {
  EACH(i, a.e) {
    double sum = 0;
    int finite = 0;
    for (I64 p = 0; p < a.pools; p++) {
      float value = P(float, cutoff)[p * a.e + i];
      if (IS_FINITE(value)) sum += value, finite++;
    }
    P(float, mean)[i] = finite ? (float)(sum / finite) : INF;
  }
}

KERNEL(running_mean) {
  EACH(i, a.count) {
    double mean = a.fresh ? 0 : P(float, mean)[i], value = P(float, value)[i];
    if (IS_FINITE(value)) P(float, mean)[i] = (float)(mean + a.weight * (value - mean));
  }
}

/* The `count` best of one token, of equal ones the lower expert. */
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

/* What a token's scores leave of 1 to null experts, which share it evenly. */
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

/* An item has a token. */
KERNEL(best) {
  EACH(t, a.n) {
    GLOBAL const float *score = P(float, score) + t * a.e;
    GLOBAL int *expert = P(int, choice) + t * a.count;
    GLOBAL float *value = P(float, value) + t * a.count;
    best_of(a.e, a.count, score, P(float, shift), expert, value);
    if (a.nulls) leave_to_nulls(a.nulls, a.e, a.count, score, value, expert);
    if (P(float, margin))
      for (int i = 0; i < a.e; i++)
        P(float, margin)[t * a.e + i] = score[i] - (value[a.count - 2] + value[a.count - 1]) / 2;
    if (P(uchar, valid) && !P(uchar, valid)[t])
      for (int j = 0; j < a.count; j++) expert[j] = -1;
  }
}

KERNEL(modulo) {
  EACH(t, a.n) {
    int taken = !P(uchar, valid) || P(uchar, valid)[t];
    P(int, choice)[t] = !taken ? -1 : a.e > 1 ? P(int, id)[t] % a.e : 0;
  }
}

KERNEL(sample_second) {
  EACH(t, a.n) {
    float second = P(float, value)[2 * t + 1], sum = P(float, value)[2 * t] + second;
    U64 bits = random_bits(a.seed, a.stream, a.sub, a.base + (U64)t);
    double drawn = ((double)(bits >> 11) + 0.5) * (1.0 / 9007199254740992.0);
    if (sum == 0) sum = 1;
    if (!(drawn < 2 * (double)(second / sum))) P(int, choice)[2 * t + 1] = -1;
  }
}

/* Whether token u, which asks for the same expert as t, comes first: its first value is larger, NaN being the least. */
INLINE int comes_first(GLOBAL const float *value, int count, I64 u, I64 t) {
  float mine = value[t * count], other = value[u * count];
  if (isnan(mine)) mine = -INF;
  if (isnan(other)) other = -INF;
  return other > mine || (other == mine && u < t);
}

/* A group has an expert, and goes over the first choices of all tokens, then over their second ones. What it takes away
 * from `choice` other groups read in a copy. */
KERNEL(place) {
  SHARED int room[GROUP];
  int held = 0, demand = 0;
  for (int j = 0; j < a.count; j++) {
    int before = demand;
    for (I64 t0 = 0; t0 < a.n; t0 += GROUP) {
      I64 t = t0 + LID;
      int asks = t < a.n && P(int, asked)[t * a.count + j] == GID, all, rank = rank_over(asks, room, &all);
      rank += demand;
      if (asks && P(float, value)) {
        rank = before;
        for (I64 u = 0; u < a.n; u++)
          rank += P(int, asked)[u * a.count + j] == GID && comes_first(P(float, value), a.count, u, t);
      }
      if (asks && rank >= a.capacity) P(int, choice)[t * a.count + j] = -1;
      demand += all;
    }
  }
  held = demand < a.capacity ? demand : a.capacity;
  if (LID == 0) {
    P(int, demand)[GID] = demand;
    P(int, dropped)[GID] = demand - held;
    P(int, held)[GID] = held;
  }
}

/* A group has an expert; a token chooses it once at most. */
KERNEL(list_chosen) {
  SHARED int room[GROUP];
  int slot = P(int, begin)[GID];
  for (I64 t0 = 0; t0 < a.n; t0 += GROUP) {
    I64 t = t0 + LID;
    int chosen = 0, all;
    for (int j = 0; t < a.n && j < a.count; j++) chosen |= P(int, choice)[t * a.count + j] == GID;
    int rank = rank_over(chosen, room, &all);
    if (chosen) P(int, slot_token)[slot + rank] = (int)t;
    slot += all;
  }
}

KERNEL(sum_counts) {
  if (GID == 0 && LID == 0) {
    I64 sum = 0;
    for (int i = 0; i < a.count; i++) sum += P(int, counts)[i];
    P(I64, total)[0] = sum;
  }
}

KERNEL(threshold) {
  EACH(t, a.n)
  pass_bars(a.e, a.cap, !(P(uchar, valid) && !P(uchar, valid)[t]), P(float, score) + t * a.e, P(float, threshold),
            P(uchar, keep) + t * a.e);
}

/* A group has an expert. keep: 0 before. */
KERNEL(within) {
  SHARED double room[GROUP];
  int e = a.e, all = P(float, threshold)[GID] > P(float, least_cutoff)[GID];
  float bar = P(float, threshold)[GID];
  double taken = 0, demand = 0;
  int from = all ? P(int, least_begin)[GID] : P(int, most_begin)[GID];
  int to = all ? P(int, least_begin)[GID + 1] : P(int, most_begin)[GID + 1];
  for (int s = from + LID; s < to; s += GROUP) {
    I64 t = all ? P(int, least_token)[s] : P(int, most_token)[s];
    if (!all && !(P(float, score)[t * e + GID] >= bar)) continue;
    P(uchar, keep)[t * e + GID] = 1;
    taken++;
  }
  for (I64 t = LID; t < a.n; t += GROUP)
    demand += !(P(uchar, valid) && !P(uchar, valid)[t]) && P(float, score)[t * e + GID] >= bar;
  taken = sum_over(taken, room);
  demand = sum_over(demand, room);
  if (LID == 0) {
    P(int, demand)[GID] = (int)demand;
    P(int, dropped)[GID] = demand > taken ? (int)(demand - taken) : 0;
  }
}
