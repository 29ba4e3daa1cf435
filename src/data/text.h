/* Documents out of files: plain text split at separator lines, or JSON lines. Streams in blocks, so that memory does
 * not grow with the input or with a document. */
#ifndef CH_DATA_TEXT_H
#define CH_DATA_TEXT_H

#include "data/input.h"

typedef struct ch_text_options {
  const char *const *inputs; /* NULL-terminated */
  const char *field;         /* JSON lines: the field with the text; NULL: plain text */
  const char *separator;     /* plain text: the line between documents; NULL: a file is one document */
  int replace_invalid;       /* bytes that are not UTF-8 become U+FFFD, one each; 0: an error */
  size_t block_bytes;        /* documents come in blocks of at most about this size; 8 at least */
} ch_text_options;

/* A block of a document. Blocks end at line ends where they can (before the newline), else before a space, else between
 * two characters: nowhere does that change the tokens but in runs without any space that are longer than a block. */
typedef struct ch_block {
  const char *text; /* well-formed UTF-8, valid until the next call */
  size_t size;      /* may be 0 in the last block of a document */
  int last;         /* the document ends here */
} ch_block;

typedef struct ch_text ch_text;

/* Checks that all inputs are there; opens none yet. */
int ch_text_open(const ch_text_options *options, ch_text **text);
/* more = 0: the end, no block. Documents without a byte are left out. */
int ch_text_next(ch_text *text, ch_block *block, int *more);
void ch_text_close(ch_text *text);

uint64_t ch_text_bytes_done(const ch_text *text); /* of the files on disk */
uint64_t ch_text_bytes_total(const ch_text *text);
uint64_t ch_text_replaced(const ch_text *text); /* bytes replaced so far */

#endif
