/* Opens checkpoints; a run directory stands for its best checkpoint, else its newest one. */
#include <limits.h>
#include <string.h>

#include "cli.h"
#include "file/path_status.h"
#include "file/run_files.h"

int cli_with_model(const char *checkpoint, choir_model_options *run, const char *routing, int tokenizer_too,
                   int (*use)(choir_model *model, const choir_tokenizer *tokenizer)) {
  choir_tokenizer *tokenizer = NULL;
  choir_model *model;
  run->ranks = cli_ranks();
  int failed = choir_model_load(checkpoint, run, &model, tokenizer_too ? &tokenizer : NULL);
  if (!failed) cli_print_notices(choir_notices());
  if (!failed && routing) failed = choir_model_set_routing(model, routing);
  int status = failed ? cli_fail() : use(model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}

int cli_rounds_weights(const choir_model_options *run) { return run->compute && !strcmp(run->compute, "q8_0"); }

int cli_data_of_run(const char *path, const char *remedy, const char **data) {
  static const char *const places[] = {
      CH_RUN_DATA, "../../" CH_RUN_DATA}; /* relative to a run directory; to a checkpoint in a run */
  int there;
  for (int i = 0; i < 2; i++) {
    char file[PATH_MAX];
    size_t size;
    int length = snprintf(file, sizeof file, "%s/%s", path, places[i]);
    if (length >= (int)sizeof file) continue;
    if (ch_regular_exists(file, &there)) return cli_fail();
    if (there) return (*data = cli_read_file(file, &size)) ? 0 : CLI_FAILED;
  }
  char found[PATH_MAX];
  if (choir_checkpoint_find(path, found, sizeof found)) return cli_fail(); /* not a run: the error says so */
  return cli_usage("%s: does not say what data it was trained on; give %s", cli_shown(path), remedy);
}
