/* A host program's signal handlers, which may run on the stack of whatever thread they meet: while products run, they
 * must find that stack where the system put it, and products must not notice. */
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "base/machine.h"
#include "cpu/threaded/product.h"
#include "testing.h"

static struct {
  const char *low, *high; /* of the thread's stack */
  volatile sig_atomic_t ticks, astray;
} stack;

static void tick(int number) {
  char here;
  (void)number;
  stack.ticks++;
  if (&here < stack.low || &here >= stack.high) stack.astray++;
}

static void find_stack(void) {
  pthread_attr_t attributes;
  void *low;
  size_t size;
  assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
  assert_int_equal(pthread_attr_getstack(&attributes, &low, &size), 0);
  pthread_attr_destroy(&attributes);
  stack.low = low;
  stack.high = stack.low + size;
}

static void set_timer(int microseconds) {
  struct itimerval timer = {{0, microseconds}, {0, microseconds}};
  assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

enum { SIZE = 384, FORMS = 8 };

/* Products of floats and of bf16, in all forms, into c[FORMS][SIZE,SIZE]. */
static void run_products(const float *x, const ch_bf16 *rounded, float *c, void *scratch) {
  ch_product p = {.m = SIZE, .n = SIZE, .k = SIZE, .lda = SIZE, .ldb = SIZE, .ldc = SIZE, .alpha = 1};
  for (int form = 0; form < FORMS; form++) {
    p.trans_a = form & 1, p.trans_b = form >> 1 & 1, p.bf16 = form >> 2;
    p.a = p.bf16 ? (const void *)rounded : x;
    p.b = p.bf16 ? (const void *)(rounded + SIZE * SIZE) : x + SIZE * SIZE;
    p.c = c + form * SIZE * SIZE;
    ch_product_run(&p, scratch);
  }
}

/* For a while and until the timer has ticked often; with the bits that they have when nobody interrupts them. */
static void run_on(double seconds, int min_ticks) {
  enum { COUNT = FORMS * SIZE * SIZE };
  float *x = test_new_normal(2 * SIZE * SIZE, 1), *want = test_new(COUNT), *c = test_new(COUNT);
  ch_bf16 *rounded = malloc(2 * SIZE * SIZE * sizeof *rounded);
  void *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  if (!rounded || !scratch) abort();
  for (int i = 0; i < 2 * SIZE * SIZE; i++) rounded[i] = ch_bf16_round(x[i]);
  ch_product_prepare();
  run_products(x, rounded, want, scratch);
  set_timer(200);
  double begin = ch_machine_seconds(), now = begin;
  for (; now < begin + seconds || (stack.ticks < min_ticks && now < begin + 60); now = ch_machine_seconds()) {
    run_products(x, rounded, c, scratch);
    assert_memory_equal(c, want, COUNT * sizeof *c);
  }
  set_timer(0);
  free(x), free(rounded), free(want), free(c), free(scratch);
}

static void handlers_run_on_the_threads_own_stack(void **state) {
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART}, before;
  enum { TICKS = 500 };
  find_stack();
  assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
  run_on(0.5, TICKS);
  assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
  assert_true(stack.ticks >= TICKS);
  assert_int_equal(stack.astray, 0);
}

TEST_MAIN(NULL, NULL, handlers_run_on_the_threads_own_stack)
