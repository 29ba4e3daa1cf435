/* Text from files and users: UTF-8, escapes for terminals, suggestions for misspelled words. */
#ifndef CH_BASE_TEXT_H
#define CH_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Well-formed UTF-8 as in RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF. */

/* Length of the longest well-formed prefix of text[0,size). */
size_t ch_utf8_valid(const char *text, size_t size);

/* The last position <= `at` that does not split a character; never 0. */
size_t ch_utf8_cut(const char *text, size_t at);

/* Length of the byte order mark at the start of a text; 0: none. */
size_t ch_utf8_mark(const char *text, size_t size);

/* A substring; not NUL-terminated. */
typedef struct ch_value {
  const char *text;
  size_t size;
} ch_value;

/* The next line of a text in memory, without its end (LF or CR LF); 0: no more lines. Skips a byte order mark before
 * the first line. */
typedef struct ch_lines {
  const char *text, *end;
  int64_t number; /* line number, from 1 */
} ch_lines;
int ch_lines_next(ch_lines *lines, ch_value *line);

/* Escapes text for terminals: control characters become \n, \t, \x1B; C1 controls, line separators and bidirectional
 * marks become \u009B, \u2028, \u202E; bytes that are not UTF-8 become \xFF. lines: nonzero keeps line ends and tabs.
 * Writes at most capacity-1 bytes and a NUL, never part of an escape or character. Returns the length of the whole, as
 * snprintf does. */
size_t ch_printable(const char *text, size_t size, int lines, char *out, size_t capacity);

/* Index of a word in a NULL-terminated list; -1: not found. */
int ch_word_number(const char *const *words, const char *word);

/* Whether a space-separated list of words contains `word`. */
int ch_has_word(const char *list, const char *word);

/* The known word (NULL-terminated list) nearest by edit distance (a swap of adjacent letters counts one), otherwise the
 * first known word that contains `word`; NULL: none. Ties go to the earlier word. */
const char *ch_suggest(const char *word, const char *const *known);

/* Writes ", did you mean 'x'?" for the end of a message, or "" without a suggestion. Returns `text`. */
const char *ch_did_you_mean(char *text, size_t size, const char *word, const char *const *known);

/* Writes "a, b, c" of the known words. Returns `text`. */
const char *ch_word_list(char *text, size_t size, const char *const *known);

#endif
