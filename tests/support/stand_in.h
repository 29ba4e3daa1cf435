/* The GPU that is none (device/fake_cuda/) for backend "cuda": in programs that a test starts, and in its own process.
 * The loader looks for libraries where a process was told when it began, so that the process begins anew. Where
 * CHOIR_TEST_BACKEND or CHOIR_TEST_DEVICE names a device of this machine, nothing stands in. */
#ifndef CH_TESTS_STAND_IN_H
#define CH_TESTS_STAND_IN_H

#include "testing.h"

#ifndef CHOIR_FAKE_CUDA
#define CHOIR_FAKE_CUDA "" /* not built under sanitizers */
#endif
/* Before a command. The file `report` then says what was not given back, and how often each kernel ran. */
#define STAND_IN "LD_LIBRARY_PATH=\"" CHOIR_FAKE_CUDA "\" FAKE_CUDA_REPORT=report "

/* Before what runs on it in the test's own process. */
static inline void test_needs_stand_in(void) {
#ifdef CHOIR_SANITIZED
  test_skip("the stand-in for CUDA is not built with sanitizers");
#endif
}

#ifndef CHOIR_SANITIZED
__attribute__((constructor)) static void stand_in_begins(int count, char **words) {
  const char *path = getenv("LD_LIBRARY_PATH");
  (void)count;
  if (getenv("CHOIR_TEST_BACKEND") || getenv("CHOIR_TEST_DEVICE") || (path && !strcmp(path, CHOIR_FAKE_CUDA))) return;
  setenv("LD_LIBRARY_PATH", CHOIR_FAKE_CUDA, 1);
  execv("/proc/self/exe", words);
  abort();
}
#endif

#endif
