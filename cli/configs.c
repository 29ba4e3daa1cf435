/* choir configs: the built-in configs. */
#include "cli.h"

static int run_configs(int count, const char *const *operands) {
  const char *const *name = choir_config_names();
  cli_table table;
  int some = 0;
  cli_table_begin(&table, 0, "name|parameters>|active>|layers>|width>|experts>|tokens per step>");
  for (; *name; name++) {
    choir_config *config;
    choir_config_costs costs;
    if (choir_config_load(*name, &config)) return cli_fail();
    int assumed = cli_vocabulary(config, 0);
    if (choir_config_get_costs(config, &costs)) return cli_fail();
    cli_cell(&table, "%s%s", *name, assumed ? "*" : "");
    cli_cell(&table, "%s", cli_count((double)costs.parameters));
    cli_cell(&table, "%s", cli_count((double)costs.active_parameters));
    cli_cell(&table, "%d", cli_count_of(config, "model.layers"));
    cli_cell(&table, "%d", cli_count_of(config, "model.d_model"));
    cli_cell(&table, "%d", cli_count_of(config, "model.experts"));
    cli_cell(&table, "%s",
             cli_grouped((int64_t)choir_config_number(config, "train.batch_sequences") *
                         cli_count_of(config, "train.sequence_length") * cli_count_of(config, "train.accumulate")));
    some |= assumed;
    choir_config_free(config);
  }
  int status = cli_table_end(&table);
  if (some) cli_print(3, "*: with a vocabulary of 32,000; the config takes the size of the data's tokenizer");
  return status;
}

static const cli_option options[] = {{0}};

CLI_VERB(configs, "configs", "", 0, 0, "list the built-in configs",
         "A name stands for a file wherever a config is expected: choir train --config nano. 'choir info NAME' shows "
         "its size and cost.");
