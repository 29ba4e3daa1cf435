#include "moe/layer.h"

#include "moe/at_owners.h"
#include "moe/experts.h"
#include "moe/parts.h"
#include "moe/scores.h"

/* Slots that the record must have room for. */
static int record_slots(const ch_exec *x, const ch_moe_args *a) {
  int n = ch_moe_all_tokens(x, a);
  if (a->causal && a->router->causal) return n * ch_router_most_experts(a->options, a->e);
  return a->router->max_slots(a->options, n, a->e, a->sequence_length);
}

/* Slots that go through the experts at once: with causal routing in parts (parts.h), as many as the router's own rule
 * takes. */
static int expert_slots(const ch_exec *x, const ch_moe_args *a, int slots) {
  if (!a->causal) return slots;
  int own = a->router->max_slots(a->options, ch_moe_all_tokens(x, a), a->e, a->sequence_length);
  int one_token = ch_router_most_experts(a->options, a->e), chunk = own > one_token ? own : one_token;
  return chunk < slots ? chunk : slots;
}

/* Tokens that come to one expert at once. */
static int most_tokens(const ch_exec *x, const ch_moe_args *a, int slots, int chunk) {
  int tokens = a->n * x->grid.replica.size, most = tokens;
  if (chunk < slots)
    most = ch_parts_most(chunk, a->e);
  else if (a->router->even && !a->causal)
    most = slots / a->e;
  return most < tokens ? most : tokens;
}

/* Record and counts go to the tape; what only backward reads goes there when it is to be kept, else to scratch. */
static void plan(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  ch_arena *keep = a->keep ? &x->tape : &x->scratch;
  int slots = record_slots(x, a), n = ch_moe_all_tokens(x, a);
  *s = (ch_moe_saved){0};
  ch_record_alloc(&x->tape, &s->record, n, a->e, slots);
  ch_route_counts_alloc(x, &x->tape, &s->counts, a->e);
  s->tally = a->tally;
  if (!s->tally.sums) {
    s->tally.sums = CH_NEW(&x->tape, double, CH_TALLY_SUMS);
    s->tally.counts = CH_NEW(&x->tape, int64_t, CH_TALLY_COUNTS(a->e));
  }
  if (a->options->normalize_gates) s->gate_sum = CH_NEW(keep, real, n);
  if (ch_moe_jitters(a)) s->jitter = CH_NEW(keep, real, (int64_t)a->n * a->d);
  if (ch_router_learned(a->router)) {
    s->logits = CH_NEW(keep, real, (int64_t)(ch_router_scored(a->router) ? a->n : n) * a->e);
    if (ch_router_scored(a->router))
      s->scores = CH_NEW(keep, real, (int64_t)(ch_moe_at_owners(x, a) ? a->n : n) * a->e);
  }
  s->chunk_slots = expert_slots(x, a, slots);
  ch_exchange_alloc(x, keep, a->n, a->e, a->d, s->chunk_slots, most_tokens(x, a, slots, s->chunk_slots), &s->exchange);
  s->pre = ch_operand_new(x, keep, (s->exchange.slots ? s->exchange.owned : s->chunk_slots) * a->h);
  s->expert_y = CH_NEW(keep, real, (int64_t)(s->exchange.slots ? s->exchange.room : s->chunk_slots) * a->d);
}

static ch_route_args route_args(const ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  return (ch_route_args){.options = a->options,
                         .n = ch_moe_all_tokens(x, a),
                         .e = a->e,
                         .sequence_length = a->sequence_length,
                         .mask = a->mask,
                         .valid = a->valid,
                         .token = a->token,
                         .logits = s->scores ? NULL : s->logits,
                         .scores = s->scores,
                         .d = a->d,
                         .x = a->x,
                         .weight = a->weights.router,
                         .thresholds = a->weights.thresholds,
                         .training = a->training,
                         .by_threshold = a->by_threshold,
                         .rng = ch_rng_make(a->rng.seed, CH_STREAM_SECOND_EXPERT, a->rng.sub),
                         .rng_base = a->rng_base,
                         .record = &s->record,
                         .counts = &s->counts,
                         .state = a->observe,
                         .observed = a->observed,
                         .aux_scale = a->aux_scale};
}

/* What the router keeps, from the rows of all ranks where it is centroids. */
static void observe(ch_exec *x, const ch_moe_args *a, ch_route_args *routing) {
  size_t mark = ch_arena_mark(&x->scratch);
  int64_t count = (int64_t)a->n * a->d;
  if (x->comm->size > 1 && ch_router_has_centroids(a->router)) {
    real CH_DEV *rows = CH_NEW(&x->scratch, real, x->comm->size * count);
    x->ops->copy(x, &(ch_copy_args){.count = count, .x = a->x, .y = rows + x->comm->rank * count});
    ch_moe_gather(x, a, "tokens of all", rows, a->d);
    routing->x = rows;
  }
  a->router->observe(x, routing);
  ch_arena_release(&x->scratch, mark);
}

/* Which tokens each expert takes, what the router keeps of it, and what it comes to in numbers. */
static void assign(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  ch_route_args routing = route_args(x, a, s);
  if (a->causal && a->router->causal)
    a->router->causal(x, &routing);
  else if (ch_moe_at_owners(x, a))
    ch_route_at_owners(x, a->router, &routing);
  else
    ch_route(x, a->router, &routing);
  if (a->observe) observe(x, a, &routing);
  x->ops->index(x, &(ch_index_args){.record = &s->record});
  if (s->gate_sum) x->ops->normalize_gates(x, &(ch_normalize_args){.record = &s->record, .sum = s->gate_sum});
  x->ops->tally(x, &(ch_tally_args){.record = &s->record,
                                    .valid = a->valid,
                                    .aux_loss = s->counts.aux_loss,
                                    .dropped = s->counts.dropped,
                                    .demand = s->counts.demand,
                                    .sums = s->tally.sums,
                                    .counts = s->tally.counts});
}

/* `record` is about the tokens from `begin` on. */
static void run_experts(ch_exec *x, const ch_moe_args *a, const ch_record *record, int begin, ch_moe_saved *s) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_exchange_split(x, record, begin, &s->exchange);
  ch_exchange_dispatch(x, &s->exchange, a->x, s->expert_y);
  ch_experts_forward(x, a, s);
  ch_exchange_combine(x, &s->exchange, s->expert_y, a->out, a->out_acc);
  ch_arena_release(&x->scratch, mark);
}

/* The same for as many tokens at a time as there is room for: how many, the host has to read. */
static void run_in_parts(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  const ch_record *all = &s->record;
  ch_marks mark = ch_scratch_mark(x);
  ch_parts parts;
  ch_record part;
  ch_parts_begin(x, all, s->chunk_slots, ch_parts_most(s->chunk_slots, a->e), &parts);
  ch_record_alloc(&x->scratch, &part, all->tokens, a->e, s->chunk_slots);
  for (int begin = 0, end; begin < all->tokens; begin = end) {
    end = ch_counting(x) ? begin + 1 : ch_parts_end(&parts, begin);
    part.tokens = end - begin;
    x->ops->part(x, &(ch_part_args){.all = all, .begin = begin, .end = end, .part = &part});
    x->ops->index(x, &(ch_index_args){.record = &part});
    run_experts(x, a, &part, begin, s);
    if (ch_counting(x)) break;
  }
  ch_scratch_release(x, mark);
}

/* Whoever looks sees all tokens, and their scores. */
static void show(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_moe_args all = *a;
  ch_moe_saved shown = *saved;
  all.n = ch_moe_all_tokens(x, a);
  if (ch_moe_at_owners(x, a)) {
    int64_t own = (int64_t)a->n * a->e;
    shown.scores = CH_NEW(&x->scratch, real, own * x->comm->size);
    x->ops->copy(x, &(ch_copy_args){.count = own, .x = saved->scores, .y = shown.scores + own * x->comm->rank});
    ch_moe_gather(x, a, "scores to be shown", shown.scores, a->e);
  }
  a->hook->call(a->hook->context, x, &all, &shown);
  ch_arena_release(&x->scratch, mark);
}

void ch_moe_forward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  plan(x, a, saved);
  if (ch_router_learned(a->router)) ch_moe_score(x, a, saved);
  assign(x, a, saved);
  if (saved->chunk_slots == saved->record.max_slots)
    run_experts(x, a, &saved->record, 0, saved);
  else
    run_in_parts(x, a, saved);
  if (a->hook) show(x, a, saved);
  ch_arena_release(&x->scratch, mark);
}

/* From dgate of this rank's tokens to the gradients of X Wg. A router whose gates are scores and nothing else needs no
 * more than that; any other one sees the gates of all tokens. */
static void router_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dgate) {
  ch_route_args routing = route_args(x, a, s);
  int alone = ch_router_gates_are_scores(a->router) && s->exchange.slots;
  if (alone) {
    routing.n = a->n;
    routing.record = &s->exchange.local;
  }
  real CH_DEV *dscores = CH_NEW(&x->scratch, real, (int64_t)routing.n * a->e);
  real CH_DEV *of_all = s->exchange.slots && !alone ? CH_NEW(&x->scratch, real, s->record.max_slots) : dgate;
  if (!alone) ch_exchange_gather_slots(x, &s->exchange, &s->record, dgate, of_all);
  routing.dgate = of_all;
  routing.dscores = dscores;
  a->router->backward(x, &routing);
  ch_moe_score_backward(x, a, s, alone ? dscores : dscores + ch_moe_first_token(x, a) * a->e);
}

/* forward's steps in reverse. */
void ch_moe_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *saved) {
  size_t mark = ch_arena_mark(&x->scratch);
  ch_exchange *ex = &saved->exchange;
  real CH_DEV *dgate = CH_NEW(&x->scratch, real, ex->local.max_slots);
  if (ch_exchange_begin_backward(x, ex, saved->expert_y)) ch_experts_again(x, a, saved);
  ch_exchange_combine_backward(x, ex, saved->expert_y, a->dout, dgate);
  ch_experts_backward(x, a, saved);
  ch_exchange_return(x, ex, saved->expert_y, a->dx);
  if (saved->gate_sum)
    x->ops->normalize_gates_backward(
        x,
        &(ch_normalize_args){.record = &ex->local, .sum = saved->gate_sum + ch_moe_first_token(x, a), .dgate = dgate});
  if (a->router->backward)
    router_backward(x, a, saved, dgate);
  else if (a->gradients.router && !a->accumulate)
    x->ops->copy(x, &(ch_copy_args){.count = (int64_t)a->d * a->e, .y = a->gradients.router});
  ch_arena_release(&x->scratch, mark);
}
