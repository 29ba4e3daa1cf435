/* Loading checkpoints, and the newest one of a run that can be loaded. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/enter.h"
#include "base/error.h"
#include "base/options.h"
#include "base/threads.h"
#include "choir/tensors.h"
#include "comm/collective.h"
#include "file/checkpoints.h"
#include "file/path_status.h"
#include "file/temporary.h"
#include "file/tensors_set.h"
#include "handle/model.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "model/weights.h"

/* Options and outputs of a load. */
typedef struct load {
  const choir_model_options *options;
  choir_model **model;
  choir_tokenizer **tokenizer; /* out, or NULL */
  char *loaded;                /* [PATH_MAX] out: the directory that was loaded */
} load;

static void drop(const load *l) {
  choir_model_free(*l->model);
  *l->model = NULL;
  if (!l->tokenizer) return;
  choir_tokenizer_free(*l->tokenizer);
  *l->tokenizer = NULL;
}

static int load_parts(const load *l, const char *directory) {
  const char *path = CH_IN(directory, "config.json");
  choir_config config;
  CH_TRY(ch_checkpoint_check_files(directory));
  CH_TRY(ch_config_load(path, &config));
  if (l->tokenizer) CH_TRY(choir_tokenizer_load(CH_IN(directory, "tokenizer.model"), l->tokenizer));
  int code = ch_model_create(&config, l->options, l->model);
  if (code) return ch_error_in(code, "%s", path);
  if (l->options->shards) (*l->model)->grad_chunks = (int)l->options->shards;
  CH_TRY(ch_weights_load(&(*l->model)->net.params, &(*l->model)->x, CH_IN(directory, "model.safetensors"),
                         l->options->unchecked));
  CH_TRY(ch_weights_same_router(config.model.router.kind, CH_IN(directory, "model.safetensors"), 0));
  ch_model_weights_changed(*l->model);
  snprintf(l->loaded, PATH_MAX, "%s", directory);
  return CHOIR_OK;
}

static int load_one(const load *l, const char *directory) {
  int code = load_parts(l, directory);
  if (code) drop(l);
  return code;
}

/* Errors with advice: a file path instead of its directory, and a damaged checkpoint next to an intact one. */
static int not_a_directory(const char *path) {
  char directory[PATH_MAX];
  const char *suffix = strrchr(path, '.');
  if (suffix && !strcmp(suffix, ".gguf"))
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is a GGUF file; 'choir import %s --out DIR' makes a checkpoint of it",
                    path, path);
  ch_path_parent(path, directory, sizeof directory);
  int there;
  CH_TRY(ch_tensors_exist(CH_IN(directory, "model.safetensors"), &there));
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s: is a file; name the directory that holds the checkpoint%s%s", path,
                  there ? ": " : "", there ? directory : "");
}

static int whole(const char *directory) {
  static const char *const files[] = {"model.safetensors", "state.safetensors"};
  for (int i = 0; i < 2; i++) {
    choir_tensors *tensors;
    if (choir_tensors_load(CH_IN(directory, files[i]), 1, &tensors)) return 0;
    choir_tensors_free(tensors);
  }
  return 1;
}

/* Adds to the error about RUN/checkpoints/STEP which older checkpoint is intact and how to resume from it. */
static int name_older(int code, const char *path) {
  char run[PATH_MAX], message[1024], older[PATH_MAX];
  const char *name = strrchr(path, '/');
  int64_t *steps, step = name ? ch_checkpoint_step(name + 1) : -1;
  size_t length = name ? (size_t)(name - path) : 0, parent = strlen("/checkpoints");
  int count;
  if (step < 0 || length < parent || strncmp(name - parent, "/checkpoints", parent)) return code;
  snprintf(message, sizeof message, "%s", choir_error_message());
  snprintf(run, sizeof run, "%.*s", (int)(length - parent), path);
  if (ch_checkpoint_list(run, &steps, &count)) count = 0, steps = NULL;
  *older = 0;
  for (int i = 0; i < count && !*older; i++) {
    ch_checkpoint_path(run, steps[i], older);
    if (steps[i] >= step || !whole(older)) *older = 0;
  }
  free(steps);
  if (!*older) return ch_error(code, "%s", message);
  return ch_error(code, "%s; %s is whole, and 'choir train --resume --out %s' goes on from the newest that is", message,
                  older, run);
}

/* Errors of files, not of the caller's arguments or of the machine. */
static int files_fault(int code) {
  return code == CHOIR_ERROR_IO || code == CHOIR_ERROR_FORMAT || code == CHOIR_ERROR_NUMERIC;
}

/* Loads the newest readable checkpoint of a list. *gone: set to 1 if a checkpoint was removed after it was listed. */
static int load_listed(const load *l, const char *run, const int64_t *steps, int count, int *gone) {
  char path[PATH_MAX], first[1024] = "";
  int worst = CHOIR_ERROR_IO;
  for (int i = 0; i < count; i++) {
    ch_checkpoint_path(run, steps[i], path);
    int code = load_one(l, path);
    if (!code && i) ch_notice("%s is taken, the newest that is whole", path);
    if (!code || !files_fault(code)) return code;
    char why[1024];
    int unread = ch_is_unreadable(code), there;
    snprintf(why, sizeof why, "%s", choir_error_message());
    CH_TRY(ch_path_exists(path, &there));
    ch_error(code, "%s", why);
    if ((*gone = !there)) return code;
    if (unread) return code; /* it may be intact, so no older one replaces it */
    if (!i) worst = code, snprintf(first, sizeof first, "%s", choir_error_message());
    ch_notice("%s; passed over", choir_error_message());
  }
  if (count == 1) return ch_error(worst, "%s", first);
  return ch_error(worst, "%s: none of %d checkpoints can be read; the newest: %s", run, count, first);
}

static int load_newest(const load *l, const char *run) {
  enum { ATTEMPTS = 20 }; /* bound, for a run that saves faster than this process loads */
  int code = CHOIR_OK, gone = 1, count;
  for (int i = 0; i < ATTEMPTS && gone; i++) {
    int64_t *steps;
    gone = 0;
    CH_TRY(ch_checkpoint_list(run, &steps, &count));
    code = count ? load_listed(l, run, steps, count, &gone)
                 : ch_error(CHOIR_ERROR_IO,
                            "%s: neither a checkpoint (no model.safetensors) nor a run with checkpoints/", run);
    free(steps);
  }
  return code;
}

static int check_shards(int64_t grad_chunks) {
  enum { MAX = 1 << 20 }; /* as train.grad_chunks */
  if (grad_chunks >= 0 && grad_chunks <= MAX) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "shards is %lld: it must be 1 to %d, or 0 for those of the config",
                  (long long)grad_chunks, MAX);
}

static int load_path(const load *l, const char *path) {
  char part[PATH_MAX];
  struct stat status;
  int threads, there;
  if (snprintf(part, sizeof part, "%s/model.safetensors", path) >= (int)sizeof part)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%.100s...: the name is too long", path);
  CH_TRY(ch_threads_resolve(l->options->threads, &threads)); /* an error of threads is not an error of the checkpoint */
  CH_TRY(check_shards(l->options->shards));
  CH_TRY(ch_tensors_exist(part, &there));
  if (there) {
    int code = load_one(l, path);
    return code && files_fault(code) ? name_older(code, path) : code;
  }
  if (!stat(path, &status) && !S_ISDIR(status.st_mode)) return not_a_directory(path);
  CH_TRY(ch_path_exists(path, &there));
  if (!there) return ch_checkpoint_absent(path);
  CH_TRY(ch_checkpoint_best(path, part, &there));
  if (there) {
    int code = load_one(l, part);
    if (!code || !files_fault(code)) return code;
    ch_notice("%s; passed over", choir_error_message());
  }
  return load_newest(l, path);
}

/* The first rank resolves the path, loads the checkpoint and broadcasts its directory, because a running training may
 * save a newer one meanwhile. */
static int load_shared(const load *l, const ch_comm *comm, const char *path) {
  CH_TRY(CH_ON_FIRST(comm, load_path(l, path)));
  ch_comm_broadcast(comm, 0, l->loaded, PATH_MAX);
  CH_TRY(ch_comm_agree(comm, comm->rank ? load_one(l, l->loaded) : CHOIR_OK));
  return ch_model_same(*l->model);
}

int choir_model_load(const char *path, const choir_model_options *options, choir_model **model,
                     choir_tokenizer **tokenizer) {
  CH_ENTER(path, model);
  *model = NULL;
  if (tokenizer) *tokenizer = NULL;
  CH_OPTIONS(choir_model_options, o, options, CHOIR_MODEL_OPTIONS_INIT);
  char loaded[PATH_MAX] = "";
  const load l = {.options = &o, .model = model, .tokenizer = tokenizer, .loaded = loaded};
  const ch_comm *comm = ch_ranks_comm(o.ranks);
  int code = comm->size > 1 ? load_shared(&l, comm, path) : load_path(&l, path);
  if (code) drop(&l);
  return code;
}

int choir_checkpoint_find(const char *path, char *out, size_t size) {
  CH_ENTER(path, out);
  char found[PATH_MAX];
  CH_TRY(ch_checkpoint_resolve(path, found));
  if (strlen(found) >= size)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s: the name needs %zu bytes, there are %zu", found, strlen(found) + 1,
                    size);
  strcpy(out, found);
  return CHOIR_OK;
}
