/* Backend "fenced", for tests: the CPU's ops on memory that nobody may touch but they. Outside of ops and copies every
 * page of it is PROT_NONE, so that whatever follows a pointer of the device on the host dies by SIGSEGV, and a handler
 * says which tensor it was. */
#ifndef CH_TESTS_FENCED_H
#define CH_TESTS_FENCED_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/machine.h"
#include "op/backend.h"

enum { FENCE_MAX = 4096, FENCE_EXIT = 86 };

/* Pieces of memory: areas that were allocated, and whatever tensors in them a test has named. */
typedef struct {
  char *base;
  size_t bytes;
  const char *name;
} fence_piece;
static fence_piece fence_area[FENCE_MAX], fence_tensor[FENCE_MAX];
static int fence_areas, fence_tensors;
static int fence_open;  /* how many ops and copies are under way, one inside the other */
static long fence_uses; /* how many there were */
static ch_ops fence_inner[2];

static void fence_set(int protection) {
  for (int i = 0; i < fence_areas; i++)
    if (mprotect(fence_area[i].base, fence_area[i].bytes, protection)) abort();
}
static void fence_enter(void) {
  fence_uses++;
  if (!fence_open++) fence_set(PROT_READ | PROT_WRITE);
}
static void fence_leave(void) {
  if (!--fence_open) fence_set(PROT_NONE);
}

/* ---- memory ---- */

static void *fence_alloc(const char *name, size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || fence_areas == FENCE_MAX) return NULL;
  fence_area[fence_areas++] = (fence_piece){p, bytes, name};
  return p;
}
static void fence_free(void *p, size_t bytes) {
  int i = 0;
  while (i < fence_areas && fence_area[i].base != p) i++;
  if (i == fence_areas || fence_area[i].bytes != bytes) abort();
  fence_area[i] = fence_area[--fence_areas];
  munmap(p, bytes);
}
static void fence_zero(void *to, size_t bytes) {
  fence_enter();
  memset(to, 0, bytes);
  fence_leave();
}
static void fence_copy(void *to, const void *from, size_t bytes) {
  fence_enter();
  memcpy(to, from, bytes);
  fence_leave();
}
static void fence_synchronise(void) {}
static const ch_memory fence_memory = {.alloc = fence_alloc,
                                       .free = fence_free,
                                       .available = ch_machine_available_memory,
                                       .zero = fence_zero,
                                       .copy = fence_copy,
                                       .upload = fence_copy,
                                       .download = fence_copy,
                                       .synchronise = fence_synchronise};

/* ---- ops ---- */

#define FENCE_OP(op, args)                               \
  static void fence_op_##op(ch_exec *x, const args *a) { \
    fence_enter();                                       \
    fence_inner[x->compute == CH_COMPUTE_BF16].op(x, a); \
    fence_leave();                                       \
  }
CH_OPS(FENCE_OP)

/* The host's word beforehand must agree with what is there. */
static void fence_checked_gemm(ch_exec *x, const ch_expert_gemm_args *a) {
  fence_enter();
  for (int i = 0; i < a->experts && !ch_counting(x); i++) {
    int rows = a->begin[i + 1] - a->begin[i];
    if ((a->load >= 0 && rows != a->load) || (a->max && rows > a->max)) {
      fprintf(stderr, "fenced: expert %d has %d rows, the host said %d, at most %d\n", i, rows, a->load, a->max);
      abort();
    }
  }
  fence_leave();
  fence_op_expert_gemm(x, a);
}

static int fence_supports(ch_compute compute, int emulate) {
  return ch_backend_find("cpu")->supports(compute, emulate);
}
static void fence_fill(ch_ops *ops, ch_compute compute) {
  ch_backend_find("cpu")->fill(&fence_inner[compute == CH_COMPUTE_BF16], compute);
#define FENCE_SET(op, args) ops->op = fence_op_##op;
  CH_OPS(FENCE_SET)
  ops->expert_gemm = fence_checked_gemm;
}
static const ch_backend fence_backend = {
    .name = "fenced", .memory = &fence_memory, .supports = fence_supports, .fill = fence_fill};

/* ---- who was it ---- */

static const fence_piece *fence_find(const fence_piece *piece, int count, const char *p) {
  for (int i = 0; i < count; i++)
    if (p >= piece[i].base && p < piece[i].base + piece[i].bytes) return &piece[i];
  return NULL;
}

/* stdio is not for signal handlers; the process ends here, whatever state it is in. */
static void fence_died(int number, siginfo_t *info, void *context) {
  const fence_piece *area = fence_find(fence_area, fence_areas, info->si_addr),
                    *tensor = fence_find(fence_tensor, fence_tensors, info->si_addr);
  (void)context;
  if (!area) {
    signal(number, SIG_DFL); /* some other fault: as ever */
    return;
  }
  fprintf(stderr, "fenced: the host touched %s: byte %zu of '%s'\n", tensor ? tensor->name : "an unnamed array",
          (size_t)((char *)info->si_addr - area->base), area->name);
  _exit(FENCE_EXIT);
}

/* For the messages. */
static inline void fence_name(const void *tensor, size_t bytes, const char *name) {
  if (fence_tensors < FENCE_MAX) fence_tensor[fence_tensors++] = (fence_piece){(char *)tensor, bytes, name};
}

/* From here on a fault says which tensor it was. To be called by each test: cmocka sets handlers of its own. */
static inline void fence_watch(void) {
  struct sigaction action = {.sa_sigaction = fence_died, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, NULL);
}

#endif
