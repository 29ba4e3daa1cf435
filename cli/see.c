/* What choir stats and choir inspect share: options, loading, progress. */
#include "cli.h"

static int show_progress(void *context, int64_t done, int64_t total) {
  cli_progress *progress = context;
  if (cli_progress_due(progress))
    cli_progress_line(progress, "%lld of %lld sequences, %s so far", (long long)done, (long long)total,
                      cli_duration(cli_seconds() - progress->started));
  if (done >= total) cli_progress_clear(progress);
  return cli_stop_requested();
}

int cli_see(cli_seeing *o, const char *checkpoint, int (*show)(choir_model *model, const choir_tokenizer *tokenizer)) {
  char path[4096];
  cli_progress progress;
  choir_tokenizer *tokenizer = NULL;
  choir_model *model = NULL;
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  options.compute = o->compute;
  options.threads = o->threads;
  int status = cli_checkpoint_file(checkpoint, "tokenizer.model", path, sizeof path);
  if (status) return status;
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o->options.checkpoint = checkpoint;
  o->options.progress = show_progress;
  o->options.context = &progress;
  if (choir_tokenizer_load(path, &tokenizer) || choir_model_load(checkpoint, &options, &model))
    status = cli_fail();
  else
    status = show(model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}
