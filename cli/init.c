/* choir init: makes a new checkpoint. */

#include "cli.h"

static struct {
  const char *out, *tokenizer;
  int64_t seed;
  int vocab_size;
  cli_list set;
} o;

/* Sets the vocabulary size: the given one, or the tokenizer's, plus one if the model is trained by masking. */
static int set_vocabulary(choir_config *config, const choir_tokenizer *tokenizer, const char *name) {
  int pieces = tokenizer ? choir_tokenizer_vocab_size(tokenizer) + cli_is_masked(cli_field(config, "train.objective"))
                         : cli_count_of(config, "model.vocab_size");
  if (tokenizer && o.vocab_size && o.vocab_size != pieces)
    return cli_usage("--vocab-size %d: the tokenizer has %d pieces, and sets the vocabulary", o.vocab_size, pieces);
  if (!pieces && !o.vocab_size)
    return cli_usage("%s leaves the vocabulary to the data: give --vocab-size V or --tokenizer FILE", name);
  cli_vocabulary(config, o.vocab_size ? o.vocab_size : pieces);
  return 0;
}

static int make(const choir_config *config, const choir_tokenizer *tokenizer) {
  choir_config_costs costs;
  choir_model *model = NULL;
  choir_model_options options = CHOIR_MODEL_OPTIONS_INIT;
  int code = choir_model_create(config, (uint64_t)o.seed, &options, &model);
  if (!code) code = choir_model_save(model, tokenizer, o.out);
  if (!code) code = choir_config_get_costs(config, &costs);
  choir_model_free(model);
  if (code) return cli_fail();
  printf("%s: %s parameters from seed %lld\n", cli_shown(o.out), cli_grouped(costs.parameters), (long long)o.seed);
  return 0;
}

static int run_init(int count, const char *const *operands) {
  choir_config *config;
  choir_tokenizer *tokenizer = NULL;
  if (choir_config_load(operands[0], &config)) return cli_fail();
  int status = cli_apply_settings(config, &o.set);
  if (!status && o.tokenizer && choir_tokenizer_load(o.tokenizer, &tokenizer)) status = cli_fail();
  if (!status) status = set_vocabulary(config, tokenizer, operands[0]);
  if (!status) status = make(config, tokenizer);
  choir_tokenizer_free(tokenizer);
  choir_config_free(config);
  return status;
}

static const cli_option options[] = {
    {"out", "CHECKPOINT", CLI_NEW, &o.out, NULL, "checkpoint directory to make", 1},
    {"seed", "S", CLI_INT64, &o.seed, "0", "seed of the random weights", 0},
    {"tokenizer", "FILE", CLI_INPUT, &o.tokenizer, NULL,
     "tokenizer file to copy into the checkpoint; it also sets the vocabulary size", 0},
    {"vocab-size", "V", CLI_INT, &o.vocab_size, NULL, "vocabulary size, if the config leaves it to the data", 0},
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "set a field of the config, as in choir train", 0},
    {0}};

CLI_VERB(init, "init", "CONFIG", 1, 1, "make a checkpoint with random weights",
         "The embedding is drawn from N(0,1), matrices from N(0,1/fan_in), and relative position biases from "
         "N(0,0.1^2); norms are 1. A seed gives the same bytes on every machine.");
