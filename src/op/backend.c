/* The backends of this build, and executors that run on one (op/exec.h is included by every op, so it does not depend
 * on a backend). */
#include "op/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/enter.h"
#include "base/removed.h"
#include "base/text.h"
#include "base/threads.h"
#include "choir/backend.h"
#include "comm/collective.h"

/* One row per backend; its folder defines ch_backend_NAME. The first row is the default. */
#ifdef CHOIR_DOUBLE
#define CH_BACKENDS(row) row(reference)
#else
#define CH_BACKENDS(row) row(cpu) row(reference) row(cuda)
#endif

#define DECLARE(name) extern const ch_backend ch_backend_##name;
#define POINTER(name) &ch_backend_##name,
CH_BACKENDS(DECLARE)

enum { MAX_BACKENDS = 16 };
#define NAME(name) #name,
static const ch_backend *backends[MAX_BACKENDS + 1] = {CH_BACKENDS(POINTER)}; /* NULL-terminated */
static const char *names[MAX_BACKENDS + 1] = {CH_BACKENDS(NAME)};             /* of them */

/* The backend of a name, which may end in ":DEVICE" ("cuda:1"); NULL: unknown. */
static const ch_backend *known(const char *name) {
  size_t length = strcspn(name, ":");
  for (int i = 0; backends[i]; i++)
    if (strlen(backends[i]->name) == length && !strncmp(backends[i]->name, name, length)) return backends[i];
  return NULL;
}

/* "cuda:1": the device number after the colon; -1 (any) without one. */
static const ch_backend *with_device(const ch_backend *backend, const char *name) {
  const char *colon = strchr(name, ':');
  char *end = NULL;
  if (!colon) {
    if (backend->device) *backend->device = -1;
    return backend;
  }
  long number = strtol(colon + 1, &end, 10);
  if (!backend->device || end == colon + 1 || *end || number < 0 || number > 1 << 16) {
    ch_error(CHOIR_ERROR_ARGUMENT, "backend '%.40s': %s", name,
             backend->device ? "the number of a device must follow the colon, as in 'cuda:1'"
                             : "it has no devices to choose from");
    return NULL;
  }
  *backend->device = (int)number;
  return backend;
}

int ch_backend_register(const ch_backend *backend) {
  int count = 0;
  while (backends[count]) count++;
  if (known(backend->name)) return ch_error(CHOIR_ERROR_ARGUMENT, "backend '%s' is there already", backend->name);
  if (count == MAX_BACKENDS)
    return ch_error(CHOIR_ERROR_ARGUMENT, "backend '%s': %d backends are there, there is room for no more",
                    backend->name, count);
  backends[count] = backend;
  names[count] = backend->name;
  return CHOIR_OK;
}

const ch_backend *ch_backend_find(const char *name) {
  char list[256];
  const ch_backend *found = known(name);
  if (found) return with_device(found, name);
  if (ch_check_removed("backend", name)) return NULL;
  ch_error(CHOIR_ERROR_ARGUMENT, "backend '%.40s' is not in this build; take one that is: %s", name,
           ch_word_list(list, sizeof list, names));
  return NULL;
}

int ch_backend_peak(const char *name, int threads, double seconds, int memory, ch_peak *peak) {
  const ch_backend *backend = ch_backend_find(name);
  if (!backend) return CHOIR_ERROR_ARGUMENT;
  if (!(seconds > 0)) return ch_error(CHOIR_ERROR_ARGUMENT, "seconds is %g: it must be above 0", seconds);
  CH_TRY(ch_threads_resolve(threads, &threads));
  CH_TRY(ch_threads_check(threads));
  CH_TRY(backend->supports(CH_COMPUTE_FP32, 0));
  *peak = (ch_peak){.threads = threads, .isa = "unknown", .bf16_unit = "unknown"};
  return backend->peak ? backend->peak(threads, seconds, memory, peak) : CHOIR_OK;
}

const ch_backend *ch_backend_of_host(void) {
  int i = 0;
  while (!backends[i]->memory->host) i++; /* the reference, if no other */
  return backends[i];
}

const char *const ch_compute_names[] = {
    [CH_COMPUTE_FP32] = "fp32", [CH_COMPUTE_BF16] = "bf16", [CH_COMPUTE_Q8_0] = "q8_0", NULL};
const char *const ch_training_names[] = {[CH_COMPUTE_FP32] = "fp32", [CH_COMPUTE_BF16] = "bf16", NULL};

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

/* Refuses a table with a missing op, because a call of the op would crash. */
static int check_filled(const ch_backend *b, const ch_ops *ops) {
#define CHECK(op, args) \
  if (!ops->op) return ch_error(CHOIR_ERROR_UNSUPPORTED, "backend '%s': its `fill` sets no op '%s'", b->name, #op);
  if (b->memory->host) {
    CH_OPS(CHECK)
  } else {
    CH_DEVICE_OPS(CHECK)
  }
  return CHOIR_OK;
}

static int set_up_exec(ch_exec *x, const ch_backend *b, ch_compute compute, int emulate_bf16, int threads) {
  CH_TRY(b->supports(compute, emulate_bf16));
  ch_ops *ops;
  CH_TRY(CH_ALLOC(&ops, 1, "the table of ops"));
  b->fill(ops, compute);
  ops->name = b->name;
  x->ops = ops;
  x->memory = b->memory;
  CH_TRY(check_filled(b, ops));
  x->compute = compute;
  x->threads = threads;
  x->comm = &ch_comm_single;
  ch_arena_init(&x->tape, "activations", b->memory);
  ch_arena_init(&x->scratch, "scratch", b->memory);
  return ch_grid_make(x->comm, 1, 1, &x->grid);
}

/* Solvers on the host always compute in fp32. */
static int set_up_host(ch_exec *x) {
  CH_TRY(CH_ALLOC(&x->host, 1, "an executor"));
  CH_TRY(set_up_exec(x->host, ch_backend_of_host(), CH_COMPUTE_FP32, 0, x->threads));
  x->host->tape.name = "activations on the host";
  x->host->scratch.name = "scratch on the host";
  return CHOIR_OK;
}

int ch_exec_init(ch_exec *x, const char *backend, ch_compute compute, int emulate_bf16, int threads) {
  *x = (ch_exec){0};
  const ch_backend *b = ch_backend_find(backend);
  if (!b) return CHOIR_ERROR_ARGUMENT;
  CH_TRY(ch_threads_resolve(threads, &threads));
  int code = set_up_exec(x, b, compute, emulate_bf16, threads);
  if (!code && !b->memory->host) code = set_up_host(x);
  if (code) ch_exec_free(x);
  return code;
}

int ch_exec_commit(ch_exec *x) {
  if (x->host) CH_TRY(ch_exec_commit(x->host));
  CH_TRY(ch_arena_commit(&x->tape));
  CH_TRY(ch_arena_commit(&x->scratch));
  return ch_threads_check(x->threads); /* parallel regions start here */
}

void ch_exec_clear(ch_exec *x) {
  if (x->host) ch_exec_clear(x->host);
  ch_arena_free(&x->tape);
  ch_arena_free(&x->scratch);
}

void ch_exec_free(ch_exec *x) {
  if (x->host) {
    ch_exec_free(x->host);
    free(x->host);
    x->host = NULL;
  }
  if (x->ops) ch_exec_clear(x);
  free((void *)x->ops);
  *x = (ch_exec){0};
}

const void *ch_download(ch_exec *x, const void CH_DEV *from, size_t bytes) {
  if (x->memory->host) return CH_AS_HOST(const void, from);
  void *to = CH_NEW_HOST(&x->host->scratch, char, bytes);
  if (!ch_counting(x)) x->memory->download(to, from, bytes);
  return to;
}

void ch_gather_shares(const ch_exec *x, const ch_comm *comm, const char *what, void CH_DEV *all, int64_t count,
                      int64_t bytes) {
  if (!ch_counting(x)) ch_comm_gather_shares(comm, what, CH_HOST_OR_DEVICE(all), count, bytes);
}

void ch_exec_refuse(ch_exec *x, int code) {
  if (x->refused) return;
  x->refused = code;
  snprintf(x->refusal, sizeof x->refusal, "%s", choir_error_message());
}

int ch_exec_refused(const ch_exec *x) { return x->refused || (x->host && x->host->refused); }

int ch_exec_check(ch_exec *x) {
  ch_exec *host = ch_host(x);
  int refused = host->refused;
  host->refused = 0;
  if (refused) return ch_error(refused, "%s", host->refusal);
  return ch_device_check(x);
}

const char *const *choir_backend_names(void) { return names; }

int choir_backend_get_device(const char *name, int number, char *text, size_t size) {
  CH_ENTER(name, text);
  const ch_backend *backend = known(name);
  if (size) text[0] = 0;
  if (size && number >= 0 && backend && backend->describe && backend->describe(number, text, size)) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_ARGUMENT, "backend '%.40s' has no device %d", name, number);
}

int choir_backend_check(const char *name) {
  CH_ENTER(name);
  const ch_backend *backend = known(name);
  if (!backend) ch_backend_find(name); /* its error lists the backends */
  return !backend ? CHOIR_ERROR_ARGUMENT : backend->supports(CH_COMPUTE_FP32, 0);
}
