#include "base/removed.h"

#include <stddef.h>
#include <string.h>

#include "base/error.h"

static const struct {
  const char *kind, *word, *removed_in, *last_in, *instead;
} removed[] = {
    {"routing", "adaptive", "0.6", "0.5", "take 'threshold'"},
    {"backend", "opencl", "0.6", "0.5", "take 'cpu' or 'cuda'"},
};

int ch_check_removed(const char *kind, const char *word) {
  size_t length = strcspn(word, ":");
  for (size_t i = 0; i < sizeof removed / sizeof *removed; i++)
    if (!strcmp(removed[i].kind, kind) && strlen(removed[i].word) == length && !strncmp(removed[i].word, word, length))
      return ch_error(CHOIR_ERROR_ARGUMENT, "%s '%s' was removed in %s; %s has it: %s", kind, removed[i].word,
                      removed[i].removed_in, removed[i].last_in, removed[i].instead);
  return CHOIR_OK;
}
