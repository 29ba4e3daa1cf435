#include "base/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/machine.h"

int ch_threads_resolve(int asked, int *threads) {
  if (asked < 0 || asked > CH_THREADS_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT, "threads is %d; must be 0 (all CPUs) to %d", asked, CH_THREADS_MAX);
  const char *omp = getenv("OMP_NUM_THREADS"); /* set by batch systems; the first number of a list */
  long said = omp ? strtol(omp, NULL, 10) : 0;
  if (!asked && said > CH_THREADS_MAX)
    return ch_error(CHOIR_ERROR_ARGUMENT, "OMP_NUM_THREADS is %.40s; must be at most %d", omp, CH_THREADS_MAX);
  long found = asked ? asked : said > 0 ? said : ch_machine_cpus();
  *threads = found > CH_THREADS_MAX ? CH_THREADS_MAX : (int)found;
  return CHOIR_OK;
}

/* Reads OMP_STACKSIZE ("16k", "2 M", a plain number in KiB); default: the threads' default stack (ulimit -s). */
static size_t stack_bytes(void) {
  const char *text = getenv("OMP_STACKSIZE");
  if (!text) text = getenv("GOMP_STACKSIZE");
  char *end = NULL;
  size_t bytes = 0;
  if (text && (bytes = strtoull(text, &end, 10)) && end != text) {
    end += strspn(end, " \t");
    if (bytes > SIZE_MAX >> 30) return SIZE_MAX;
    return *end == 'B' || *end == 'b'   ? bytes
           : *end == 'M' || *end == 'm' ? bytes << 20
           : *end == 'G' || *end == 'g' ? bytes << 30
                                        : bytes << 10;
  }
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes)) return SIZE_MAX;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

static int check_stack(void) {
  const size_t min = (size_t)256 << 10; /* kernels need 40 KiB of it */
  size_t bytes = stack_bytes();
  if (bytes >= min) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_UNSUPPORTED,
                  "threads get a stack of %zu KiB and need %zu: raise OMP_STACKSIZE (or, where that is not set, ulimit "
                  "-s), or use one thread",
                  bytes >> 10, min >> 10);
}

/* Every thread waits for the lock; the starter holds it until all threads exist. */
static void *wait_for_all(void *lock) {
  pthread_mutex_lock(lock);
  pthread_mutex_unlock(lock);
  return NULL;
}

/* Starts as many threads as OpenMP will, simultaneously, then lets them end. */
static int try_to_start(int threads) {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_t *thread;
  sigset_t before;
  int started = 1, failed = 0; /* the calling thread */
  CH_TRY(CH_ALLOC(&thread, threads, "threads"));
  ch_signals_hold(&before);
  pthread_mutex_lock(&lock);
  while (started < threads && !(failed = pthread_create(&thread[started], NULL, wait_for_all, &lock))) started++;
  pthread_mutex_unlock(&lock);
  for (int i = 1; i < started; i++) pthread_join(thread[i], NULL);
  ch_signals_release(&before);
  free(thread);
  if (!failed) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_MEMORY, "the system starts %d of %d threads (%s): use fewer, or raise its limits",
                  started, threads, strerror(failed));
}

int ch_threads_check(int threads) {
  static atomic_long owner; /* the process whose OpenMP runtime has started threads */
  static atomic_int max;    /* max threads whose start was checked */
  long none = 0, self = (long)getpid();
  if (threads <= 1) return CHOIR_OK;
  if (!atomic_compare_exchange_strong(&owner, &none, self) && none != self)
    return ch_error(
        CHOIR_ERROR_UNSUPPORTED,
        "this process was forked by process %ld, which had run choir with several threads: they did not come "
        "along. Fork before the first use of choir, start a new program (exec), or use one thread here",
        none);
  if (threads <= atomic_load(&max)) return CHOIR_OK;
  CH_TRY(check_stack());
  CH_TRY(try_to_start(threads));
  atomic_store(&max, threads);
  return CHOIR_OK;
}

void ch_signals_hold(sigset_t *before) {
  static const int cannot_wait[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
  sigset_t held;
  sigfillset(&held);
  for (size_t i = 0; i < sizeof cannot_wait / sizeof *cannot_wait; i++) sigdelset(&held, cannot_wait[i]);
  pthread_sigmask(SIG_BLOCK, &held, before);
}

void ch_signals_release(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }
