/* A host program's signal handlers, which may run on the stack of whatever thread they meet: while products run, they
 * must find that stack where the system put it. */
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

/* Products of floats and of bf16, which oneDNN may get, in turns, for a while and until the timer has ticked often. */
static void run_products(double seconds, int least_ticks) {
  enum { SIZE = 384 };
  float *a = test_new_normal(SIZE * SIZE, 1), *b = test_new_normal(SIZE * SIZE, 2), *c = test_new(SIZE * SIZE);
  ch_product_prepare();
  void *scratch = aligned_alloc(64, CH_PRODUCT_SCRATCH);
  if (!scratch) abort();
  ch_product p = {.m = SIZE, .n = SIZE, .k = SIZE, .a = a, .b = b, .c = c, .lda = SIZE, .ldb = SIZE, .ldc = SIZE};
  p.alpha = 1;
  double begin = ch_machine_seconds(), now = begin;
#pragma omp parallel num_threads(1)
  {
    ch_product_begin();
    for (; now < begin + seconds || (stack.ticks < least_ticks && now < begin + 60); now = ch_machine_seconds())
      for (int form = 0; form < 8; form++) {
        p.trans_a = form & 1, p.trans_b = form >> 1 & 1, p.bf16 = form >> 2;
        ch_product_run(&p, scratch);
      }
  }
  free(a), free(b), free(c), free(scratch);
}

static void handlers_run_on_the_threads_own_stack(void **state) {
  (void)state;
  struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART}, before;
  enum { TICKS = 500 };
  find_stack();
  assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
  set_timer(200);
  run_products(0.5, TICKS);
  set_timer(0);
  assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
  assert_true(stack.ticks >= TICKS);
  assert_int_equal(stack.astray, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(handlers_run_on_the_threads_own_stack)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
