/* Selection, and lists of an expert's tokens from marks keep [n,e]. One group per tile of TILE_TOKENS tokens by
 * TILE_EXPERTS adjacent experts, so that it reads whole memory lines and its items rarely contend for one counter.
 * Counts are integers, so the order of additions does not matter; ties and lists are in ascending order of tokens. */
#define ROWS (GROUP / TILE_EXPERTS) /* tokens of a tile that its items read in parallel */
#define AT_ONCE 8                   /* tokens that an item loads before it uses them */
#define DIGITS 256

/* Larger scores get larger keys; NaN is below every number, -0 equal to +0. */
INLINE U32 key_of(float score) {
  U32 bits = FLOAT_BITS(score);
  if (score != score) return 0;
  if (score == 0) bits = 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

INLINE float score_of(U32 key) {
  if (key == 0) return BITS_FLOAT(0x7fc00000u);
  return BITS_FLOAT(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* Tokens of a pool: first, first + step, .. below end. */
typedef struct {
  I64 first, end, step;
} pool_tokens;

INLINE pool_tokens tokens_of(GLOBAL const int *pool_begin, int pool, int n, int stride) {
  pool_tokens own = {pool, n, stride};
  if (stride <= 1) own.first = pool_begin[pool], own.end = pool_begin[pool + 1], own.step = 1;
  return own;
}

/* An item's tokens of a tile, its expert, and its pool (0: the first pool of this launch). */
typedef struct {
  I64 token, end, step;
  int pool, expert;
} tile;

INLINE tile tile_of(GLOBAL const int *pool_begin, int n, int e, int first_pool, int stride, int parts) {
  int blocks = (e + TILE_EXPERTS - 1) / TILE_EXPERTS, part = (int)(GID / blocks % parts);
  tile own;
  own.pool = (int)(GID / blocks / parts);
  own.expert = (int)(GID % blocks) * TILE_EXPERTS + LID % TILE_EXPERTS;
  pool_tokens all = tokens_of(pool_begin, first_pool + own.pool, n, stride);
  I64 begin = all.first + part * TILE_TOKENS * all.step, end = begin + TILE_TOKENS * all.step;
  own.token = begin + LID / TILE_EXPERTS * all.step;
  own.end = own.expert >= e ? 0 : end < all.end ? end : all.end;
  own.step = ROWS * all.step;
  return own;
}
#define TILE_OF_POOL tile_of(a.pool_begin, a.n, a.e, a.first_pool, a.stride, a.parts)

/* Keys of the next AT_ONCE tokens; returns a bit per valid token. */
INLINE U32 next_keys(tile own, GLOBAL const float *score, GLOBAL const uchar *valid, int e, U32 *key) {
  U32 here = 0;
  for (int j = 0; j < AT_ONCE; j++) {
    I64 token = own.token + j * own.step;
    key[j] = 0;
    if (token >= own.end) continue;
    key[j] = key_of(score[token * e + own.expert]);
    if (!valid || valid[token]) here |= 1u << j;
  }
  return here;
}

/* Histogram of the digit at `shift` over the tokens whose higher digits equal those of the k-th best key. */
KERNEL(select_count) {
  SHARED int count[DIGITS * TILE_EXPERTS];
  tile own = TILE_OF_POOL;
  I64 pair = (I64)own.pool * a.e + own.expert;
  int column = LID % TILE_EXPERTS, above = a.shift + 8;
  U32 best = above < 32 && own.expert < a.e ? a.key[pair] >> above : 0, key[AT_ONCE];
  for (int i = LID; own.expert < a.e && i < DIGITS * TILE_EXPERTS; i += GROUP) count[i] = 0;
  SYNC;
  for (; own.token < own.end; own.token += AT_ONCE * own.step) {
    U32 here = next_keys(own, a.score, a.valid, a.e, key);
    for (int j = 0; j < AT_ONCE; j++)
      if (here >> j & 1 && (above == 32 || key[j] >> above == best))
        ADD_TO(&count[(key[j] >> a.shift & (DIGITS - 1)) * TILE_EXPERTS + column], 1);
  }
  SYNC;
  GLOBAL int *all = a.count + (I64)own.pool * DIGITS * a.e + own.expert;
  for (int i = LID; own.expert < a.e && i < DIGITS * TILE_EXPERTS; i += GROUP)
    if (count[i]) ADD_TO(&all[i / TILE_EXPERTS * a.e], count[i]);
}

/* One group per pool and expert, two digits per item. The digit of the k-th best is the highest digit at which the
 * count from above reaches `left`. At the last digit, `surplus` becomes the number of ties to drop. */
KERNEL(select_digit) {
  SHARED int scratch[GROUP];
  int k = a.k[GID / a.e], left = a.shift == 24 ? k : a.left[GID], digit = DIGITS - 1 - 2 * LID, all;
  U32 key = a.shift == 24 ? 0 : a.key[GID];
  GLOBAL const int *count = a.count + (GID / a.e * DIGITS + digit) * a.e + GID % a.e;
  int high = count[0], both = high + count[-a.e], above = rank_over(both, scratch, &all);
  int here = above < left && (above + both >= left || LID == GROUP - 1);
  if (k == 0) here = LID == 0;
  if (!here) return;
  if (above + high < left) above += high, digit--, high = both - high;
  key |= (U32)digit << a.shift;
  a.key[GID] = key;
  a.left[GID] = k ? left - above : 0;
  if (a.shift) return;
  a.surplus[GID] = k ? high - (left - above) : 0;
  if (a.cutoff) a.cutoff[GID] = k ? score_of(key) : INF;
}

/* Marks tokens that are at least as good as the k-th best. */
KERNEL(select_marks) {
  tile own = TILE_OF_POOL;
  if (own.token >= own.end) return;
  I64 pair = (I64)own.pool * a.e + own.expert;
  U32 best = a.key[pair], key[AT_ONCE];
  int some = a.left[pair] > 0;
  for (; own.token < own.end; own.token += AT_ONCE * own.step) {
    U32 here = next_keys(own, a.score, a.valid, a.e, key);
    for (int j = 0; j < AT_ONCE; j++) {
      I64 token = own.token + j * own.step;
      if (token < own.end) a.keep[token * a.e + own.expert] = some && here >> j & 1 && key[j] >= best;
    }
  }
}

/* One group per pool and expert: drops `surplus` ties of the k-th best, keeping the first ones. */
KERNEL(select_ties) {
  SHARED int scratch[GROUP];
  int left = a.left[GID], expert = (int)(GID % a.e), all;
  U32 best = a.key[GID];
  if (a.surplus[GID] < 1) return;
  pool_tokens own = tokens_of(a.pool_begin, a.first_pool + (int)(GID / a.e), a.n, a.stride);
  for (I64 t0 = own.first; t0 < own.end; t0 += GROUP * own.step) {
    I64 at = (t0 + LID * own.step) * a.e + expert;
    int equal = t0 + LID * own.step < own.end && a.keep[at] && key_of(a.score[at]) == best;
    int rank = rank_over(equal, scratch, &all);
    if (equal && rank >= left) a.keep[at] = 0;
    left -= all;
  }
}

/* ---- lists ---- */

/* In lists, an item's tokens are a run of TILE_TOKENS / ROWS: returns their marks as bits. */
INLINE U64 run_of_marks(GLOBAL const uchar *keep, I64 first, int n, int e, int expert) {
  U64 marks = 0;
  for (int i = 0; i < TILE_TOKENS / ROWS; i++)
    if (expert < e && first + i < n && keep[(first + i) * e + expert]) marks |= (U64)1 << i;
  return marks;
}

INLINE int number_of(U64 marks) {
  int count = 0;
  for (; marks; marks &= marks - 1) count++;
  return count;
}

/* Without slot_token: size [e,parts] = number of marks per expert and part of the tokens. With slot_token: lists the
 * marked tokens; size holds the offsets [e,parts]. */
KERNEL(list_marked) {
  SHARED int count[GROUP];
  int blocks = (a.e + TILE_EXPERTS - 1) / TILE_EXPERTS,
      expert = (int)(GID % blocks) * TILE_EXPERTS + LID % TILE_EXPERTS, row = LID / TILE_EXPERTS, before = 0;
  I64 part = GID / blocks, first = part * TILE_TOKENS + row * (TILE_TOKENS / ROWS), at = (I64)expert * a.parts + part;
  U64 marks = run_of_marks(a.keep, first, a.n, a.e, expert);
  count[LID] = number_of(marks);
  SYNC;
  if (expert >= a.e) return;
  for (int r = 0; r < (a.slot_token ? row : ROWS); r++) before += count[r * TILE_EXPERTS + LID % TILE_EXPERTS];
  if (!a.slot_token) {
    if (row == 0) a.size[at] = before;
    return;
  }
  GLOBAL int *list = a.slot_token + a.size[at] + before;
  for (int i = 0; marks; i++, marks >>= 1)
    if (marks & 1) *list++ = (int)first + i;
  if (row == 0 && part == 0) a.expert_begin[expert] = a.size[at];
  if (row == 0 && part == 0 && expert == 0) a.expert_begin[a.e] = a.size[(I64)a.e * a.parts];
}

/* Exclusive prefix sum of `count` sizes; element [count] is the total. One group per TILE_SIZES sizes, which first sums
 * all sizes before its own. */
KERNEL(prefix) {
  SHARED int scratch[GROUP];
  I64 first = GID * TILE_SIZES, end = first + TILE_SIZES < a.count ? first + TILE_SIZES : a.count;
  int before = 0, all;
  for (I64 i = LID; i < first; i += GROUP) before += a.size[i];
  rank_over(before, scratch, &all);
  before = all;
  for (I64 i0 = first; i0 < end; i0 += GROUP) {
    I64 i = i0 + LID;
    int own = i < end ? a.size[i] : 0, rank = rank_over(own, scratch, &all);
    if (i < end) a.begin[i] = before + rank;
    before += all;
  }
  if (LID == 0 && end == a.count) a.begin[end] = before;
}
