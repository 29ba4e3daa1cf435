#include "moe/parts.h"

#include <string.h>

int ch_parts_most(int slots, int e) {
  enum { MEANS = 2, FEW = 256 }; /* FEW: less is not worth another part */
  int most = MEANS * ((slots + e - 1) / e);
  return most > FEW ? most : FEW;
}

void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int most, ch_parts *p) {
  *p = (ch_parts){.slots = slots, .most = most, .tokens = all->tokens, .experts = all->experts};
  p->expert_begin = ch_get(x, all->expert_begin, ((size_t)p->experts + 1) * sizeof(int));
  p->token_begin = ch_get(x, all->token_begin, ((size_t)p->tokens + 1) * sizeof(int));
  p->token_slot = ch_get(x, all->token_slot, (size_t)all->max_slots * sizeof(int));
  p->taken = CH_NEW_HOST(&ch_host(x)->scratch, int, p->experts);
}

/* Takes a token's slots, which ascend as experts do; 0: one of its experts has no room. */
static int take(ch_parts *p, int token) {
  int room = 1, expert = 0;
  for (int i = p->token_begin[token]; i < p->token_begin[token + 1]; i++) {
    while (p->token_slot[i] >= p->expert_begin[expert + 1]) expert++;
    room &= ++p->taken[expert] <= p->most;
  }
  return room;
}

int ch_parts_end(ch_parts *p, int begin) {
  int end = begin;
  memset(p->taken, 0, (size_t)p->experts * sizeof *p->taken);
  while (end < p->tokens && p->token_begin[end + 1] - p->token_begin[begin] <= p->slots && take(p, end)) end++;
  return end;
}
