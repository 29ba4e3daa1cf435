/* Locality of routing against naive loops over sets, and by hand. */

#include "base/rng.h"
#include "moe/locality.h"
#include "testing.h"

enum { MAX_TOKENS = 700, MAX_EXPERTS = 130 };

/* used[t][i]: token t uses expert i. */
typedef struct text {
  int tokens, experts, length;
  uint8_t used[MAX_TOKENS][MAX_EXPERTS];
} text;

static void set_text(text *x, int tokens, int experts, int length, uint64_t seed) {
  ch_rng r = ch_rng_make(seed, CH_STREAM_TEST, 0);
  x->tokens = tokens;
  x->experts = experts;
  x->length = length;
  for (int t = 0; t < tokens; t++)
    for (int i = 0; i < experts; i++) {
      double stay = t && x->used[t - 1][i] ? 0.5 : 0.1;
      x->used[t][i] = ch_rng_uniform(r, (uint64_t)(t * experts + i)) < stay;
    }
}

/* The log of a text whose last sequence of a routing is filled up with padding. */
static ch_route_log log_of(const text *x) {
  ch_route_log log = {.experts = x->experts, .length = x->length};
  int n = (x->tokens + x->length - 1) / x->length * x->length;
  uint8_t *valid = calloc((size_t)n, 1);
  int *expert_begin = calloc((size_t)x->experts + 1, sizeof(int)), *token_begin = calloc((size_t)n + 1, sizeof(int));
  int *token_slot = calloc((size_t)n * (size_t)x->experts + 1, sizeof(int)), slots = 0;
  int *slot_of = calloc((size_t)n * (size_t)x->experts + 1, sizeof(int));
  for (int i = 0; i < x->experts; i++) {
    for (int t = 0; t < x->tokens; t++)
      if (x->used[t][i]) slot_of[t * x->experts + i] = slots++;
    expert_begin[i + 1] = slots;
  }
  slots = 0;
  for (int t = 0; t < n; t++) {
    valid[t] = t < x->tokens;
    for (int i = 0; valid[t] && i < x->experts; i++)
      if (x->used[t][i]) token_slot[slots++] = slot_of[t * x->experts + i];
    token_begin[t + 1] = slots;
  }
  choir_routing r = {.tokens = n,
                     .experts = x->experts,
                     .valid = valid,
                     .expert_begin = expert_begin,
                     .token_begin = token_begin,
                     .token_slot = token_slot};
  ch_route_log_append(&log, &r);
  free(valid);
  free(expert_begin);
  free(token_begin);
  free(token_slot);
  free(slot_of);
  assert_int_equal(log.code, CHOIR_OK);
  return log;
}

/* Hits of a cache whose entries are moved as in a list: naive. */
static ch_ratio naive_lru(const text *x, int size) {
  ch_ratio r = {0};
  int cache[MAX_EXPERTS], held = 0;
  for (int t = 0; t < x->tokens; t++) {
    if (t % x->length == 0) held = 0;
    for (int i = 0; i < x->experts; i++) {
      if (!x->used[t][i]) continue;
      int at = 0;
      while (at < held && cache[at] != i) at++;
      r.whole++;
      r.part += at < held;
      if (at == held && held == size) at = 0; /* the oldest goes */
      if (at == held) held++;
      for (; at + 1 < held; at++) cache[at] = cache[at + 1];
      cache[held - 1] = i;
    }
  }
  return r;
}

/* Uses of the `size` most used experts of each whole segment; size 0: distinct experts, of segments. */
static ch_ratio naive_segments(const text *x, int size, int segment) {
  ch_ratio r = {0};
  for (int first = 0; first < x->tokens; first += x->length)
    for (int s = first; s + segment <= first + x->length && s + segment <= x->tokens; s += segment) {
      int uses[MAX_EXPERTS] = {0}, distinct = 0;
      for (int t = s; t < s + segment; t++)
        for (int i = 0; i < x->experts; i++) uses[i] += x->used[t][i];
      for (int i = 0; i < x->experts; i++) distinct += uses[i] > 0;
      for (int i = 0; size && i < x->experts; i++) r.whole += uses[i];
      for (int c = 0; c < size; c++) {
        int best = 0;
        for (int i = 1; i < x->experts; i++)
          if (uses[i] > uses[best]) best = i;
        r.part += uses[best];
        uses[best] = 0;
      }
      if (!size) r.part += distinct, r.whole++;
    }
  return r;
}

static ch_ratio naive_reuse(const text *x) {
  ch_ratio r = {0};
  for (int t = 0; t < x->tokens; t++)
    for (int i = 0; t % x->length && i < x->experts; i++) {
      r.part += x->used[t][i] && x->used[t - 1][i];
      r.whole += x->used[t][i];
    }
  return r;
}

static void assert_ratio(ch_ratio got, ch_ratio wanted) {
  assert_int_equal(got.part, wanted.part);
  assert_int_equal(got.whole, wanted.whole);
}

static void assert_sums(const ch_locality_sums *s, const text *x) {
  assert_ratio(s->reuse, naive_reuse(x));
  for (int c = 0; c < CH_CACHE_SIZES; c++) {
    int size = ch_cache_size(x->experts, c);
    assert_ratio(s->lru[c], naive_lru(x, size));
    for (int g = 0; g < CH_SEGMENTS; g++) assert_ratio(s->srp[c][g], naive_segments(x, size, ch_segments[g]));
  }
  for (int g = 0; g < CH_SEGMENTS; g++) assert_ratio(s->working_set[g], naive_segments(x, 0, ch_segments[g]));
}

static void equals_naive_loops(void **state) {
  static const int shape[][3] = {{700, 32, 128}, {650, 130, 300}, {40, 3, 16}, {16, 1, 20}, {1, 8, 1}, {300, 64, 17}};
  static text x, mixed;
  for (int s = 0; s < (int)(sizeof shape / sizeof *shape); s++) {
    set_text(&x, shape[s][0], shape[s][1], shape[s][2], (uint64_t)s);
    ch_route_log log = log_of(&x);
    ch_locality found;
    assert_int_equal(ch_locality_make(&log, &found), CHOIR_OK);
    assert_sums(&found.text, &x);
    mixed = x;
    for (int t = 0; t < x.tokens; t++) {
      uint64_t from = ch_rng_permute(ch_rng_make(0, CH_STREAM_LOCALITY, 0), (uint64_t)t, (uint64_t)x.tokens);
      memcpy(mixed.used[t], x.used[from], sizeof x.used[t]);
    }
    assert_sums(&found.shuffled, &mixed);
    ch_route_log_free(&log);
  }
}

/* Four tokens with experts 0, 0 1, 2, 0 of eight; a cache of an eighth holds one, of a quarter two. */
static void by_hand(void **state) {
  static text x = {.tokens = 4, .experts = 8, .length = 4, .used = {{1}, {1, 1}, {0, 0, 1}, {1}}};
  ch_route_log log = log_of(&x);
  ch_locality found, twice;
  assert_int_equal(ch_locality_make(&log, &found), CHOIR_OK);
  assert_ratio(found.text.reuse, (ch_ratio){1, 4});
  assert_ratio(found.text.lru[0], (ch_ratio){1, 5});
  assert_ratio(found.text.lru[1], (ch_ratio){1, 5});
  assert_ratio(found.text.lru[2], (ch_ratio){2, 5});
  assert_ratio(found.text.srp[0][0], (ch_ratio){0, 0});
  twice = found;
  ch_locality_add(&twice, &found);
  assert_ratio(twice.text.lru[2], (ch_ratio){4, 10});
  assert_ratio(twice.shuffled.reuse, (ch_ratio){2 * found.shuffled.reuse.part, 2 * found.shuffled.reuse.whole});
  ch_route_log_free(&log);
}

/* The last held-out window of a source is shorter, and others come after it: of three sequences of four tokens the
 * second has two. */
static void a_short_sequence_in_the_middle(void **state) {
  enum { TOKENS = 12, HALF = 8 };
  static const uint8_t valid[TOKENS] = {1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1};
  int begin[TOKENS + 1] = {0}, slot[TOKENS], slots = 0, second = HALF;
  for (int t = 0; t < TOKENS; t++) {
    if (valid[t]) slot[slots] = t / 4 == 1 ? second++ : slots - (t > HALF - 1 ? 2 : 0);
    slots += valid[t];
    begin[t + 1] = slots;
  }
  const int expert_begin[] = {0, HALF, HALF + 2};
  const choir_routing r = {.tokens = TOKENS,
                           .experts = 2,
                           .valid = valid,
                           .expert_begin = expert_begin,
                           .token_begin = begin,
                           .token_slot = slot};
  ch_route_log log = {.experts = 2, .length = 4};
  ch_locality found;
  ch_route_log_append(&log, &r);
  assert_int_equal(ch_locality_make(&log, &found), CHOIR_OK);
  assert_ratio(found.text.reuse, (ch_ratio){7, 7}); /* every sequence has one expert of its own */
  for (int c = 0; c < CH_CACHE_SIZES; c++) assert_ratio(found.text.lru[c], (ch_ratio){7, 10});
  ch_route_log_free(&log);
}

/* A log has the first tokens of a long text, and its memory does not grow without bound. */
static void a_long_text(void **state) {
  enum { TOKENS = 1 << 16 };
  static int begin[TOKENS + 1];
  const int expert_begin[] = {0, 0, 0};
  const choir_routing r = {.tokens = TOKENS, .experts = 2, .expert_begin = expert_begin, .token_begin = begin};
  ch_route_log log = {.experts = 2, .length = 8};
  for (int i = 0; i < CH_ROUTE_LOG_TOKENS / TOKENS + 2; i++) ch_route_log_append(&log, &r);
  assert_int_equal(log.rows.size, CH_ROUTE_LOG_TOKENS * sizeof(uint64_t));
  ch_route_log_free(&log);
}

TEST_MAIN(NULL, NULL, equals_naive_loops, by_hand, a_short_sequence_in_the_middle, a_long_text)
