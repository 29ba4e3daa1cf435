/* What choir stats and choir inspect share: options, loading, progress. */
#include "cli.h"

int cli_inspect_text(cli_inspect_options *o, const char *checkpoint,
                     int (*show)(choir_model *model, const choir_tokenizer *tokenizer)) {
  cli_progress progress;
  choir_tokenizer *tokenizer;
  choir_model *model;
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  options.compute = o->compute;
  options.backend = o->backend;
  options.threads = o->threads;
  options.unchecked = o->unchecked;
  options.ranks = cli_ranks();
  options.shards = o->shards;
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o->options.checkpoint = checkpoint;
  o->options.progress = cli_progress_sequences;
  o->options.context = &progress;
  int status = cli_checkpoint_open(checkpoint, &options, NULL, &tokenizer, &model);
  if (!status) status = show(model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}
