#include "base/suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 64 };

static int min(int a, int b) { return a < b ? a : b; }

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours, each 1. Words that are
 * farther apart than `farthest` are more than that, however much. */
static int distance(const char *a, const char *b, int farthest) {
  int m = (int)strlen(a), n = (int)strlen(b);
  int rows[3][LONGEST + 1]; /* the last three rows of the table, in rotation */
  if (n > LONGEST || abs(m - n) > farthest) return farthest + 1;
  for (int j = 0; j <= n; j++) rows[0][j] = j;
  for (int i = 1; i <= m; i++) {
    int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3], least = i;
    now[0] = i;
    for (int j = 1; j <= n; j++) {
      now[j] = min(min(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = min(now[j], before[j - 2] + 1);
      least = min(least, now[j]);
    }
    if (least > farthest) return least; /* no later row has less */
  }
  return rows[m % 3][n];
}

/* The nearest within `farthest` edits. */
static const char *nearest_word(const char *word, const char *const *known, int farthest) {
  const char *nearest = NULL;
  for (; *known; known++) {
    int d = distance(word, *known, farthest);
    if (d > farthest) continue;
    nearest = *known;
    farthest = d - 1;
  }
  return nearest;
}

const char *ch_suggest(const char *word, const char *const *known) {
  size_t length = strlen(word);
  if (!length || length > LONGEST) return NULL;
  /* More edits make another word, not a misspelling. */
  const char *nearest = nearest_word(word, known, length < 3 ? 1 : length < 6 ? 2 : 3);
  for (; !nearest && length >= 3 && *known; known++) /* a name cut short: "gshard" */
    if (strstr(*known, word)) nearest = *known;
  return nearest;
}

const char *ch_did_you_mean(char *text, size_t size, const char *word, const char *const *known) {
  const char *nearest = ch_suggest(word, known);
  if (nearest)
    snprintf(text, size, ", did you mean '%s'?", nearest);
  else
    text[0] = 0;
  return text;
}

const char *ch_word_list(char *text, size_t size, const char *const *known) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; known[i] && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", known[i]);
  return text;
}
