/* The routing record: indexed by token, restricted to a range, and its statistics. */

/* Lower bound: the first slot of begin .. end-1 whose token is >= t. Tokens are ascending. */
INLINE int slot_from(GLOBAL const int *token, int begin, int end, int t) {
  while (begin < end) {
    int middle = (begin + end) / 2;
    if (token[middle] < t)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

KERNEL(loads) { EACH(i, a.e) a.demand[i] = a.begin[i + 1] - a.begin[i]; }

/* One item per token, which searches every expert's slots. */
KERNEL(index_count) {
  EACH(t, a.n) {
    int count = 0;
    for (int i = 0; i < a.e; i++) {
      int end = a.begin[i + 1], s = slot_from(a.slot_token, a.begin[i], end, (int)t);
      count += s < end && a.slot_token[s] == t;
    }
    a.size[t] = count;
  }
}

KERNEL(index_fill) {
  EACH(t, a.n) {
    int at = a.token_begin[t];
    for (int i = 0; i < a.e; i++) {
      int end = a.begin[i + 1], s = slot_from(a.slot_token, a.begin[i], end, (int)t);
      if (s < end && a.slot_token[s] == t) a.token_slot[at++] = s;
    }
  }
}

KERNEL(part_count) {
  EACH(i, a.e) {
    int begin = a.begin[i], end = a.begin[i + 1];
    int to = slot_from(a.slot_token, begin, end, a.end);
    a.size[i] = to - slot_from(a.slot_token, begin, end, a.first);
  }
}

/* One group per expert. */
KERNEL(part_fill) {
  int from = slot_from(a.slot_token, a.begin[GID], a.begin[GID + 1], a.first);
  int to = a.part_begin[GID], count = a.part_begin[GID + 1] - to;
  for (int s = LID; s < count; s += GROUP) {
    a.part_token[to + s] = a.slot_token[from + s] - a.first;
    a.part_gate[to + s] = a.slot_gate[from + s];
  }
}

/* Group i counts the tokens with i experts, i = 0 .. e; group 0 computes the other numbers. */
KERNEL(tally) {
  SHARED double scratch[GROUP];
  GLOBAL I64 *load = a.counts + 1, *demand = load + a.e, *histogram = demand + a.e;
  double count = 0, gates = 0, squares = 0, valid = 0;
  for (I64 t = LID; t < a.n; t += GROUP)
    count += !(a.valid && !a.valid[t]) && a.token_begin[t + 1] - a.token_begin[t] == GID;
  count = sum_over(count, scratch);
  if (LID == 0) histogram[GID] = (I64)count;
  if (GID > 0) return;
  for (I64 s = LID; s < a.begin[a.e]; s += GROUP) gates += a.slot_gate[s];
  gates = sum_over(gates, scratch);
  for (I64 t = LID; t < a.n && a.lse; t += GROUP)
    if (!(a.valid && !a.valid[t])) {
      squares += (double)a.lse[t] * a.lse[t];
      valid++;
    }
  squares = sum_over(squares, scratch);
  valid = sum_over(valid, scratch);
  for (int i = LID; i < a.e; i += GROUP) {
    load[i] = a.begin[i + 1] - a.begin[i];
    demand[i] = a.demand[i];
  }
  if (LID == 0) {
    a.sums[0] = a.aux_loss[0];
    a.sums[1] = gates;
    a.sums[2] = valid > 0 ? squares / valid : 0;
    a.counts[0] = a.dropped[0];
  }
}
