/* What choir stats and choir inspect share: options, loading, progress. */
#include "cli.h"

int cli_inspect_text(cli_inspect_options *o, const char *checkpoint,
                     int (*show)(choir_model *model, const choir_tokenizer *tokenizer)) {
  cli_progress progress;
  choir_tokenizer *tokenizer;
  choir_model *model;
  o->run.ranks = cli_ranks();
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o->options.checkpoint = checkpoint;
  o->options.progress = cli_progress_sequences;
  o->options.context = &progress;
  int status = cli_checkpoint_open(checkpoint, &o->run, NULL, &tokenizer, &model);
  if (!status) status = show(model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}
