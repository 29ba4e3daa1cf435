#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "op/op.h"

const ch_backend *ch_backend_find(const char *name) {
  for (int i = 0; ch_backends[i]; i++)
    if (!strcmp(ch_backends[i]->name, name)) return ch_backends[i];
  char list[256] = "";
  for (int i = 0; ch_backends[i]; i++) {
    strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
    strncat(list, ch_backends[i]->name, sizeof list - strlen(list) - 1);
  }
  ch_error(CHOIR_ERROR_ARGUMENT, "backend '%s' is not in this build; it has: %s", name, list);
  return NULL;
}

const char *const ch_compute_names[] = {[CH_COMPUTE_FP32] = "fp32", [CH_COMPUTE_BF16] = "bf16", NULL};

int ch_compute_find(const char *name, ch_compute *compute) {
  char list[64];
  for (int i = 0; ch_compute_names[i]; i++)
    if (!strcmp(name, ch_compute_names[i])) {
      *compute = (ch_compute)i;
      return CHOIR_OK;
    }
  return ch_error(CHOIR_ERROR_ARGUMENT, "compute '%s' is not known; known are: %s", name,
                  ch_word_list(list, sizeof list, ch_compute_names));
}

int ch_exec_init(ch_exec *x, const char *backend, ch_compute compute, int emulate_bf16, int threads) {
  *x = (ch_exec){0};
  const ch_backend *b = ch_backend_find(backend);
  if (!b) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_threads_resolve(threads, &threads));
  CH_TRY(b->supports(compute, emulate_bf16));
  ch_ops *ops = calloc(1, sizeof *ops);
  if (!ops) return ch_error(CHOIR_ERROR_MEMORY, "no memory for the table of ops");
  b->fill(ops, compute);
  ops->name = b->name;
  x->ops = ops;
  x->compute = compute;
  x->threads = threads;
  ch_arena_init(&x->tape, "activations");
  ch_arena_init(&x->scratch, "scratch");
  return CHOIR_OK;
}

/* oneDNN uses the room for the code that it generates without a look whether it got it: some 20 MiB, at the first
 * product. */
static const size_t CODE_BYTES = (size_t)40 << 20;

int ch_exec_commit(ch_exec *x) {
  CH_TRY(ch_arena_commit(&x->tape));
  CH_TRY(ch_arena_commit(&x->scratch));
  CH_TRY(ch_threads_check(x->threads)); /* from here on there are parallel regions */
  return ch_arena_spare(CODE_BYTES);
}

void ch_exec_free(ch_exec *x) {
  ch_arena_free(&x->tape);
  ch_arena_free(&x->scratch);
  free((void *)x->ops);
  *x = (ch_exec){0};
}
