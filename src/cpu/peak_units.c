#include "base/machine.h"
#include "cpu/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* More chains than latency times units, each with a name of its own: an array would be spilled to memory. */
#define CHAINS(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10) step(11)
enum { CHAIN_COUNT = 12 };

typedef float vector4 __attribute__((vector_size(16)));

/* Reading: eight places at once, for one keeps too few lines of memory on their way (22 of 38 GB/s on two threads of an
 * Emerald Rapids). */
#define PLACES(step) step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7)
#define PLACE_START(i) vector s##i = {0};
#define PLACE_READ(i) s##i ^= *(const vector *)(x + i * part + j);
#define PLACE_ADD(i) ^s##i
#define READER(name, bytes)                                                 \
  static float name(const float *x, int64_t count) {                        \
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
READER(generic_read, 16)

/* Multiply and add in 128-bit vectors, what every CPU has. */
static float generic_loop(int64_t rounds) {
  vector4 scale = {0.5f, 0.5f, 0.5f, 0.5f}, shift = {1, 2, 3, 4};
#define STEP(i) vector4 a##i = shift * i;
  CHAINS(STEP)
#undef STEP
  for (int64_t r = 0; r < rounds; r++) {
#define STEP(i) a##i = a##i * scale + shift;
    CHAINS(STEP)
#undef STEP
  }
  vector4 sum = {0};
#define STEP(i) sum += a##i;
  CHAINS(STEP)
#undef STEP
  return sum[0] + sum[1] + sum[2] + sum[3];
}
static const ch_peak_unit generic = {"generic", CHAIN_COUNT * 4 * 2, generic_loop, generic_read};

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float avx2_loop(int64_t rounds) {
  __m256 scale = _mm256_set1_ps(0.5f), shift = _mm256_set1_ps(1);
#define STEP(i) __m256 a##i = _mm256_set1_ps(i);
  CHAINS(STEP)
#undef STEP
  for (int64_t r = 0; r < rounds; r++) {
#define STEP(i) a##i = _mm256_fmadd_ps(a##i, scale, shift);
    CHAINS(STEP)
#undef STEP
  }
  __m256 sum = shift;
#define STEP(i) sum = _mm256_add_ps(sum, a##i);
  CHAINS(STEP)
#undef STEP
  return _mm256_cvtss_f32(sum);
}
__attribute__((target("avx2")))
READER(avx2_read, 32) static const ch_peak_unit avx2 = {"avx2", CHAIN_COUNT * 8 * 2, avx2_loop, avx2_read};

__attribute__((target("avx512f"))) static float avx512_loop(int64_t rounds) {
  __m512 scale = _mm512_set1_ps(0.5f), shift = _mm512_set1_ps(1);
#define STEP(i) __m512 a##i = _mm512_set1_ps(i);
  CHAINS(STEP)
#undef STEP
  for (int64_t r = 0; r < rounds; r++) {
#define STEP(i) a##i = _mm512_fmadd_ps(a##i, scale, shift);
    CHAINS(STEP)
#undef STEP
  }
  __m512 sum = shift;
#define STEP(i) sum = _mm512_add_ps(sum, a##i);
  CHAINS(STEP)
#undef STEP
  return _mm512_cvtss_f32(sum);
}
__attribute__((target("avx512f")))
READER(avx512_read, 64) static const ch_peak_unit avx512 = {"avx512", CHAIN_COUNT * 16 * 2, avx512_loop, avx512_read};

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) static float avx512_bf16_loop(int64_t rounds) {
  __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = (__m512bh)_mm512_set1_epi32(0x3f803f80);
#define STEP(i) __m512 a##i = _mm512_set1_ps(i);
  CHAINS(STEP)
#undef STEP
  for (int64_t r = 0; r < rounds; r++) {
#define STEP(i) a##i = _mm512_dpbf16_ps(a##i, x, y);
    CHAINS(STEP)
#undef STEP
  }
  __m512 sum = _mm512_setzero_ps();
#define STEP(i) sum = _mm512_add_ps(sum, a##i);
  CHAINS(STEP)
#undef STEP
  return _mm512_cvtss_f32(sum);
}
static const ch_peak_unit avx512_bf16 = {"avx512_bf16", CHAIN_COUNT * 32 * 2, avx512_bf16_loop, NULL};

/* Six accumulator tiles of 16 x 16 floats, two input tiles of 16 x 32 bf16. */
__attribute__((target("amx-tile,amx-bf16"))) static float amx_loop(int64_t rounds) {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
  float out[16 * 16];
  __asm__ volatile("" : : "r"(&shape) : "memory"); /* gcc 12 says of the next one that it reads 8 bytes: it reads 64 */
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
static const ch_peak_unit amx = {"amx", 6 * 16 * 16 * 32 * 2, amx_loop, NULL};

ch_peak_unit ch_peak_fp32(void) {
  ch_isa isa = ch_machine_isa();
  return isa == CH_ISA_AVX512 ? avx512 : isa == CH_ISA_AVX2 ? avx2 : generic;
}

void ch_peak_bf16(ch_peak_unit unit[4]) {
  int count = 0;
  if (ch_machine_has_bf16()) {
    unit[count++] = ch_peak_fp32(); /* of widened operands: on some CPUs it is the faster one */
    unit[count++] = avx512_bf16;
    if (ch_machine_has_amx()) unit[count++] = amx;
  }
  unit[count] = (ch_peak_unit){0};
}
#else
ch_peak_unit ch_peak_fp32(void) { return generic; }
void ch_peak_bf16(ch_peak_unit unit[4]) { unit[0] = (ch_peak_unit){0}; }
#endif
