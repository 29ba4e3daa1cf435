#include "moe/route_stats_json.h"

#include "base/given.h"
#include "file/json.h"

json_t *ch_certificate_json(const choir_certificate *c) {
  if (!c->assignments) return json_null();
  return json_pack("{s:o, s:o, s:o, s:i, s:i, s:I, s:I}", "gap", ch_json_number(c->gap), "expert_before",
                   ch_json_number(c->expert_before), "token_before", ch_json_number(c->token_before), "expert_after",
                   c->expert_after, "token_after", c->token_after, "over_cap", (json_int_t)c->over_cap, "iterations",
                   (json_int_t)c->iterations);
}

/* Everything up to the histogram. */
static json_t *stats_json(const choir_route_stats *s) {
  return json_pack(
      "{s:I, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens", (json_int_t)s->tokens, "experts", s->experts,
      "capacity", (json_int_t)s->capacity, "assignments", (json_int_t)s->assignments, "dropped", (json_int_t)s->dropped,
      "aux_loss", ch_json_number(s->aux_loss), "gate_mass", ch_json_number(s->gate_mass), "load",
      ch_json_integers(s->load, s->experts), "demand", ch_json_integers(s->demand, s->experts), "histogram",
      ch_json_integers(s->histogram, s->experts + 1), "certificate", ch_certificate_json(&s->certificate));
}

int choir_route_stats_json(const choir_route_stats *stats, char **json) {
  CH_TRY(CH_GIVEN(stats, json));
  json_t *root = stats_json(stats);
  *json = ch_json_dump(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
  json_decref(root);
  return *json ? CHOIR_OK : ch_error(CHOIR_ERROR_MEMORY, "no memory for the statistics as JSON");
}
