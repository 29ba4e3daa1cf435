#include "moe/layer.h"

#include <string.h>

#include "comm/collective.h"
#include "moe/experts.h"
#include "moe/gates.h"
#include "moe/route.h"
#include "moe/scores.h"

/* Max slots that the experts process at a time: all slots, or for causal routing, which runs in parts (ch_parts), at
 * most those of the router's default rule. */
static int expert_slots(const ch_route_args *r, int slots) {
  if (!r->causal) return slots;
  int by_rule = r->router->max_slots(r->options, r->n, r->e, r->sequence_length);
  int one_token = ch_router_max_experts(r->options, r->e), chunk = by_rule > one_token ? by_rule : one_token;
  return chunk < slots ? chunk : slots;
}

/* Max tokens per expert at a time. */
static int max_tokens(const ch_exec *x, const ch_moe_args *a, int slots, int chunk) {
  int tokens = (int)ch_local_count(&x->grid.dp_group, a->route.n), max = tokens; /* those of a replica */
  if (chunk < slots)
    max = ch_parts_max_load(chunk, a->route.e);
  else if (a->route.router->uniform_load && !a->route.causal && !a->route.tokens.assignment)
    max = slots / a->route.e;
  return max < tokens ? max : tokens;
}

/* Allocates the routing on the tape, and arrays for backward on the tape with `keep`, else in scratch. */
static void plan_layer(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  const ch_route_args *r = &a->route;
  ch_arena *keep = a->keep ? &x->tape : &x->scratch;
  int rows = ch_moe_rows(x, a);
  *s = (ch_moe_saved){0};
  ch_routing_alloc(x, r, a->tally, keep);
  if (r->training && r->options->jitter > 0) s->jitter = CH_NEW(keep, real, (int64_t)rows * r->d);
  if (ch_router_learned(r->router)) {
    s->routing.logits = CH_NEW(keep, real, (int64_t)(ch_router_scored(r->router) ? rows : r->n) * r->e);
    if (ch_router_scored(r->router))
      s->routing.scores = CH_NEW(keep, real, (int64_t)(ch_routes_sharded(x, r) ? rows : r->n) * r->e);
  }
  int slots = s->routing.record.max_slots;
  s->chunk_slots = expert_slots(r, slots);
  ch_dispatch_alloc(x, keep, rows, r->e, r->d, s->chunk_slots, max_tokens(x, a, slots, s->chunk_slots), &s->dispatch);
  s->dispatch.gates_input = ch_router_gates_input(r->options);
  s->pre = ch_hidden_new(x, a, keep, s->dispatch.owned);
  if (ch_gated(a->activation)) s->up = CH_NEW(keep, real, s->dispatch.owned * a->h);
  s->expert_y = CH_NEW(keep, real, (int64_t)s->dispatch.max_rows * r->d);
}

/* Runs the experts for `record`, which covers the tokens from `begin` on. */
static void run_experts(ch_exec *x, const ch_moe_args *a, const ch_record *record, int begin, ch_moe_saved *s) {
  CH_SCRATCH(x);
  ch_dispatch *ex = &s->dispatch;
  ch_dispatch_split(x, record, begin, ex);
  ex->with->dispatch(x, ex, a->route.x, s->expert_y);
  ch_experts_forward(x, a, s);
  ex->with->combine(x, ex, s->expert_y, a->out, a->out_acc);
}

/* Runs the experts on chunks of tokens that fit the buffers. The host downloads the record to choose the chunks. */
static void run_in_parts(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s) {
  const ch_record *all = &s->routing.record;
  CH_SCRATCH(x);
  ch_parts parts;
  ch_record part;
  ch_parts_begin(x, all, s->chunk_slots, ch_parts_max_load(s->chunk_slots, a->route.e), &parts);
  ch_record_alloc(&x->scratch, &part, all->tokens, a->route.e, s->chunk_slots);
  for (int begin = 0, end; begin < all->tokens; begin = end) {
    end = ch_counting(x) ? all->tokens : ch_parts_end(&parts, begin);
    part.tokens = end - begin;
    CH_OP(x, part, .all = all, .begin = begin, .end = end, .part = &part);
    CH_OP(x, index, .record = &part);
    run_experts(x, a, &part, begin, s);
  }
}

/* Calls the hook with the scores of all ranks' tokens. */
static void show_routing(ch_exec *x, const ch_moe_args *a, const ch_moe_saved *saved) {
  CH_SCRATCH(x);
  ch_routing shown = saved->routing;
  int64_t bytes = (int64_t)ch_moe_rows(x, a) * a->route.e * (int64_t)sizeof(real);
  if (ch_routes_sharded(x, &a->route))
    shown.scores = ch_comm_gather_in(&x->scratch, x->comm, "scores to be shown", shown.scores, bytes);
  a->hook->call(a->hook->context, x, a->layer, &a->route, &shown);
}

void ch_moe_forward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved) {
  CH_SCRATCH(x);
  a->route.routing = &saved->routing;
  plan_layer(x, a, saved);
  if (ch_router_learned(a->route.router)) ch_moe_score(x, a, saved);
  ch_route(x, &a->route);
  if (saved->chunk_slots == saved->routing.record.max_slots)
    run_experts(x, a, &saved->routing.record, 0, saved);
  else
    run_in_parts(x, a, saved);
  if (a->hook) show_routing(x, a, saved);
}

/* Computes the gradients of X Wg from dgate of this rank's tokens. If gates are scores, the rank's tokens suffice;
 * other routers first gather dgate of all tokens. */
static void router_backward(ch_exec *x, const ch_moe_args *a, ch_moe_saved *s, real CH_DEV *dgate) {
  ch_route_args route = a->route;
  ch_routing seen = s->routing;
  int64_t first = ch_moe_first_token(x, a);
  int alone = route.tokens.assignment || ch_router_gates_are_scores(route.router);
  if (alone) {
    route.n = ch_moe_rows(x, a);
    seen.record = s->dispatch.local;
    if (seen.gate_sum) seen.gate_sum += first;
  }
  seen.dscores = CH_NEW(&x->scratch, real, (int64_t)route.n * route.e);
  seen.dgate = alone ? dgate : s->dispatch.with->gather_slots(x, &s->dispatch, &seen.record, dgate);
  route.routing = &seen;
  ch_route_backward(x, &route);
  ch_moe_score_backward(x, a, s, alone ? seen.dscores : seen.dscores + first * route.e);
}

/* The steps of forward in reverse order. */
void ch_moe_backward(ch_exec *x, ch_moe_args *a, ch_moe_saved *saved) {
  CH_SCRATCH(x);
  a->route.routing = &saved->routing;
  ch_dispatch *ex = &saved->dispatch;
  real CH_DEV *dgate = CH_NEW(&x->scratch, real, ex->local.max_slots);
  if (ex->with->begin_backward(x, ex, saved->expert_y)) ch_experts_recompute(x, a, saved);
  ex->with->combine_backward(x, ex, saved->expert_y, a->dout, dgate);
  ch_experts_backward(x, a, saved);
  ex->with->dispatch_backward(x, ex, saved->expert_y, a->route.x, a->dx, dgate);
  if (a->route.router->backward)
    router_backward(x, a, saved, dgate);
  else if (a->gradients.router && !a->accumulate)
    CH_OP(x, copy, .count = (int64_t)a->route.d * a->route.e, .y = a->gradients.router);
}

int ch_parts_max_load(int slots, int e) {
  enum { MEANS = 2, MIN_SLOTS = 256 }; /* MIN_SLOTS: minimum size of a part */
  int max = MEANS * ((slots + e - 1) / e);
  return max > MIN_SLOTS ? max : MIN_SLOTS;
}

void ch_parts_begin(ch_exec *x, const ch_record *all, int slots, int max, ch_parts *p) {
  *p = (ch_parts){.slots = slots, .max = max, .tokens = all->tokens, .experts = all->experts};
  p->expert_begin = ch_download(x, all->expert_begin, ((size_t)p->experts + 1) * sizeof(int));
  p->token_begin = ch_download(x, all->token_begin, ((size_t)p->tokens + 1) * sizeof(int));
  p->token_slot = ch_download(x, all->token_slot, (size_t)all->max_slots * sizeof(int));
  p->slots_used = CH_NEW_HOST(&ch_host(x)->scratch, int, p->experts);
}

/* Adds a token's slots, in ascending order of experts, to the part; 0: one of its experts is full. */
static int take_slots(ch_parts *p, int token) {
  int fits = 1, expert = 0;
  for (int i = p->token_begin[token]; i < p->token_begin[token + 1]; i++) {
    while (p->token_slot[i] >= p->expert_begin[expert + 1]) expert++;
    fits &= ++p->slots_used[expert] <= p->max;
  }
  return fits;
}

int ch_parts_end(ch_parts *p, int begin) {
  int end = begin;
  memset(p->slots_used, 0, (size_t)p->experts * sizeof *p->slots_used);
  while (end < p->tokens && p->token_begin[end + 1] - p->token_begin[begin] <= p->slots && take_slots(p, end)) end++;
  return end;
}
