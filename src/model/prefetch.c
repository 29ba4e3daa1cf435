/* Sharded dense matrices: one rank of a replica owns and updates each, and the other ranks prefetch it. */
#include "model/prefetch.h"

#include "op/op.h"

int ch_next_owner(int64_t *has, int ranks, int64_t count) {
  int owner = 0;
  for (int r = 1; r < ranks; r++)
    if (has[r] < has[owner]) owner = r;
  has[owner] += count;
  return owner;
}

void ch_params_shard_dense(ch_params *params, const ch_comm *replica) {
  int64_t has[CH_RANKS] = {0};
  for (int i = 0; i < params->count; i++) {
    ch_param *p = &params->p[i];
    if (!ch_param_is_shardable(p)) continue;
    p->owner = ch_next_owner(has, replica->size, p->whole);
    p->remote = p->owner != replica->rank;
  }
}

int ch_params_dense_sharded(const ch_params *params) {
  int sharded = 0;
  for (int i = 0; i < params->count; i++) sharded |= params->p[i].owner >= 0;
  return sharded;
}

/* Bf16 products read only the rounded weights, so the owner broadcasts these. */
static ch_broadcast broadcast_of(const ch_param *p) {
  if (p->w16) return (ch_broadcast){p->owner, CH_HOST_OR_DEVICE(p->w16), p->whole * (int64_t)sizeof(ch_bf16)};
  return (ch_broadcast){p->owner, CH_HOST_OR_DEVICE(p->w), p->whole * (int64_t)sizeof(real)};
}

/* Max number of sharded matrices per layer. */
static int64_t max_sharded(const ch_params *params) {
  int64_t max = 0, count = 0;
  for (int i = 0; i < params->count; i++) {
    const ch_param *p = &params->p[i];
    if (i && p->layer != p[-1].layer) count = 0;
    count += p->owner >= 0;
    if (count > max) max = count;
  }
  return max;
}

/* State of the prefetch; x->prefetch points to its first member, `under_way`. */
typedef struct {
  ch_broadcasts under_way; /* first */
  const ch_params *params;
  ch_broadcast *matrix; /* [max_sharded] */
  int here[2];          /* layer whose matrices each of the two buffers holds or receives */
} prefetch;

static void begin_layer(ch_exec *x, prefetch *v, int layer) {
  const ch_param *p = &v->params->p[ch_params_first(v->params, layer)], *end = v->params->p + v->params->count;
  int count = 0;
  for (; p < end && p->layer == layer && v->here[layer & 1] != layer && !ch_counting(x); p++)
    if (p->owner >= 0) v->matrix[count++] = broadcast_of(p);
  if (count) v->here[layer & 1] = layer;
  v->under_way.left = v->matrix;
  v->under_way.count = count;
  v->under_way.steps = 0;
}

void ch_prefetch_start(ch_exec *x, const ch_params *params) {
  ch_arena *tape = &ch_host(x)->tape;
  int64_t max = max_sharded(params);
  if (!max) return;
  prefetch *v = CH_NEW_HOST(tape, prefetch, 1);
  ch_broadcast *matrix = CH_NEW_HOST(tape, ch_broadcast, max);
  ch_bytes *spans = CH_NEW_HOST(tape, ch_bytes, max * CH_SPANS * x->grid.replica.size);
  if (ch_counting(x)) return;
  *v = (prefetch){
      .under_way = {.what = "dense weights", .spans = spans}, .params = params, .matrix = matrix, .here = {-1, -1}};
  x->prefetch = &v->under_way;
  begin_layer(x, v, 0);
  ch_prefetch_next(x);
}

void ch_prefetch_layer(ch_exec *x, int next) {
  prefetch *v = (prefetch *)x->prefetch;
  if (!v) return;
  ch_comm_broadcast_end(&x->grid.replica, &v->under_way);
  begin_layer(x, v, next);
}

void ch_prefetch_stop(ch_exec *x) { x->prefetch = NULL; }

void ch_params_share_numbers(ch_exec *x, const ch_params *params, double *number) {
  const ch_comm *replica = &x->grid.replica;
  ch_bytes send[CH_RANKS], receive[CH_RANKS];
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
