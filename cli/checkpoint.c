/* Finds files of checkpoints: a run directory stands for its newest one. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

/* The number of the newest checkpoint below run/checkpoints as it is spelt, or 0. */
static int newest(const char *run, char *name, size_t size) {
  char path[4096];
  long long best = -1;
  snprintf(path, sizeof path, "%s/checkpoints", run);
  DIR *directory = opendir(path);
  if (!directory) return 0;
  for (struct dirent *entry; (entry = readdir(directory));) {
    char *end;
    long long step = strtoll(entry->d_name, &end, 10);
    if (end == entry->d_name || *end || step <= best) continue;
    best = step;
    snprintf(name, size, "%s", entry->d_name);
  }
  closedir(directory);
  return best >= 0;
}

int cli_checkpoint_file(const char *directory, const char *name, char *path, size_t size) {
  char step[256];
  snprintf(path, size, "%s/%s", directory, name);
  if (access(path, R_OK) && newest(directory, step, sizeof step))
    snprintf(path, size, "%s/checkpoints/%s/%s", directory, step, name);
  return access(path, R_OK) ? cli_fail_with("%s: has no %s, nor has a checkpoint in it", directory, name) : 0;
}

int cli_checkpoint_open(const char *directory, const choir_run_options *options, const char *routing,
                        choir_tokenizer **tokenizer, choir_model **model) {
  char path[4096];
  *tokenizer = NULL;
  *model = NULL;
  int status = cli_checkpoint_file(directory, "tokenizer.model", path, sizeof path);
  if (status) return status;
  if (choir_tokenizer_load(path, tokenizer) || choir_model_load(directory, options, model)) return cli_fail();
  return routing && choir_model_set_routing(*model, routing) ? cli_fail() : 0;
}
