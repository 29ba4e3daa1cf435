/* Files that are not text are refused by their first bytes. tests/data/test_text.c has compressed files and tar
 * archives. */
#include "data/text.h"
#include "testing.h"

static void refuses_what_is_not_text(void **state) {
  (void)state;
  char digits[120];
  memset(digits, '0', sizeof digits);
  memcpy(digits, "070701", 6);
  const struct {
    const char *bytes;
    size_t size;
    const char *says; /* NULL: it is text */
  } files[] = {{"\xFF\xFEk\0a\0", 6, "looks like UTF-16"},
               {"\xFE\xFF\x4E\x2D\x65\x87", 6, "looks like UTF-16"},
               {"k\0a\0t\0o\0", 8, "looks like UTF-16"},
               {"\0k\0a\0t\0o", 8, "looks like UTF-16"},
               {"k\0\0\0a\0\0\0", 8, "looks like UTF-16"},
               {"!<arch>\na.txt/          0 ", 26, "begins like an ar file, and is no text"},
               {"!<arci>\na.txt/          0 ", 26, "begins like an ar file but for one bit: it is damaged"},
               {"PAR1\x15\4\x15", 7, "begins like a Parquet file"},
               {digits, sizeof digits, "is a cpio archive"},
               {"", 0, NULL},
               {"k", 1, NULL},
               {"0707012345 is a number\n", 23, NULL},
               {"PARIS is a text, as !<arch> is\n", 31, NULL},
               {"a \0 in a text\n", 14, NULL}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    int code = ch_detect_non_text("f", files[i].bytes, files[i].size);
    if (files[i].says)
      test_fails(code, CHOIR_ERROR_FORMAT, files[i].says);
    else
      test_ok(code);
  }
}

TEST_MAIN(NULL, NULL, refuses_what_is_not_text)
