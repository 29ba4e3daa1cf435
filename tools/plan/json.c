/* A plan as JSON, for programs and for its page. */
#include "file/json.h"

#include <stdio.h>

#include "plan/plan.h"

const char ch_plan_basis[] = "estimates by formulas, no measurements (docs/planning.md)";

const char *ch_plan_command(const ch_plan_layout *l) {
  static char text[128];
  int used = snprintf(text, sizeof text, "choir train");
  int bare =
      l->hidden == 1 && !l->dense_sharded && !l->chosen; /* without options, training would choose another layout */
  if (l->replicas > 1 || bare) used += snprintf(text + used, sizeof text - (size_t)used, " --replicas %d", l->replicas);
  if (l->hidden > 1) used += snprintf(text + used, sizeof text - (size_t)used, " --hidden %d", l->hidden);
  if (l->dense_sharded) snprintf(text + used, sizeof text - (size_t)used, " --shard-dense");
  return text;
}

static json_t *levels_json(const ch_cluster *cluster, const double *bytes) {
  json_t *object = json_object();
  for (int i = 0; i < cluster->levels; i++) ch_json_put(object, cluster->level[i].name, json_real(bytes[i]));
  return object;
}

json_t *ch_plan_about_json(const ch_plan *plan) {
  const ch_cluster *c = &plan->cluster;
  json_t *levels = json_array();
  for (int i = 0; i < c->levels; i++) ch_json_add(levels, json_string(c->level[i].name));
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:I, s:i, s:b, s:I, s:I, s:f, s:f, s:f, s:f, s:s, s:s}",
                   "event", "plan", "basis", ch_plan_basis, "config", plan->config.model.name, "cluster", c->name,
                   "notes", c->notes, "ranks", plan->ranks, "levels", levels, "tokens", (json_int_t)plan->tokens,
                   "grad_chunks", plan->config.train.grad_chunks, "grad_chunks_set", plan->shards_set, "parameters",
                   (json_int_t)plan->costs.parameters, "active_parameters", (json_int_t)plan->costs.active_parameters,
                   "train_flops_per_token", plan->costs.train_flops_per_token, "peak_gflops", plan->peak / 1e9,
                   "memory", c->memory, "price_per_rank_hour", c->price, "currency", c->currency, "assumed",
                   plan->assumed);
}

static json_t *part_json(const ch_cluster *cluster, const ch_plan_part *p) {
  json_t *row =
      json_pack("{s:s, s:f, s:s, s:b}", "name", p->name, "seconds", p->seconds, "limit", p->limit, "sent", p->sent);
  if (!p->sent) return row;
  ch_json_put(row, "bytes", json_real(p->bytes));
  ch_json_put(row, "level_bytes", levels_json(cluster, p->level_bytes));
  return row;
}

json_t *ch_plan_layout_json(const ch_plan *plan, const ch_plan_layout *l) {
  const ch_cluster *cluster = &plan->cluster;
  json_t *row = json_pack("{s:s, s:i, s:i, s:i, s:s, s:b, s:s}", "event", *l->refused ? "refused" : "layout",
                          "replicas", l->replicas, "experts", l->experts, "hidden", l->hidden, "dense",
                          l->dense_sharded ? "sharded" : "whole", "chosen", l->chosen, "mark", ch_plan_command(l));
  json_t *memory = json_object(), *parts = json_array();
  for (int i = 0; i < l->purposes; i++) ch_json_put(memory, l->memory[i].name, json_integer(l->memory[i].bytes));
  for (int i = 0; i < l->parts; i++) ch_json_add(parts, part_json(cluster, &l->part[i]));
  ch_json_put(row, "memory", memory);
  ch_json_put(row, "bytes", json_integer(l->bytes));
  if (*l->refused) {
    json_decref(parts);
    ch_json_put(row, "refused", json_string(l->refused));
    return row;
  }
  ch_json_put(row, "parts", parts);
  ch_json_put(row, "sent", json_real(l->sent));
  ch_json_put(row, "level_bytes", levels_json(cluster, l->level_bytes));
  ch_json_put(row, "seconds", json_real(l->seconds));
  ch_json_put(row, "seconds_overlapped", json_real(l->overlapped));
  ch_json_put(row, "tokens_per_second", json_real(l->tokens_per_second));
  ch_json_put(row, "share", json_real(l->share));
  ch_json_put(row, "cost_per_billion_tokens", l->cost > 0 ? json_real(l->cost) : json_null());
  ch_json_put(row, "bound", json_string(l->bound));
  return row;
}
