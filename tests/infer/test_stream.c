/* Text as it comes: stop texts and characters that reach over tokens, and bytes that are no characters. */
#include "base/text.h"
#include "infer/prompt.h"
#include "testing.h"

typedef struct {
  const char *tokens[8]; /* NULL-terminated */
  const char *stops[4];
  const char *shown; /* after every token, parted by | */
  const char *text;  /* in the end */
  int stopped;
} story;

static const story stories[] = {
    {{"a", "b", "c"}, {NULL}, "a|ab|abc", "abc", 0},
    {{"one", "", " two"}, {NULL}, "one|one|one two", "one two", 0},
    /* a stop text within a token, over two, over three */
    {{"say END now"}, {"END"}, "say ", "say ", 1},
    {{"say E", "ND", "x"}, {"END"}, "say |say |say ", "say ", 1},
    {{"say E", "N", "D"}, {"END"}, "say |say |say ", "say ", 1},
    /* what looked like one and was not comes out after all; so does what is left at the end */
    {{"say E", "N", "T"}, {"END"}, "say |say |say ENT", "say ENT", 0},
    {{"say E", "N"}, {"END"}, "say |say ", "say EN", 0},
    {{"aab", "aab", "aac"}, {"aabaac"}, "|aab|aab", "aab", 1},
    {{"aaa", "aaa", "b"}, {"aaab"}, "|aaa|aaa", "aaa", 1},
    /* of several the first that is whole; the earlier beginning where both become so at once */
    {{"abcd"}, {"cd", "bc"}, "a", "a", 1},
    {{"ab", "cd"}, {"d", "bcx"}, "a|abc", "abc", 1},
    {{"x\n", "\ny"}, {"\n\n"}, "x|x", "x", 1},
    {{"END"}, {"END"}, "", "", 1},
    /* characters in pieces: é, €, a clef, and one whose first byte allows few second ones */
    {{"\xE0", "\xA4\x85"}, {NULL}, "|\xE0\xA4\x85", "\xE0\xA4\x85", 0},
    {{"\xC3", "\xA9"}, {NULL}, "|\xC3\xA9", "\xC3\xA9", 0},
    {{"x\xE2", "\x82", "\xACy"}, {NULL}, "x|x|x\xE2\x82\xACy", "x\xE2\x82\xACy", 0},
    {{"\xF0", "\x9D\x84", "\x9E"}, {NULL}, "||\xF0\x9D\x84\x9E", "\xF0\x9D\x84\x9E", 0},
    /* unfinished at the end, or followed by something else: one U+FFFD for each byte */
    {{"a\xE2\x82"}, {NULL}, "a", "a\xEF\xBF\xBD\xEF\xBF\xBD", 0},
    {{"\xE2", "b"},
     {NULL},
     "|\xEF\xBF\xBD"
     "b",
     "\xEF\xBF\xBD"
     "b",
     0},
    {{"\x80z"}, {NULL}, "\xEF\xBF\xBDz", "\xEF\xBF\xBDz", 0},
    {{"\xFF", "\xC0\xAF"},
     {NULL},
     "\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
     0},
    {{"\xED\xA0", "\x80"},
     {NULL},
     "\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
     "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
     0},
    {{"a\xE2", "END"}, {"END"}, "a|a\xEF\xBF\xBD", "a\xEF\xBF\xBD", 1},
    /* a stop text of such characters */
    {{"a\xE2", "\x82\xAC", "b"}, {"\xE2\x82\xAC"}, "a|a|a", "a", 1},
};

static void on_text(void **state) {
  for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
    const story *t = &stories[i];
    ch_stream_text s = {0};
    char shown[256] = "";
    for (int k = 0; t->tokens[k]; k++) {
      test_ok(ch_stream_add(&s, t->tokens[k], strlen(t->tokens[k]), t->stops));
      snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "%s%.*s", k ? "|" : "", (int)s.text.size,
               s.text.size ? s.text.data : "");
    }
    test_ok(ch_stream_end(&s));
    if (strcmp(shown, t->shown)) fail_msg("story %zu: showed \"%s\", not \"%s\"", i, shown, t->shown);
    if (s.text.size != strlen(t->text) || memcmp(s.text.data ? s.text.data : "", t->text, s.text.size))
      fail_msg("story %zu: \"%.*s\", not \"%s\"", i, (int)s.text.size, s.text.data, t->text);
    assert_int_equal(s.stopped, t->stopped);
    ch_stream_free(&s);
  }
}

/* Random texts over few letters, cut anyhow: what is shown only grows, is UTF-8, and the end does not depend on cuts.
 */
static void cuts_do_not_matter(void **state) {
  static const char *const stops[] = {"abab", "b\xC3\xA9", NULL};
  static const char letters[] = "aab\xC3\xA9\xE2";
  ch_rng rng = ch_rng_make(1, CH_STREAM_TEST, 8);
  uint64_t at = 0;
  for (int round = 0; round < 3000; round++) {
    char text[24];
    size_t size = ch_rng_below(rng, at++, sizeof text), first = size;
    for (size_t i = 0; i < size; i++) text[i] = letters[ch_rng_below(rng, at++, sizeof letters - 1)];
    for (int k = 0; k < 2; k++) {
      const char *found = memmem(text, size, stops[k], strlen(stops[k]));
      if (found && (size_t)(found - text) < first) first = (size_t)(found - text);
    }
    ch_stream_text bytes = {0}, parts = {0};
    for (size_t i = 0; i < size; i++) test_ok(ch_stream_add(&bytes, text + i, 1, stops));
    for (size_t i = 0, n; i < size; i += n) {
      n = 1 + ch_rng_below(rng, at++, size - i);
      char before[128];
      size_t had = parts.text.size;
      if (had) memcpy(before, parts.text.data, had);
      test_ok(ch_stream_add(&parts, text + i, n, stops));
      assert_true(parts.text.size >= had && (!had || !memcmp(before, parts.text.data, had)));
      assert_int_equal(ch_utf8_valid(parts.text.data, parts.text.size), parts.text.size);
    }
    test_ok(ch_stream_end(&bytes));
    test_ok(ch_stream_end(&parts));
    if (!bytes.stopped) assert_int_equal(first, size);
    if (ch_utf8_valid(text, size) == size && !parts.stopped) assert_int_equal(parts.text.size, size);
    if (!bytes.stopped) assert_true(!parts.stopped && bytes.text.size == parts.text.size);
    ch_stream_free(&bytes);
    ch_stream_free(&parts);
  }
}

TEST_MAIN(NULL, NULL, on_text, cuts_do_not_matter)
