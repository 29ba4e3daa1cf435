/* The list of optimizers. A new optimizer needs one file and one row of OPTIMIZERS. */
#include "optim/optim.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"

#define OPTIMIZERS(row) row(adafactor) row(adamw)

#define DECLARE(name) extern const ch_optim ch_optim_##name;
#define POINTER(name) &ch_optim_##name,
#define NAME(name) #name,
OPTIMIZERS(DECLARE)
const ch_optim *const ch_optims[] = {OPTIMIZERS(POINTER) NULL};
const char *const ch_optim_names[] = {OPTIMIZERS(NAME) NULL};
const char *const ch_train_field_names[] = {
#define FIELD(kind, name, ...) #name,
#include "config/train.def"
#undef FIELD
    NULL};

const ch_optim *ch_optim_find(const char *name) {
  char nearest[128], list[256];
  for (int i = 0; ch_optims[i]; i++)
    if (!strcmp(ch_optims[i]->name, name)) return ch_optims[i];
  ch_error(CHOIR_ERROR_ARGUMENT, "there is no optimizer '%s'%s (optimizers: %s)", name,
           ch_did_you_mean(nearest, sizeof nearest, name, ch_optim_names),
           ch_word_list(list, sizeof list, ch_optim_names));
  return NULL;
}
