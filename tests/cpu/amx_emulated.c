/* The product by AMX's tiles with its instructions as C functions, bit for bit what Intel's manual says of them, so
 * that it can be tested on CPUs without them: src/cpu/simd/product_amx.c is compiled here once more. What the tiles are
 * told is checked too: they must have been set up, and be released in the end. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { TILES = 8, ROWS = 16, BYTES = 64 };
static _Thread_local struct {
  int ready;
  unsigned char row[TILES][ROWS][BYTES];
} tiles;

static void demand(int condition) {
  if (!condition) abort();
}

/* Palette 1, every tile of 16 rows of 64 bytes. Configuring sets all tiles to 0, as the CPU does. */
static void set_up(const unsigned char config[64]) {
  demand(!tiles.ready && config[0] == 1 && config[1] == 0);
  for (int i = 0; i < TILES; i++) demand(config[16 + 2 * i] == BYTES && !config[17 + 2 * i] && config[48 + i] == ROWS);
  memset(&tiles, 0, sizeof tiles);
  tiles.ready = 1;
}

static void release(void) {
  demand(tiles.ready);
  tiles.ready = 0;
}

static void zero(int t) {
  demand(tiles.ready);
  memset(tiles.row[t], 0, sizeof tiles.row[t]);
}

static void load(int t, const void *at, int64_t step) {
  demand(tiles.ready);
  for (int r = 0; r < ROWS; r++) memcpy(tiles.row[t][r], (const char *)at + r * step, BYTES);
}

static void store(int t, void *at, int64_t step) {
  demand(tiles.ready);
  for (int r = 0; r < ROWS; r++) memcpy((char *)at + r * step, tiles.row[t][r], BYTES);
}

/* Denormal numbers count as 0, in what is read and in what comes out. */
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float widened(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

/* TDPBF16PS: sums of even and of odd elements apart, each multiplied and added with one rounding; then both, then the
 * tile. (Intel, Software Developer's Manual, volume 2.) */
static void multiply(int c, int a, int b) {
  demand(tiles.ready);
  for (int m = 0; m < ROWS; m++) {
    float even[BYTES / 4] = {0}, odd[BYTES / 4] = {0}, sum[BYTES / 4];
    for (int k = 0; k < ROWS; k++) {
      uint16_t left[2], right[BYTES / 2];
      memcpy(left, tiles.row[a][m] + 4 * k, sizeof left);
      memcpy(right, tiles.row[b][k], sizeof right);
      for (int n = 0; n < BYTES / 4; n++) {
        even[n] = flushed(fmaf(widened(left[0]), widened(right[2 * n]), even[n]));
        odd[n] = flushed(fmaf(widened(left[1]), widened(right[2 * n + 1]), odd[n]));
      }
    }
    memcpy(sum, tiles.row[c][m], sizeof sum);
    for (int n = 0; n < BYTES / 4; n++) sum[n] = flushed(flushed(sum[n]) + flushed(even[n] + odd[n]));
    memcpy(tiles.row[c][m], sum, sizeof sum);
  }
}

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) set_up((const unsigned char *)(config))
#define _tile_release() release()
#define _tile_zero(t) zero(t)
#define _tile_loadd(t, at, step) load(t, at, step)
#define _tile_stream_loadd(t, at, step) load(t, at, step)
#define _tile_stored(t, at, step) store(t, at, step)
#define _tile_dpbf16ps(c, a, b) multiply(c, a, b)
#include "cpu/simd/product_amx.c"
