/* Which backends this build has, and what they would run on. */
#include "base/error.h"
#include "choir/backend.h"
#include "op/backend.h"

const char *choir_backend_name(int index) {
  const ch_backend *backend = ch_backend_at(index);
  return backend ? backend->name : NULL;
}

int choir_backend_device(int index, int number, char *text, size_t size) {
  const ch_backend *backend = ch_backend_at(index);
  if (!backend || !text || !size || number < 0) return 0;
  text[0] = 0;
  return backend->describe ? backend->describe(number, text, size) : 0;
}

int choir_backend_check(int index) {
  const ch_backend *backend = ch_backend_at(index);
  if (!backend) return ch_error(CHOIR_ERROR_ARGUMENT, "backend %d: there is none of that number", index);
  return backend->supports(CH_COMPUTE_FP32, 0);
}
