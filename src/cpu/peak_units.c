#include "base/machine.h"
#include "cpu/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* More dependency chains than latency x units. Each is a separate variable, because compilers spill an array to
 * memory. */
#define CHAINS(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)
enum { CHAIN_COUNT = 12 };

/* Reads from eight streams at once, because one has too few cache misses in flight (22 of 38 GB/s on two threads of an
 * Emerald Rapids). */
#define PLACES(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7)
#define PLACE_START(i) vector s##i = {0};
#define PLACE_READ(i) s##i ^= *(const vector *)(x + i * part + j);
#define PLACE_ADD(i) ^s##i
#define READER(target, name, bytes)                                         \
  target static float name(const float *x, int64_t count) {                 \
    typedef uint32_t vector __attribute__((vector_size(bytes), may_alias)); \
    const int64_t part = count / 8;                                         \
    PLACES(PLACE_START)                                                     \
    for (int64_t j = 0; j < part; j += bytes / 4) {                         \
      PLACES(PLACE_READ)                                                    \
    }                                                                       \
    vector all = (vector){0} PLACES(PLACE_ADD);                             \
    uint32_t sum = 0;                                                       \
    for (int i = 0; i < bytes / 4; i++) sum ^= all[i];                      \
    return (float)sum;                                                      \
  }
READER(, generic_read, 16)

/* a = b + 3 c, in wide vectors: with narrow vectors the loop is bound by instructions (25 instead of 36 GB/s on a Zen
 * 5). */
#define TRIAD(target, name, bytes)                                                   \
  target static void name(float *a, const float *b, const float *c, int64_t count) { \
    typedef float vector __attribute__((vector_size(bytes), may_alias));             \
    for (int64_t j = 0; j < count; j += bytes / 4)                                   \
      *(vector *)(a + j) = *(const vector *)(b + j) + 3 * *(const vector *)(c + j);  \
  }
TRIAD(, generic_triad, 16)

/* A loop of chains, each starting at FIRST(i) and stepping by NEXT(i). */
#define CHAIN_START(i) vector a##i = FIRST(i);
#define CHAIN_STEP(i) a##i = NEXT(a##i);
#define CHAIN_ADD(i) +a##i
#define LOOP(target, name, bytes)                               \
  target static float name(int64_t rounds) {                    \
    typedef float vector __attribute__((vector_size(bytes)));   \
    const vector scale = (vector){0} + 0.5f, shift = scale * 2; \
    CHAINS(CHAIN_START)                                         \
    for (int64_t r = 0; r < rounds; r++) {                      \
      CHAINS(CHAIN_STEP)                                        \
    }                                                           \
    vector sum = scale CHAINS(CHAIN_ADD);                       \
    return sum[0];                                              \
  }

/* Multiply and add in 128-bit vectors, which every CPU has. */
#define FIRST(i) (shift * i)
#define NEXT(a) (a * scale + shift)
LOOP(, generic_loop, 16)
static const ch_peak_unit generic = {"generic", CHAIN_COUNT * 4 * 2, generic_loop, generic_read, generic_triad};

#if defined(__x86_64__)
#define FOR(instructions) __attribute__((target(instructions)))
#undef NEXT
#define NEXT(a) (vector) _mm256_fmadd_ps((__m256)a, (__m256)scale, (__m256)shift)
LOOP(FOR("avx2,fma"), avx2_loop, 32)
READER(FOR("avx2"), avx2_read, 32)
TRIAD(FOR("avx2,fma"), avx2_triad, 32)
#undef NEXT
#define NEXT(a) (vector) _mm512_fmadd_ps((__m512)a, (__m512)scale, (__m512)shift)
LOOP(FOR("avx512f"), avx512_loop, 64)
READER(FOR("avx512f"), avx512_read, 64)
TRIAD(FOR("avx512f"), avx512_triad, 64)
#undef NEXT
#define NEXT(a) (vector) _mm512_dpbf16_ps((__m512)a, (__m512bh)scale, (__m512bh)shift)
LOOP(FOR("avx512f,avx512bw,avx512vl,avx512bf16"), avx512_bf16_loop, 64)

static const ch_peak_unit avx2 = {"avx2", CHAIN_COUNT * 8 * 2, avx2_loop, avx2_read, avx2_triad},
                          avx512 = {"avx512", CHAIN_COUNT * 16 * 2, avx512_loop, avx512_read, avx512_triad},
                          avx512_bf16 = {"avx512_bf16", CHAIN_COUNT * 32 * 2, avx512_bf16_loop, NULL, NULL};

/* Six accumulator tiles of 16 x 16 floats, two input tiles of 16 x 32 bf16. */
__attribute__((target("amx-tile,amx-bf16"))) static float amx_loop(int64_t rounds) {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
  float out[16 * 16];
  __asm__ volatile("" : : "r"(&shape) : "memory"); /* the next instruction reads 64 bytes; gcc 12 assumes 8 */
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t r = 0; r < rounds; r++) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(5, out, 64);
  _tile_release();
  return out[0];
}
static const ch_peak_unit amx = {"amx", 6 * 16 * 16 * 32 * 2, amx_loop, NULL, NULL};

ch_peak_unit ch_peak_fp32(void) {
  ch_isa isa = ch_machine_isa();
  return isa == CH_ISA_AVX512 ? avx512 : isa == CH_ISA_AVX2 ? avx2 : generic;
}

void ch_peak_bf16(ch_peak_unit unit[4]) {
  int count = 0;
  if (ch_machine_has_bf16()) {
    unit[count++] = ch_peak_fp32(); /* bf16 widened to fp32: faster than avx512_bf16 on some CPUs */
    unit[count++] = avx512_bf16;
    if (ch_machine_has_amx()) unit[count++] = amx;
  }
  unit[count] = (ch_peak_unit){0};
}
#elif defined(__aarch64__)
#undef NEXT
#define NEXT(a) (vector) vbfdotq_f32((float32x4_t)a, (bfloat16x8_t)scale, (bfloat16x8_t)shift)
LOOP(__attribute__((target("arch=armv8.2-a+bf16"))), bfdot_loop, 16)
static const ch_peak_unit bfdot = {"bfdot", CHAIN_COUNT * 8 * 2, bfdot_loop, NULL, NULL};

ch_peak_unit ch_peak_fp32(void) { return generic; }
void ch_peak_bf16(ch_peak_unit unit[4]) {
  unit[0] = unit[1] = (ch_peak_unit){0};
  if (ch_machine_has_bf16()) unit[0] = bfdot;
}
#else
ch_peak_unit ch_peak_fp32(void) { return generic; }
void ch_peak_bf16(ch_peak_unit unit[4]) { unit[0] = (ch_peak_unit){0}; }
#endif
