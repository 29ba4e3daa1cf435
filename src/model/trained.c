/* The version of the plug-in router that trained a checkpoint. Another version may route differently, so versions are
 * compared when a checkpoint is loaded. */
#include <stdio.h>
#include <string.h>

#include "model/weights.h"
#include "moe/plugin.h"

static int trained_by(const char *path, char *version) {
  choir_tensors *file;
  CH_TRY(choir_tensors_load(path, 0, &file));
  const char *kept = choir_tensors_metadata(file, CH_TRAINED_BY_KEY);
  snprintf(version, CHOIR_NAME_BYTES, "%s", kept ? kept : "");
  choir_tensors_free(file);
  return CHOIR_OK;
}

int ch_weights_same_router(const ch_router *router, const char *path, int must) {
  const ch_plugin *p = ch_plugin_of(router);
  char kept[CHOIR_NAME_BYTES], now[1024];
  if (!p) return CHOIR_OK;
  CH_TRY(trained_by(path, kept));
  const char *version = p->given.version, *file = p->given.file;
  if (!strcmp(kept, version)) return CHOIR_OK;
  if (!*kept) {
    ch_notice("%s: does not say by which version of router '%s' it was trained: it cannot be compared", path,
              p->given.name);
    return CHOIR_OK;
  }
  snprintf(now, sizeof now, "%s: was trained by router '%s' of version %s, and that of %.500s is %s", path,
           p->given.name, kept, *file ? file : "the program", *version ? version : "of none");
  if (!must) return ch_notice("%s", now), CHOIR_OK;
  return ch_error(
      CHOIR_ERROR_ARGUMENT,
      "%s: the run would go on by another rule. Put the file of then back; or, if this one is to go on, put "
      "version=\"%s\" into its definition",
      now, kept);
}
