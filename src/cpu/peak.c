/* Measures the machine's peak on all threads: arithmetic on registers, and bandwidth of main memory. */
#include "cpu/peak.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/machine.h"

enum { ARRAYS = 3, ELEMENTS = 1 << 26, PIECE = 1 << 16 }; /* three arrays of 256 MiB, together larger than the caches */

/* Sink for results: written under a condition that is never true, so that the compiler must compute them. */
static volatile float used;

/* Operations per second of one run of a unit's loop on the calling thread. */
static double run_unit(const ch_peak_unit *unit, int64_t rounds) {
  double start = ch_machine_seconds();
  float result = unit->loop(rounds);
  if (result == 0.125f) used = result;
  return unit->flops * (double)rounds / (ch_machine_seconds() - start);
}

/* GFLOP/s of all threads together: the best of several runs of about a millisecond, because other load only slows them
 * down. */
static double unit_gflops(const ch_peak_unit *unit, int threads, double seconds) {
  int64_t rounds = 1000;
  double best = 0, end = ch_machine_seconds() + seconds;
  while (unit->flops * (double)rounds / run_unit(unit, rounds) < 1e-3) rounds *= 2;
  do {
    double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
    {
#pragma omp barrier
      rate += run_unit(unit, rounds);
    }
    if (rate > best) best = rate;
  } while (ch_machine_seconds() < end);
  return best * 1e-9;
}

static float read_piece(float *const array[ARRAYS], int64_t begin) {
  const ch_peak_unit unit = ch_peak_fp32();
  float sum = 0;
  for (int i = 0; i < ARRAYS; i++) sum += unit.read(array[i] + begin, PIECE);
  return sum;
}

static float triad_piece(float *const array[ARRAYS], int64_t begin) {
  ch_peak_fp32().triad(array[0] + begin, array[1] + begin, array[2] + begin, PIECE);
  return array[0][begin];
}

static float fill_piece(float *const array[ARRAYS], int64_t begin) {
  for (int i = 0; i < ARRAYS; i++)
    for (int64_t j = 0; j < PIECE; j++) array[i][begin + j] = (float)j;
  return 1;
}

static double time_memory(float (*piece)(float *const *, int64_t), float *const array[ARRAYS], int threads) {
  double start = ch_machine_seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < ELEMENTS; begin += PIECE) {
    float result = piece(array, begin);
    if (result == 0.125f) used = result;
  }
  return ch_machine_seconds() - start;
}

/* GB/s: bytes of all three arrays / the best time. */
static double memory_gbs(float (*piece)(float *const *, int64_t), float *const array[ARRAYS], int threads,
                         double seconds) {
  double best = 1e30, end = ch_machine_seconds() + seconds;
  do {
    double t = time_memory(piece, array, threads);
    if (t < best) best = t;
  } while (ch_machine_seconds() < end);
  return (double)ARRAYS * ELEMENTS * sizeof(float) / best * 1e-9;
}

static int measure_memory(int threads, double seconds, ch_peak *peak) {
  float *array[ARRAYS];
  char *memory = aligned_alloc(64, (size_t)ARRAYS * ELEMENTS * sizeof(float));
  if (!memory) return ch_error(CHOIR_ERROR_MEMORY, "no 768 MiB of memory to measure its bandwidth with");
  for (int i = 0; i < ARRAYS; i++) array[i] = (float *)memory + (size_t)i * ELEMENTS;
  time_memory(fill_piece, array, threads); /* first touch: pages are on the NUMA node of their thread */
  peak->read_gbs = memory_gbs(read_piece, array, threads, seconds / 2);
  peak->triad_gbs = memory_gbs(triad_piece, array, threads, seconds / 2);
  free(memory);
  return CHOIR_OK;
}

int ch_cpu_peak(int threads, double seconds, int memory, ch_peak *peak) {
  ch_peak_unit fp32 = ch_peak_fp32(), bf16[4];
  double arithmetic = memory ? seconds / 2 : seconds;
  ch_peak_bf16(bf16);
  *peak = (ch_peak){.threads = threads, .isa = fp32.name, .bf16_unit = "none"};
  peak->fp32_gflops = unit_gflops(&fp32, threads, arithmetic / 2);
  for (int i = 0; bf16[i].name; i++) {
    double rate = unit_gflops(&bf16[i], threads, arithmetic / 4);
    if (rate > peak->bf16_gflops) peak->bf16_gflops = rate, peak->bf16_unit = bf16[i].name;
  }
  return memory ? measure_memory(threads, seconds / 2, peak) : CHOIR_OK;
}
