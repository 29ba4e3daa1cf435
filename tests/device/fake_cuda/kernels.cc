// The kernels' text as C++: what CUDA adds to the language is a few names here. Compiled so that each access to memory
// calls a function of races.c.
#include <math.h>
#include <string.h>

#include "fake.h"

#define __shared__ static __attribute__((section("fake_shared")))
#define __device__
#define __global__

struct uint4 {
  unsigned x, y, z, w;
};
__attribute__((no_sanitize("thread"))) static int atomicAdd(int *p, int more) {
  int before = *p;
  fake_count(p);
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
#include "op/token.cl.h"
#include "device_args.cl.h"
#include "device/kernels/args.h"
#include "device/kernels/common.cl.h"
#include "device/kernels/rows.cl.h"
#include "device/kernels/elements.cl.h"
#include "device/kernels/product.cl.h"
#include "device/kernels/attention.cl.h"
#include "device/kernels/head.cl.h"
#include "device/kernels/optim.cl.h"
#include "device/kernels/select.cl.h"
#include "device/kernels/routing.cl.h"
#include "device/kernels/gates.cl.h"
#include "device/kernels/record.cl.h"
// clang-format on

#define ENTRY(kernel) {#kernel, sizeof(kernel##_args), [](const void *args) { kernel(*(const kernel##_args *)args); }},
const fake_kernel fake_kernels[] = {KERNELS(ENTRY){}};

extern char __start_fake_shared[], __stop_fake_shared[];
int fake_is_shared(const void *p) { return p >= __start_fake_shared && p < __stop_fake_shared; }
