/* Runs kernels: groups one after the other, items of a group as fibers that take turns at barriers, upwards and
 * downwards, so that a missing barrier shows in the results, too. */
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "fake.h"

enum { MAX_ITEMS = 1024, STACK = (16 << 10) + 576 }; /* no power of two: stacks would share the lines of a cache */
static struct fiber {
  jmp_buf at;
  int begun, done;
} fibers[MAX_ITEMS];
static jmp_buf scheduler;
static ucontext_t began;
static char *stacks;
static const fake_kernel *running;
static const void *arguments;
static unsigned group_items;
static int passes; /* barriers that the group has passed, and 1: 0 until item 0 is at its first, or has ended */
static int alone;  /* what runs is no fiber's own item */

fake_place threadIdx, blockIdx, gridDim;

const char *fake_running(void) { return running->name; }

static unsigned char copy[1024]; /* of the arguments */

int fake_is_stack(const void *p) {
  if ((const unsigned char *)p >= copy && (const unsigned char *)p < copy + sizeof copy) return 1;
  if (p == &threadIdx || p == &blockIdx || p == &gridDim) return 1;
  return (const char *)p >= stacks && (const char *)p < stacks + (size_t)MAX_ITEMS * STACK;
}

static void return_to_scheduler(void) {
  if (!_setjmp(fibers[threadIdx.x].at)) _longjmp(scheduler, 1);
}
void __syncthreads(void) {
  if (alone) fake_wrong("%s: item %u waits at a barrier that item 0 never reaches", running->name, threadIdx.x);
  return_to_scheduler();
}

/* Where item 0 has met no barrier, no item may: the others need no fibers. */
static void run_the_others(void) {
  alone = 1;
  for (threadIdx.x = 1; threadIdx.x < group_items; threadIdx.x++) running->run(arguments);
  threadIdx.x = 0;
  alone = 0;
}

/* A fiber lives as long as the process, and runs kernel after kernel. */
static void live(void) {
  for (;;) {
    running->run(arguments);
    if (!passes) run_the_others();
    fibers[threadIdx.x].done = 1;
    return_to_scheduler();
  }
}

static void resume(int item) {
  struct fiber *f = &fibers[item];
  threadIdx.x = (unsigned)item;
  if (_setjmp(scheduler)) return;
  if (f->begun) _longjmp(f->at, 1);
  f->begun = 1;
  static ucontext_t context; /* entered once, and never left the way it came */
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + (size_t)item * STACK;
  context.uc_stack.ss_size = STACK;
  context.uc_link = &began;
  makecontext(&context, live, 0);
  setcontext(&context);
}

/* All items of a group, to the next barrier or to their end; returns the number of those that ended. */
static int run_to_barrier(int items) {
  int ended = 0;
  for (int i = 0; i < items; i++) {
    int item = passes % 2 ? items - 1 - i : i;
    resume(item);
    ended += fibers[item].done;
  }
  return ended;
}

static void run_group(int items) {
  for (int i = 0; i < items; i++) fibers[i].done = 0;
  group_items = (unsigned)items;
  passes = 0;
  fake_begin_group();
  resume(0);
  if (fibers[0].done) return;
  int ended = 0;
  for (int i = passes = 1; i < items; i++) resume(i), ended += fibers[i].done;
  for (; ended < items; passes++) {
    if (ended) fake_wrong("%s: %d of %d items wait at a barrier", running->name, items - ended, items);
    fake_pass_barrier();
    ended = run_to_barrier(items);
  }
}

void fake_run(const fake_kernel *kernel, long groups, int items, const void *args) {
  running = kernel;
  memcpy(copy, args, kernel->bytes);
  for (size_t i = 0; i < kernel->bytes / sizeof(void *); i++) { /* pointers are among the words */
    void **word = (void **)(void *)copy + i;
    if (fake_is_allocated(*word)) *word = fake_bytes(*word, 1, kernel->name);
  }
  arguments = copy;
  if (!stacks) stacks = mmap(0, (size_t)MAX_ITEMS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stacks == MAP_FAILED) fake_wrong("no memory for stacks");
  gridDim.x = (unsigned)groups;
  fake_begin_launch();
  for (long i = 0; i < groups; i++) {
    blockIdx.x = (unsigned)i;
    run_group(items);
  }
}
