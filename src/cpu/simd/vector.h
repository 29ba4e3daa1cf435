/* The widest float vector of the instruction set that a file of src/cpu/simd is compiled for. */
#ifndef CH_CPU_SIMD_VECTOR_H
#define CH_CPU_SIMD_VECTOR_H

#include <stdint.h>

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { CH_LANES = 16 };
#elif defined(__AVX2__)
enum { CH_LANES = 8 };
#else
enum { CH_LANES = 4 };
#endif

/* GCC before 12 lacks this builtin; its __builtin_shuffle takes the indices as a vector. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12
#define __builtin_shufflevector(a, b, ...) \
  __builtin_shuffle(a, b, (int32_t __attribute__((vector_size(sizeof(a))))){__VA_ARGS__})
#endif

/* Loads and stores need only a float's alignment. */
typedef float ch_vector __attribute__((vector_size(CH_LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t ch_mask __attribute__((vector_size(CH_LANES * sizeof(float)), aligned(4), may_alias));

static inline ch_vector ch_load(const float *x) { return *(const ch_vector *)x; }
static inline void ch_store(float *x, ch_vector v) { *(ch_vector *)x = v; }

/* CH_LANES bf16, and their conversion to floats. */
typedef uint16_t ch_halves __attribute__((vector_size(CH_LANES * sizeof(uint16_t)), aligned(2), may_alias));
typedef uint32_t ch_u32_lanes __attribute__((vector_size(CH_LANES * sizeof(uint32_t)), aligned(2), may_alias));
/* without the intrinsic, gcc 12 converts 512 bits in two halves, by seven instructions */
static inline ch_u32_lanes ch_load_halves(const uint16_t *x) {
#if defined(__AVX512F__)
  return (ch_u32_lanes)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
#else
  return __builtin_convertvector(*(const ch_halves *)x, ch_u32_lanes);
#endif
}
static inline ch_vector ch_load_bf16(const uint16_t *x) { return (ch_vector)(ch_load_halves(x) << 16); }

/* 32-bit lanes: x[i] in the low half, y[i] in the high half. */
static inline ch_vector ch_load_pairs(const uint16_t *x, const uint16_t *y) {
  return (ch_vector)(ch_load_halves(x) | ch_load_halves(y) << 16);
}

/* sum + products of pairs of bf16 of a and b, if the CPU has an instruction for it. */
#if defined(__AVX512BF16__)
#define CH_HAS_PAIRS 1
static inline ch_vector ch_vector_pairs(ch_vector a, ch_vector b, ch_vector sum) {
  return (ch_vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#elif defined(CH_BFDOT) /* the variant bfdot; -mcpu may allow the instruction in others, too */
#define CH_HAS_PAIRS 1
static inline ch_vector ch_vector_pairs(ch_vector a, ch_vector b, ch_vector sum) {
  return (ch_vector)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
#else
#define CH_HAS_PAIRS 0
static inline ch_vector ch_vector_pairs(ch_vector a, ch_vector b, ch_vector sum) {
  ch_u32_lanes x = (ch_u32_lanes)a, y = (ch_u32_lanes)b, high = (ch_u32_lanes){0} + 0xffff0000;
  sum += (ch_vector)(x & high) * (ch_vector)(y & high);
  return sum + (ch_vector)(x << 16) * (ch_vector)(y << 16);
}
#endif

/* Non-temporal store, for outputs too large to stay in the caches: the line is not read first. x must be aligned to
 * CH_VECTOR_BYTES. Call ch_store_past_end before other threads read. */
enum { CH_VECTOR_BYTES = CH_LANES * 4 };
static inline void ch_store_past(float *x, ch_vector v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(x, (__m512)v);
#elif defined(__FMA__)
  _mm256_stream_ps(x, (__m256)v);
#else
  ch_store(x, v);
#endif
}
static inline void ch_store_past_end(void) {
#if defined(__FMA__)
  _mm_sfence();
#endif
}

/* a b + c, fused if the CPU has FMA. Compilers also fuse on their own, but not consistently; use this for sums that
 * must have equal bits in all variants of a loop. */
static inline ch_vector ch_vector_fma(ch_vector a, ch_vector b, ch_vector c) {
#if defined(__AVX512F__)
  return (ch_vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (ch_vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (ch_vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

static inline float ch_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/* Broadcasts x to all lanes; compilers drop the subtraction of 0. */
static inline ch_vector ch_splat(float x) { return x - (ch_vector){0}; }

/* 0, 1, 2, ... */
static inline ch_mask ch_lane_numbers(void) {
  static const int32_t number[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return *(const ch_mask *)number;
}

/* a if a > b, else b: NaN in a is ignored. */
static inline ch_vector ch_vector_max(ch_vector a, ch_vector b) {
#if defined(__AVX512F__)
  return (ch_vector)_mm512_max_ps((__m512)a, (__m512)b); /* gcc needs two instructions for the comparison below */
#else
  ch_mask larger = a > b;
  return (ch_vector)(((ch_mask)a & larger) | ((ch_mask)b & ~larger));
#endif
}

/* Four lanes: a quarter, a half or all of a vector, depending on the instruction set. */
typedef float ch_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t ch_quad_mask __attribute__((vector_size(16), aligned(4), may_alias));

/* Adds the vector's halves repeatedly, down to four lanes. */
static inline ch_quad ch_vector_fold(ch_vector v) {
#if defined(__AVX512F__)
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
  return (ch_quad)_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__FMA__)
  return (ch_quad)_mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
#else
  return v;
#endif
}

/* Sum over the lanes as a tree: the shortest chain of additions, in a fixed order. */
static inline float ch_vector_sum(ch_vector v) {
  ch_quad quad = ch_vector_fold(v);
  quad += __builtin_shufflevector(quad, quad, 2, 3, 0, 1);
  return quad[0] + quad[1];
}

/* ch_vector_sum of four vectors at once, with the same bits. */
static inline ch_quad ch_vector_sums(ch_vector a, ch_vector b, ch_vector c, ch_vector d) {
  ch_quad p = ch_vector_fold(a), q = ch_vector_fold(b), r = ch_vector_fold(c), s = ch_vector_fold(d);
  ch_quad left = __builtin_shufflevector(p, q, 0, 4, 1, 5) + __builtin_shufflevector(p, q, 2, 6, 3, 7);
  ch_quad right = __builtin_shufflevector(r, s, 0, 4, 1, 5) + __builtin_shufflevector(r, s, 2, 6, 3, 7);
  return __builtin_shufflevector(left, right, 0, 1, 4, 5) + __builtin_shufflevector(left, right, 2, 3, 6, 7);
}

static inline ch_quad ch_quad_max(ch_quad a, ch_quad b) {
  ch_quad_mask larger = a > b;
  return (ch_quad)(((ch_quad_mask)a & larger) | ((ch_quad_mask)b & ~larger));
}

/* Max over the lanes; may ignore NaN. */
static inline float ch_vector_largest(ch_vector v) {
#if defined(__AVX512F__)
  __m256 half = _mm256_max_ps(_mm512_extractf32x8_ps((__m512)v, 1), _mm512_castps512_ps256((__m512)v));
  ch_quad quad = (ch_quad)_mm_max_ps(_mm256_extractf128_ps(half, 1), _mm256_castps256_ps128(half));
#elif defined(__FMA__)
  ch_quad quad = (ch_quad)_mm_max_ps(_mm256_extractf128_ps((__m256)v, 1), _mm256_castps256_ps128((__m256)v));
#else
  ch_quad quad = v;
#endif
  quad = ch_quad_max(__builtin_shufflevector(quad, quad, 2, 3, 0, 1), quad);
  return quad[1] > quad[0] ? quad[1] : quad[0];
}

#endif
