/* A config and tokens, for the bench cases of whole models. */
#include <stdio.h>

#include "base/error.h"
#include "base/rng.h"
#include "bench/cases.h"
#include "moe/router.h"

int ch_bench_config(const ch_bench *b, choir_config *config) {
  CH_TRY(choir_config_load(b->word[0], config));
  if (!config->model.vocab_size) config->model.vocab_size = 8192;
  snprintf(config->train.compute, sizeof config->train.compute, "%s", ch_compute_names[b->compute]);
  return CHOIR_OK;
}

int ch_bench_capacity(const ch_bench *b, int key, choir_router_options *options) {
  const ch_router *router = ch_router_find(options->name);
  if (ch_router_takes(router, CH_ROUTER_TAKES(capacity_factor))) {
    if (b->value[key] > 0) options->capacity_factor = b->value[key];
    return CHOIR_OK;
  }
  if (b->value[key] == b->which->key[key].value) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "bench '%s': %s=%g, but router '%s' takes no capacity factor: leave it out",
                  b->which->name, b->which->key[key].name, b->value[key], options->name);
}

int ch_bench_tokens(ch_bench *b, int64_t count, int vocab, int32_t **tokens) {
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 0);
  CH_TRY(ch_bench_host(b, (size_t)count * sizeof **tokens, tokens));
  for (int64_t i = 0; i < count; i++) (*tokens)[i] = (int32_t)ch_rng_below(rng, (uint64_t)i, (uint64_t)vocab);
  return CHOIR_OK;
}
