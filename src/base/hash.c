#include "base/hash.h"

#include <string.h>

static const uint64_t P1 = UINT64_C(0x9E3779B185EBCA87), P2 = UINT64_C(0xC2B2AE3D27D4EB4F),
                      P3 = UINT64_C(0x165667B19E3779F9), P4 = UINT64_C(0x85EBCA77C2B2AE63),
                      P5 = UINT64_C(0x27D4EB2F165667C5);

static inline uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Little-endian whatever the machine: checksums travel between machines with the files. */
static inline uint64_t load64(const unsigned char *p) {
  uint64_t x;
  memcpy(&x, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  x = __builtin_bswap64(x);
#endif
  return x;
}

static inline uint64_t load32(const unsigned char *p) {
  return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

/* Whole stripes of 32 bytes; returns the bytes taken. */
static size_t stripes(uint64_t lane[4], const unsigned char *p, size_t size) {
  uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
  size_t whole = size & ~(size_t)31;
  for (size_t i = 0; i < whole; i += 32) {
    a = mix(a, load64(p + i));
    b = mix(b, load64(p + i + 8));
    c = mix(c, load64(p + i + 16));
    d = mix(d, load64(p + i + 24));
  }
  lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
  return whole;
}

void ch_hash_begin(ch_hash_state *s, uint64_t seed) {
  *s = (ch_hash_state){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void ch_hash_add(ch_hash_state *s, const void *data, size_t size) {
  const unsigned char *p = data;
  size_t held = s->total % 32;
  s->total += size;
  if (held && held + size >= 32) {
    size_t fill = 32 - held;
    memcpy(s->buffer + held, p, fill);
    stripes(s->lane, s->buffer, 32);
    p += fill, size -= fill, held = 0;
  }
  if (!held) {
    size_t taken = stripes(s->lane, p, size);
    p += taken, size -= taken;
  }
  if (size) memcpy(s->buffer + held, p, size);
}

static uint64_t tail(uint64_t h, const unsigned char *p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) h = rotate(h ^ mix(0, load64(p)), 27) * P1 + P4;
  if (size >= 4) h = rotate(h ^ load32(p) * P1, 23) * P2 + P3, p += 4, size -= 4;
  for (; size; p++, size--) h = rotate(h ^ *p * P5, 11) * P1;
  return h;
}

uint64_t ch_hash_end(const ch_hash_state *s) {
  uint64_t h = s->seed + P5;
  if (s->total >= 32) {
    const uint64_t *v = s->lane;
    h = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
    for (int i = 0; i < 4; i++) h = (h ^ mix(0, v[i])) * P1 + P4;
  }
  h = tail(h + s->total, s->buffer, s->total % 32);
  h = (h ^ h >> 33) * P2;
  h = (h ^ h >> 29) * P3;
  return h ^ h >> 32;
}

uint64_t ch_hash64(const void *data, size_t size, uint64_t seed) {
  ch_hash_state s;
  ch_hash_begin(&s, seed);
  ch_hash_add(&s, data, size);
  return ch_hash_end(&s);
}
