/* "did you mean": the nearest of a list of known words. */
#ifndef CH_BASE_SUGGEST_H
#define CH_BASE_SUGGEST_H

#include <stddef.h>

/* The known word (NULL-terminated list) that is nearest by edit distance, neighbouring letters swapped counting one,
 * or, where none is near, the first that contains the word; NULL when there is none. Ties go to the earlier word. */
const char *ch_suggest(const char *word, const char *const *known);

/* Writes ", did you mean 'x'?" for use at the end of a message, or "" when nothing is near. Returns `text`. */
const char *ch_did_you_mean(char *text, size_t size, const char *word, const char *const *known);

/* Writes "a, b, c" of the known words. Returns `text`. */
const char *ch_word_list(char *text, size_t size, const char *const *known);

#endif
