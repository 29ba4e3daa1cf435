/* Opens checkpoints: a run directory stands for its newest one. */
#include "cli.h"

int cli_checkpoint_open(const char *directory, const choir_run_options *options, const char *routing,
                        choir_tokenizer **tokenizer, choir_model **model) {
  if (choir_checkpoint_load(directory, options, model, tokenizer)) return cli_fail();
  cli_print_notices(choir_notices());
  return routing && choir_model_set_routing(*model, routing) ? cli_fail() : 0;
}
