/* Arrays, timing and comparison for the cases of ch_bench_run. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/machine.h"
#include "bench/cases.h"
#include "moe/route_stats.h"
#include "moe/router.h"

enum { MAX_REPETITIONS = 1000 };

static void CH_DEV *make_array(ch_bench *b, const ch_memory *memory, size_t bytes) {
  if (!b->code && b->arrays == CH_BENCH_ARRAYS)
    b->code = ch_error(CHOIR_ERROR_MEMORY, "bench: %d arrays are too many", b->arrays);
  if (b->code) return NULL;
  ch_arena *arena = &b->array[b->arrays]; /* as in a model: aligned, and in huge pages */
  ch_arena_init(arena, "bench", memory);
  ch_arena_alloc(arena, bytes);
  if ((b->code = ch_arena_commit(arena))) return NULL;
  b->arrays++;
  return ch_arena_alloc(arena, bytes);
}

void *ch_bench_host(ch_bench *b, size_t bytes) { return CH_AS_HOST(void, make_array(b, &ch_memory_host, bytes)); }

int CH_DEV *ch_bench_ints(ch_bench *b, int64_t count) { return make_array(b, b->memory, (size_t)count * sizeof(int)); }

const void *ch_bench_read(ch_bench *b, const void CH_DEV *from, size_t bytes) {
  if (b->code) return NULL;
  if (b->backend->memory->host) return CH_AS_HOST(const void, from);
  void *copy = ch_bench_host(b, bytes);
  if (copy) b->backend->memory->download(copy, from, bytes);
  return copy;
}

const void CH_DEV *ch_bench_put(ch_bench *b, const void *from, size_t bytes) {
  if (b->code) return NULL;
  if (b->memory->host) return CH_AS_DEV(const void, from);
  void CH_DEV *copy = make_array(b, b->memory, bytes);
  if (copy) b->memory->upload(copy, from, bytes);
  return copy;
}

/* Fills with uniform random numbers of standard deviation `scale`: a function of the index alone, and fast, because
 * large cases have 10^9 elements. */
static void fill_uniform(int threads, real *x, int64_t count, double scale, uint64_t seed) {
  real width = (real)(scale * sqrt(12.0));
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < count; i++) {
    uint64_t z = ((uint64_t)i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    x[i] = ((real)(uint32_t)(z >> 40) * (real)0x1p-24 - (real)0.5) * width;
  }
}

/* Fills an array with random numbers, generated on the host and copied to a device block by block. */
static int fill_array(const ch_bench *b, real CH_DEV *array, int64_t count, double scale, uint64_t seed) {
  enum { BLOCK = 1 << 24 };
  if (b->memory->host) return fill_uniform(b->threads, CH_AS_HOST(real, array), count, scale, seed), CHOIR_OK;
  real *block;
  CH_TRY(CH_ALLOC(&block, count < BLOCK ? count : BLOCK, "random numbers"));
  for (int64_t begin = 0; begin < count; begin += BLOCK) {
    int64_t some = count - begin < BLOCK ? count - begin : BLOCK;
    fill_uniform(b->threads, block, some, scale, seed + (uint64_t)begin);
    b->memory->upload(array + begin, block, (size_t)some * sizeof *block);
  }
  free(block);
  return CHOIR_OK;
}

real CH_DEV *ch_bench_zeros(ch_bench *b, int64_t count) {
  return make_array(b, b->memory, (size_t)count * sizeof(real));
}

real CH_DEV *ch_bench_drawn(ch_bench *b, int64_t count, double deviation) {
  real CH_DEV *array = ch_bench_zeros(b, count);
  if (array) b->code = fill_array(b, array, count, deviation, (uint64_t)++b->drawn << 40);
  return array;
}

void ch_bench_record(ch_bench *b, int64_t tokens, int64_t experts, int64_t slots, double gates, ch_record *r) {
  *r = (ch_record){.tokens = (int)tokens, .experts = (int)experts, .max_slots = (int)slots, .load = -1};
  r->expert_begin = ch_bench_ints(b, experts + 1);
  r->slot_token = ch_bench_ints(b, slots);
  r->token_begin = ch_bench_ints(b, tokens + 1);
  r->token_slot = ch_bench_ints(b, slots);
  r->slot_gate = gates > 0 ? ch_bench_drawn(b, slots, gates) : ch_bench_zeros(b, slots);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void ch_bench_time(ch_bench *b, void (*body)(void *context), void *context) {
  double time[MAX_REPETITIONS], begin = 0;
  int min = b->options->repetitions > 0 ? b->options->repetitions : 7, count = 0;
  double seconds = b->options->seconds > 0 ? b->options->seconds : 0.2;
  if (min > MAX_REPETITIONS) min = MAX_REPETITIONS;
  body(context); /* warm-up: page faults, caches, clock frequency */
  b->backend->memory->synchronise();
  begin = ch_machine_seconds();
  for (double now = begin; count < min || (now - begin < seconds && count < MAX_REPETITIONS); count++) {
    body(context);
    b->backend->memory->synchronise();
    double after = ch_machine_seconds();
    time[count] = after - now;
    now = after;
  }
  qsort(time, (size_t)count, sizeof *time, ascending);
  b->result->repetitions = count;
  b->result->min_seconds = time[0];
  b->result->seconds = (time[(count - 1) / 2] + time[count / 2]) / 2;
}

int ch_bench_peak(const ch_bench_options *options, ch_peak *peak) {
  return ch_backend_peak(options->backend ? options->backend : "cpu", options->threads, 0.5, 1, peak);
}

void ch_bench_rates(ch_bench *b, double flops, double bytes) {
  ch_bench_result *r = b->result;
  const ch_peak *peak = b->options->peak;
  r->flops = flops;
  r->bytes = bytes;
  r->gflops = flops / r->seconds * 1e-9;
  r->gbs = bytes / r->seconds * 1e-9;
  r->rate = bytes > 0 ? r->gbs : r->gflops;
  r->unit = bytes > 0 ? "GB/s" : "GFLOP/s";
  if (!peak) return;
  double best = bytes > 0 ? peak->triad_gbs : b->compute == CH_COMPUTE_BF16 ? peak->bf16_gflops : peak->fp32_gflops;
  if (best > 0) r->share = (bytes > 0 ? r->gbs : r->gflops) / best;
}

void ch_bench_figure(ch_bench *b, const char *name, double value) {
  ch_bench_result *r = b->result;
  if (r->figures < CH_BENCH_FIGURES) r->figure[r->figures++] = (ch_bench_number){name, value};
}

void ch_bench_loads(ch_bench *b, const ch_router_spec *options, const choir_route_stats *stats, int layers) {
  if (!ch_router_choices(options)) return;
  ch_route_summary s = ch_route_stats_summary(stats, layers);
  ch_bench_figure(b, "% of choices dropped", 100 * s.dropped);
  ch_bench_figure(b, "% of the room empty", 100 * (1 - s.fill));
  ch_bench_figure(b, "slots a token", s.slots);
  ch_bench_figure(b, "fullest expert over mean", s.imbalance);
  ch_bench_figure(b, "most asked over mean", s.demand_imbalance);
}

double ch_bench_error(const real *got, const real *want, int64_t count) {
  double difference = 0, size = 0;
  int finite = 1;
  for (int64_t i = 0; i < count; i++) {
    double g = (double)got[i], w = (double)want[i];
    finite &= isfinite(g) && isfinite(w);
    difference = fmax(difference, fabs(g - w));
    size = fmax(size, fabs(w));
  }
  if (!finite) return (double)NAN;
  return difference > 0 ? difference / fmax(size, 1e-30) : 0;
}

void ch_bench_compare(ch_bench *b, const real CH_DEV *got, const real CH_DEV *want, int64_t count, double *error) {
  const void *values = ch_bench_read(b, got, (size_t)count * sizeof(real));
  if (values) *error = ch_bench_worse(*error, ch_bench_error(values, CH_AS_HOST(const real, want), count));
}

double ch_bench_worse(double a, double b) { return isnan(a) || a > b ? a : b; }
