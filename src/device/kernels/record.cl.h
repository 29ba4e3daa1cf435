/* The routing record: by token, in part, and what it says in numbers. */

/* The first of slots begin .. end-1, whose tokens ascend, that holds a token of `t` or more. */
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

KERNEL(loads) { EACH(i, a.e) P(int, demand)[i] = P(int, begin)[i + 1] - P(int, begin)[i]; }

/* An item has a token, and looks for it in every expert's slots. */
KERNEL(index_count) {
  EACH(t, a.n) {
    int count = 0;
    for (int i = 0; i < a.e; i++) {
      int end = P(int, begin)[i + 1], s = slot_from(P(int, slot_token), P(int, begin)[i], end, (int)t);
      count += s < end && P(int, slot_token)[s] == t;
    }
    P(int, size)[t] = count;
  }
}

KERNEL(index_fill) {
  EACH(t, a.n) {
    int at = P(int, token_begin)[t];
    for (int i = 0; i < a.e; i++) {
      int end = P(int, begin)[i + 1], s = slot_from(P(int, slot_token), P(int, begin)[i], end, (int)t);
      if (s < end && P(int, slot_token)[s] == t) P(int, token_slot)[at++] = s;
    }
  }
}

KERNEL(part_count) {
  EACH(i, a.e) {
    int begin = P(int, begin)[i], end = P(int, begin)[i + 1];
    int to = slot_from(P(int, slot_token), begin, end, a.end);
    P(int, size)[i] = to - slot_from(P(int, slot_token), begin, end, a.first);
  }
}

/* A group has an expert. */
KERNEL(part_fill) {
  int from = slot_from(P(int, slot_token), P(int, begin)[GID], P(int, begin)[GID + 1], a.first);
  int to = P(int, part_begin)[GID], count = P(int, part_begin)[GID + 1] - to;
  for (int s = LID; s < count; s += GROUP) {
    P(int, part_token)[to + s] = P(int, slot_token)[from + s] - a.first;
    P(float, part_gate)[to + s] = P(float, slot_gate)[from + s];
  }
}

/* Group i counts the tokens with i experts, 0 .. e; the first one does the rest. */
KERNEL(tally) {
  SHARED double room[GROUP];
  GLOBAL I64 *load = P(I64, counts) + 1, *demand = load + a.e, *histogram = demand + a.e;
  double count = 0, gates = 0, squares = 0, valid = 0;
  for (I64 t = LID; t < a.n; t += GROUP)
    count += !(P(uchar, valid) && !P(uchar, valid)[t]) && P(int, token_begin)[t + 1] - P(int, token_begin)[t] == GID;
  count = sum_over(count, room);
  if (LID == 0) histogram[GID] = (I64)count;
  if (GID > 0) return;
  for (I64 s = LID; s < P(int, begin)[a.e]; s += GROUP) gates += P(float, slot_gate)[s];
  gates = sum_over(gates, room);
  for (I64 t = LID; t < a.n && P(float, lse); t += GROUP)
    if (!(P(uchar, valid) && !P(uchar, valid)[t])) {
      squares += (double)P(float, lse)[t] * P(float, lse)[t];
      valid++;
    }
  squares = sum_over(squares, room);
  valid = sum_over(valid, room);
  for (int i = LID; i < a.e; i += GROUP) {
    load[i] = P(int, begin)[i + 1] - P(int, begin)[i];
    demand[i] = P(int, demand)[i];
  }
  if (LID == 0) {
    P(double, sums)[0] = P(double, aux_loss)[0];
    P(double, sums)[1] = gates;
    P(double, sums)[2] = valid > 0 ? squares / valid : 0;
    P(I64, counts)[0] = P(I64, dropped)[0];
  }
}
