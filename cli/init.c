/* choir init: a fresh checkpoint. */

#include "cli.h"

static struct {
  const char *out, *tokenizer;
  int64_t seed;
  int vocab_size;
  cli_list set;
} o;

static int run_init(int count, const char *const *operands) {
  choir_config config;
  choir_config_costs costs;
  choir_tokenizer *tokenizer = NULL;
  choir_model *model = NULL;
  if (choir_config_load(operands[0], &config)) return cli_fail();
  int status = cli_apply_settings(&config, &o.set);
  if (status) return status;
  if (o.tokenizer && choir_tokenizer_load(o.tokenizer, &tokenizer)) return cli_fail();
  int mask = cli_is_masked(config.train.objective); /* a token more than the tokenizer has */
  if (tokenizer) config.model.vocab_size = choir_tokenizer_vocab_size(tokenizer) + mask;
  int pieces = config.model.vocab_size;
  if (o.vocab_size) config.model.vocab_size = o.vocab_size;
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  if (tokenizer && config.model.vocab_size != pieces)
    status = cli_usage("--vocab-size %d: the tokenizer has %d pieces, and sets the vocabulary", o.vocab_size, pieces);
  else if (!config.model.vocab_size)
    status = cli_usage("%s leaves the vocabulary to the data: give --vocab-size V or --tokenizer FILE", operands[0]);
  else if (choir_model_create(&config, (uint64_t)o.seed, &options, &model) ||
           choir_model_save(model, tokenizer, o.out) || choir_config_get_costs(&config, &costs))
    status = cli_fail();
  else
    printf("%s: %s parameters from seed %lld\n", cli_shown(o.out), cli_grouped(costs.parameters), (long long)o.seed);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}

static const cli_option options[] = {
    {"out", "CHECKPOINT", CLI_NEW, &o.out, NULL, "directory to make", 1},
    {"seed", "S", CLI_INT64, &o.seed, "0", "of the random weights", 0},
    {"tokenizer", "FILE", CLI_INPUT, &o.tokenizer, NULL, "copied into the checkpoint; sets the vocabulary", 0},
    {"vocab-size", "V", CLI_INT, &o.vocab_size, NULL, "vocabulary, where the config leaves it to the data", 0},
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "change one field of the config", 0},
    {0}};

CLI_VERB(init, "init", "CONFIG", 1, 1, "make a checkpoint with fresh weights",
         "The embedding is N(0,1), matrices N(0,1/fan_in), relative position biases N(0,0.1^2), norms 1. The same seed "
         "gives the same bytes on every machine.");
