#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/words.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define LATER "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const ch_cutting ch_cuttings[] = {
    /* GPT-2, OLMoE */
    {{"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}, {"gpt-2", NULL}},
    /* Qwen 2 and 3 */
    {{CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" LATER}, {"qwen2", NULL}},
    /* Llama 3; GLM-4 merges words that are tokens */
    {{CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" LATER}, {"smaug-bpe", "llama-bpe"}},
    /* DeepSeek V3 */
    {{"\\p{N}{1,3}", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
     {"deepseek-v3", NULL}},
    {{NULL}, {NULL}}};

/* ---- normalization ---- */

/* A character with its sort key: 8 bits of combining class, 35 of position, 21 of code point. */
static uint64_t sort_key(utf8proc_int32_t c, size_t place) {
  return (uint64_t)utf8proc_get_property(c)->combining_class << 56 | (uint64_t)place << 21 | (uint32_t)c;
}

static int by_key(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Sorts a run of marks (characters with a combining class above 0) by their classes. utf8proc sorts them in time
 * that grows with the square of their number. */
static void sort_marks(utf8proc_int32_t *c, size_t count, uint64_t *keys) {
  for (size_t i = 0, n; i < count; i += n + 1) {
    for (n = 0; i + n < count; n++)
      if (!((keys[n] = sort_key(c[i + n], n)) >> 56)) break;
    if (n < 2) continue;
    qsort(keys, n, sizeof *keys, by_key);
    for (size_t k = 0; k < n; k++) c[i + k] = (utf8proc_int32_t)(keys[k] & 0x1FFFFF);
  }
}

/* Characters below U+0300 neither combine with others nor change. */
static int is_plain(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((unsigned char)text[i] >= 0xCC) return 0;
  return 1;
}

static int compose(const char *text, size_t size, utf8proc_int32_t *c, uint64_t *keys, size_t capacity,
                   ch_buffer *out) {
  utf8proc_ssize_t count = 0;
  for (size_t at = 0; at < size;) {
    utf8proc_int32_t one;
    at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &one);
    count += utf8proc_decompose_char(one, c + count, (utf8proc_ssize_t)capacity - count, UTF8PROC_DECOMPOSE, NULL);
  }
  sort_marks(c, (size_t)count, keys);
  count = utf8proc_normalize_utf32(c, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  CH_TRY(ch_buffer_reserve(out, 4 * (size_t)count + 1));
  for (utf8proc_ssize_t i = 0; i < count; i++)
    out->size += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)out->data + out->size);
  return CHOIR_OK;
}

int ch_nfc(const char *text, size_t size, ch_buffer *out) {
  if (is_plain(text, size)) return ch_buffer_append(out, text, size);
  size_t capacity = 2 * size; /* two bytes become at most three characters: U+01D5 */
  utf8proc_int32_t *c = NULL;
  uint64_t *keys = NULL;
  int code = CH_RESIZE(&c, capacity, "characters to normalize"); /* not CH_ALLOC: zeroing them would cost a pass */
  if (!code) code = CH_RESIZE(&keys, capacity, "the order of characters");
  if (!code) code = compose(text, size, c, keys, capacity, out);
  free(c);
  free(keys);
  return code;
}

/* ---- added tokens ---- */

static int by_text(const void *a, const void *b) {
  const ch_added_token *x = a, *y = b;
  int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
  return order ? order : (x->size > y->size) - (x->size < y->size);
}

void ch_added_sort(ch_added_set *set) {
  if (set->count) qsort(set->token, (size_t)set->count, sizeof *set->token, by_text);
  for (int i = 0; i < set->count; i++) set->begins[(unsigned char)*set->token[i].text] = 1;
}

/* The index of the first token in [low, high), all of which agree in their first `at` bytes and are longer, whose
 * next byte is >= `byte`. */
static int bound(const ch_added_set *set, int low, int high, size_t at, int byte) {
  while (low < high) {
    int middle = low + (high - low) / 2;
    if ((unsigned char)set->token[middle].text[at] < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The longest token that the text begins with, or NULL. */
static const ch_added_token *longest(const ch_added_set *set, const char *text, size_t size) {
  const ch_added_token *found = NULL;
  int low = 0, high = set->count;
  for (size_t at = 0; low < high; at++) {
    if (set->token[low].size == at) found = &set->token[low++]; /* sorted before the longer tokens */
    if (at == size) break;
    int byte = (unsigned char)text[at];
    high = bound(set, low, high, at, byte + 1);
    low = bound(set, low, high, at, byte);
  }
  return found;
}

typedef struct walk {
  const ch_words *words;
  pcre2_match_data *found[CH_PATTERNS];
  ch_take_word *take;
  void *context;
} walk;

/* Splits the text at tokens of a set; `between` is called for the text between them. */
static int cut_tokens(const walk *w, const ch_added_set *set, const char *text, size_t size,
                      int (*between)(const walk *w, const char *text, size_t size)) {
  size_t done = 0;
  for (size_t at = 0; at < size;) {
    const ch_added_token *t = set->begins[(unsigned char)text[at]] ? longest(set, text + at, size - at) : NULL;
    if (!t) {
      at++;
      continue;
    }
    if (at > done) CH_TRY(between(w, text + done, at - done));
    CH_TRY(w->take(w->context, text + at, t->size, t->id));
    done = at += t->size;
  }
  return done < size ? between(w, text + done, size - done) : CHOIR_OK;
}

/* ---- regular expressions ---- */

/* \s in the file means Unicode's White_Space to Oniguruma, which tokenizers uses; PCRE2's \s includes U+180E, too. */
static int spell_spaces(const char *regex, ch_buffer *out) {
  static const char space[] = "\\t-\\r\\x{85}\\p{Z}";
  for (int inside = 0; *regex; regex++) {
    int escaped = *regex == '\\';
    if (escaped && (regex[1] == 's' || regex[1] == 'S')) {
      if (!inside) CH_TRY(ch_buffer_append(out, regex[1] == 's' ? "[" : "[^", regex[1] == 's' ? 1 : 2));
      CH_TRY(ch_buffer_append(out, space, sizeof space - 1));
      if (!inside) CH_TRY(ch_buffer_append(out, "]", 1));
    } else {
      CH_TRY(ch_buffer_append(out, regex, 1 + (size_t)escaped));
      inside = !escaped && *regex == '[' ? 1 : !escaped && *regex == ']' ? 0 : inside;
    }
    regex += escaped;
  }
  return CHOIR_OK;
}

int ch_words_compile(ch_words *w) {
  w->limits = pcre2_match_context_create(NULL);
  if (!w->limits) return ch_error(CHOIR_ERROR_MEMORY, "not enough memory to cut words");
  /* The patterns backtrack over a run of spaces at most, so ten million spaces are not a problem. */
  pcre2_set_match_limit(w->limits, UINT32_MAX);
  for (int i = 0; i < CH_PATTERNS && w->cutting->regex[i]; i++) {
    ch_buffer text = {0};
    int error = 0;
    size_t at;
    int code = spell_spaces(w->cutting->regex[i], &text);
    if (!code) w->code[i] = pcre2_compile((PCRE2_SPTR)text.data, text.size, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    free(text.data);
    if (!w->code[i]) return ch_error(CHOIR_ERROR_MEMORY, "PCRE2 cannot compile a pattern for words: error %d", error);
    pcre2_jit_compile(w->code[i], PCRE2_JIT_COMPLETE); /* without a JIT the pattern is interpreted */
  }
  return CHOIR_OK;
}

void ch_words_free(ch_words *w) {
  for (int i = 0; i < CH_PATTERNS; i++) pcre2_code_free(w->code[i]);
  pcre2_match_context_free(w->limits);
  free(w->raw.token);
  free(w->normalized.token);
}

/* Passes matches of a pattern, and the text between them, to the next pattern. */
static int cut_words(const walk *w, int pattern, const char *text, size_t size) {
  if (pattern == CH_PATTERNS || !w->found[pattern]) return w->take(w->context, text, size, -1);
  const size_t *match = pcre2_get_ovector_pointer(w->found[pattern]);
  for (size_t at = 0; at < size;) {
    int got = pcre2_match(w->words->code[pattern], (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, w->found[pattern],
                          w->words->limits);
    if (got < 0 && got != PCRE2_ERROR_NOMATCH)
      return ch_error(CHOIR_ERROR_MEMORY, "cutting a text into words failed: error %d of PCRE2", got);
    size_t begin = got < 0 ? size : match[0], end = got < 0 ? size : match[1];
    if (begin > at) CH_TRY(cut_words(w, pattern + 1, text + at, begin - at));
    if (end > begin) CH_TRY(cut_words(w, pattern + 1, text + begin, end - begin));
    at = end;
  }
  return CHOIR_OK;
}

static int cut_first(const walk *w, const char *text, size_t size) { return cut_words(w, 0, text, size); }

static int normalize(const walk *w, const char *text, size_t size) {
  if (!w->words->nfc) return cut_tokens(w, &w->words->normalized, text, size, cut_first);
  ch_buffer plain = {0};
  int code = ch_nfc(text, size, &plain);
  if (!code) code = cut_tokens(w, &w->words->normalized, plain.data, plain.size, cut_first);
  free(plain.data);
  return code;
}

int ch_words_of(const ch_words *words, const char *text, size_t size, ch_take_word *take, void *context) {
  walk w = {.words = words, .take = take, .context = context};
  int code = CHOIR_OK;
  for (int i = 0; i < CH_PATTERNS && words->code[i] && !code; i++)
    if (!(w.found[i] = pcre2_match_data_create(1, NULL)))
      code = ch_error(CHOIR_ERROR_MEMORY, "not enough memory to cut words");
  if (!code) code = cut_tokens(&w, &words->raw, text, size, normalize);
  for (int i = 0; i < CH_PATTERNS; i++) pcre2_match_data_free(w.found[i]);
  return code;
}
