// The kernels' text as C++: what CUDA adds to the language is a few names here. Items of a group are fibers; at a
// barrier the next one goes on, upwards and downwards in turns, so that a missing barrier shows in the results.
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "fake.h"

#define __shared__ static
#define __device__
#define __global__

struct place {
  unsigned x;
};
struct uint4 {
  unsigned x, y, z, w;
};
static place threadIdx, blockIdx, gridDim;
static void __syncthreads();
static inline int atomicAdd(int *p, int more) {
  int before = *p;
  *p += more;
  return before;
}
template <typename To, typename From>
static inline To same_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int x) { return same_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// In the order of CMakeLists.txt.
// clang-format off
#include "device/kernels/prelude.cl.h"
#include "device/kernels/args.h"
#include "device/kernels/common.cl.h"
#include "device/kernels/rows.cl.h"
#include "device/kernels/elements.cl.h"
#include "device/kernels/product.cl.h"
#include "device/kernels/attention.cl.h"
#include "device/kernels/head.cl.h"
#include "device/kernels/optim.cl.h"
#include "device/kernels/routing.cl.h"
#include "device/kernels/gates.cl.h"
#include "device/kernels/record.cl.h"
// clang-format on

// ---- the table ----

struct entry {
  const char *name;
  int pointers;
  size_t bytes;
  void (*run)(const void *args);
};
#define COUNT(field) +1
#define NOT_COUNTED(type, field)
#define ENTRY(kernel)                                                     \
  {#kernel, 0 kernel##_fields(COUNT, NOT_COUNTED), sizeof(kernel##_args), \
   [](const void *args) { kernel(*(const kernel##_args *)args); }},
static const entry entries[] = {KERNELS(ENTRY)};
const int fake_kernels = sizeof entries / sizeof *entries;
const char *fake_kernel_name(int kernel) { return entries[kernel].name; }
int fake_kernel(const char *name) {
  for (int i = 0; i < fake_kernels; i++)
    if (!strcmp(entries[i].name, name)) return i;
  return -1;
}

// ---- fibers ----

enum { MOST_ITEMS = 1024, STACK = (16 << 10) + 576 };  // no power of two: stacks would share the lines of a cache
static struct fiber {
  jmp_buf at;
  int begun, done;
} fibers[MOST_ITEMS];
static jmp_buf home;
static ucontext_t began;
static char *stacks;
static const entry *running;
static const void *arguments;

static void go_home() {
  int self = (int)threadIdx.x;
  if (!_setjmp(fibers[self].at)) _longjmp(home, 1);
}
static void __syncthreads() { go_home(); }

// A fiber lives as long as the process, and runs kernel after kernel.
static void live() {
  for (;;) {
    running->run(arguments);
    fibers[threadIdx.x].done = 1;
    go_home();
  }
}

static void resume(int item) {
  fiber *f = &fibers[item];
  threadIdx.x = (unsigned)item;
  if (_setjmp(home)) return;
  if (f->begun) _longjmp(f->at, 1);
  f->begun = 1;
  static ucontext_t context;  // entered once, and never left the way it came
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + (size_t)item * STACK;
  context.uc_stack.ss_size = STACK;
  context.uc_link = &began;
  makecontext(&context, live, 0);
  setcontext(&context);
}

static void run_group(int items) {
  static int downwards;
  int left = items;
  for (int i = 0; i < items; i++) fibers[i].done = 0;
  while (left) {
    int ended = 0;
    downwards = !downwards;
    for (int i = 0; i < items; i++) {
      int item = downwards ? items - 1 - i : i;
      resume(item);
      ended += fibers[item].done;
    }
    if (ended && ended < items)
      fake_wrong("%s: %d of %d items wait at a barrier that the others never reach", running->name, items - ended,
                 items);
    left -= ended;
  }
}

void fake_run(int kernel, long groups, int items, const void *args) {
  static unsigned char copy[1024];
  running = &entries[kernel];
  memcpy(copy, args, running->bytes);
  for (int i = 0; i < running->pointers; i++) {
    void **field = (void **)(void *)copy + i;
    *field = fake_bytes(*field, 1, running->name);
  }
  arguments = copy;
  if (!stacks)
    stacks = (char *)mmap(0, (size_t)MOST_ITEMS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  gridDim.x = (unsigned)groups;
  for (long i = 0; i < groups; i++) {
    blockIdx.x = (unsigned)i;
    run_group(items);
  }
}
