/* Models whose weights are a pickle, which choir does not read: pickles can run code. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "export/import.h"
#include "file/path_status.h"
#include "file/temporary.h"
#include "file/tensors_set.h"

#define PICKLED "pytorch_model"

/* Files of weights written by torch.save are pickles, which are programs for Python. Those of pytorch_model are
 * preferred, then the first by name; files of a trainer are not models. */
typedef struct pickle {
  char name[NAME_MAX + 1];
  const char *pattern; /* pattern for such names */
  int standard;        /* pytorch_model.bin, or its parts */
} pickle;

/* The glob pattern for a pickle's name, by its suffix; NULL: not a model file. */
static const char *pickle_pattern(const char *name) {
  static const char *const patterns[] = {"*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt"};
  static const char *const others[] = {"training_args.", "optimizer.", "scheduler.", "scaler.", "rng_state"};
  const char *end = strrchr(name, '.');
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (!strncmp(name, others[i], strlen(others[i]))) return NULL;
  for (size_t i = 0; end && i < sizeof patterns / sizeof *patterns; i++)
    if (!strcmp(end, patterns[i] + 1)) return patterns[i];
  return NULL;
}

static int take_pickle(void *context, const char *name) {
  pickle *p = context;
  const char *pattern = pickle_pattern(name);
  int standard = !strncmp(name, PICKLED, strlen(PICKLED));
  if (!pattern || standard < p->standard) return CHOIR_OK;
  if (*p->name && standard == p->standard && strcmp(name, p->name) > 0) return CHOIR_OK;
  snprintf(p->name, sizeof p->name, "%s", name);
  p->pattern = pattern, p->standard = standard;
  return CHOIR_OK;
}

/* The suggested command names only the folder, because names of its files could have special meaning in a shell. */
static int refuse_pickle(const char *path, const pickle *p) {
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "%s: choir reads no pickles, which can run code; make safetensors of it, in its folder: python3 -c "
                  "'import glob, torch; from safetensors.torch import save_file; save_file({k: v.contiguous().clone() "
                  "for f in glob.glob(\"%s\") for k, v in torch.load(f, map_location=\"cpu\", "
                  "weights_only=True).items()}, \"model.safetensors\")'",
                  path, p->standard ? PICKLED "*.bin" : p->pattern);
}

int ch_import_refuse_pickle(const char *from) {
  pickle p = {0};
  const char *slash = strrchr(from, '/');
  int there, folder;
  take_pickle(&p, slash ? slash + 1 : from);
  if (!*p.name) return CHOIR_OK;
  CH_TRY(ch_path_exists(from, &there));
  CH_TRY(ch_path_exists(CH_IN(from, "."), &folder));
  return there && !folder ? refuse_pickle(from, &p) : CHOIR_OK;
}

int ch_import_refuse_pickled_folder(const char *folder, const char *weights) {
  pickle p = {0};
  int there;
  CH_TRY(ch_tensors_exist(weights, &there));
  if (there) return CHOIR_OK;
  CH_TRY(ch_list(folder, take_pickle, &p));
  return *p.name ? refuse_pickle(CH_IN(folder, p.name), &p) : CHOIR_OK;
}
