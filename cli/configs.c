/* choir configs: the configs that choir brings with it. */
#include "cli.h"

static int run_configs(int count, const char *const *operands) {
  const char *const *name = choir_config_names();
  printf("%-14s %10s %10s  %s\n", "name", "parameters", "active", "layers, width, experts, tokens a step");
  for (; *name; name++) {
    choir_config *config;
    choir_config_costs costs;
    if (choir_config_load(*name, &config)) return cli_fail();
    int assumed = cli_vocabulary(config, 0);
    if (choir_config_get_costs(config, &costs)) return cli_fail();
    printf("%-14s %10s %10s  L=%d d=%d e=%d, %s%s\n", *name, cli_count((double)costs.parameters),
           cli_count((double)costs.active_parameters), cli_count_of(config, "model.layers"),
           cli_count_of(config, "model.d_model"), cli_count_of(config, "model.experts"),
           cli_grouped((int64_t)choir_config_number(config, "train.batch_sequences") *
                       cli_count_of(config, "train.sequence_length") * cli_count_of(config, "train.accumulate")),
           assumed ? "; with a vocabulary of 32,000" : "");
    choir_config_free(config);
  }
  return 0;
}

static const cli_option options[] = {{0}};

CLI_VERB(
    configs, "configs", "", 0, 0, "list the configs that choir brings with it",
    "Their names stand for files wherever a config is wanted: choir train --config nano. 'choir info NAME' says more.");
