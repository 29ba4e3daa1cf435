/* Text from files and people: UTF-8, text for terminals, words that were meant. */
#ifndef CH_BASE_TEXT_H
#define CH_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Well-formed UTF-8 is that of RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF. */

/* Length of the longest well-formed start of text[0,size): `size` when all of it is. */
size_t ch_utf8_valid(const char *text, size_t size);

/* The last place <= `at` where text may be cut without cutting a character; never 0. */
size_t ch_utf8_cut(const char *text, size_t at);

/* Length of the byte order mark that a file may begin with; 0: none. */
size_t ch_utf8_mark(const char *text, size_t size);

/* A piece of a text; not NUL-terminated. */
typedef struct ch_value {
  const char *text;
  size_t size;
} ch_value;

/* The next line of a text from memory, without its end (LF or CR LF); 0: there is none. Steps over a byte order mark
 * before the first. */
typedef struct ch_lines {
  const char *text, *end;
  int64_t number; /* of the line, from 1 */
} ch_lines;
int ch_lines_next(ch_lines *lines, ch_value *line);

/* Writes text so that a terminal shows all of it and obeys none: control characters become \n, \t, \x1B; C1 controls,
 * separators of lines and marks that turn the direction of writing \u009B, \u2028, \u202E; bytes that are not UTF-8
 * \xFF. lines: nonzero leaves line ends and tabs as they are. At most room-1 bytes and a NUL, never half an escape or a
 * character. Returns the length of the whole, as snprintf does. */
size_t ch_printable(const char *text, size_t size, int lines, char *out, size_t capacity);

/* The place of a word in a list that ends with NULL; -1: it is not there. */
int ch_word_number(const char *const *words, const char *word);

/* Whether a text of words with spaces between them has this one. */
int ch_has_word(const char *list, const char *word);

/* The known word (NULL-terminated list) that is nearest by edit distance, neighbouring letters swapped counting one,
 * or, where none is near, the first that contains the word; NULL when there is none. Ties go to the earlier word. */
const char *ch_suggest(const char *word, const char *const *known);

/* Writes ", did you mean 'x'?" for use at the end of a message, or "" when nothing is near. Returns `text`. */
const char *ch_did_you_mean(char *text, size_t size, const char *word, const char *const *known);

/* Writes "a, b, c" of the known words. Returns `text`. */
const char *ch_word_list(char *text, size_t size, const char *const *known);

#endif
