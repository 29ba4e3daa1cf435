/* Dense matrices that are dealt out: each lives on one rank of a replica, which updates it, and visits the others. */
#include "comm/collective.h"
#include "model/param.h"
#include "op/op.h"

int ch_deal(int64_t *has, int ranks, int64_t count) {
  int owner = 0;
  for (int r = 1; r < ranks; r++)
    if (has[r] < has[owner]) owner = r;
  has[owner] += count;
  return owner;
}

void ch_params_deal(ch_params *params, const ch_comm *replica) {
  int64_t has[CH_RANKS] = {0};
  for (int i = 0; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (!ch_param_is_dealt(p)) continue;
    p->owner = ch_deal(has, replica->size, p->whole);
    p->away = p->owner != replica->rank;
  }
}

int ch_params_are_dealt(const ch_params *params) {
  int dealt = 0;
  for (int i = 0; i < params->count; i++) dealt |= params->p[i].owner >= 0;
  return dealt;
}

/* Products of bf16 read rounded weights alone, which the owner has: these travel. */
static ch_spread visit_of(const ch_param *p) {
  if (p->w16) return (ch_spread){p->owner, CH_AS_HOST(ch_bf16, p->w16), p->whole * (int64_t)sizeof(ch_bf16)};
  return (ch_spread){p->owner, CH_AS_HOST(real, p->w), p->whole * (int64_t)sizeof(real)};
}

void ch_params_fetch(ch_exec *x, const ch_params *params, int layer) {
  const ch_comm *replica = &x->grid.replica;
  const ch_param *p = &params->p[ch_params_first(params, layer)], *end = params->p + params->count;
  ch_arena *scratch = &ch_host(x)->scratch;
  int64_t most = 0;
  int count = 0;
  size_t mark = ch_arena_mark(scratch);
  for (const ch_param *q = p; q < end && q->layer == layer; q++) most += q->owner >= 0;
  ch_spread *matrix = CH_NEW_HOST(scratch, ch_spread, most);
  ch_bytes *spans = CH_NEW_HOST(scratch, ch_bytes, most * 2 * CH_SPANS * replica->size);
  for (const ch_param *q = p; q < end && q->layer == layer && !ch_counting(x); q++)
    if (q->owner >= 0) matrix[count++] = visit_of(q);
  ch_comm_spread(replica, "dense weights", matrix, count, spans);
  ch_arena_release(scratch, mark);
}

void ch_params_share_numbers(ch_exec *x, const ch_params *params, double *number) {
  const ch_comm *replica = &x->grid.replica;
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
  if (replica->size == 1) return;
  double *by_owner = CH_NEW_HOST(&ch_host(x)->scratch, double, params->count), *end = by_owner;
  if (ch_counting(x)) return;
  for (int r = 0; r < replica->size; r++) {
    double *begin = end;
    for (int i = 0; i < params->count; i++)
      if (params->p[i].owner == r) *end++ = number[i];
    receive[r] = (ch_bytes){begin, (end - begin) * (int64_t)sizeof *begin};
  }
  if (end == by_owner) return;
  for (int r = 0; r < replica->size; r++) send[r] = receive[replica->rank];
  ch_comm_exchange(replica, "squares of gradients of matrices", send, receive);
  for (int r = 0; r < replica->size; r++)
    for (int i = 0; i < params->count; i++)
      if (params->p[i].owner == r) number[i] = *by_owner++;
}
