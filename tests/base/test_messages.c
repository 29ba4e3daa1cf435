/* Messages and notices: one line each, whatever the names in them hold; a terminal shows all of it and obeys none. */
#include <errno.h>

#include "base/text.h"
#include "choir/choir.h"
#include "testing.h"

static void shows(const char *text, size_t size, int lines, const char *wanted) {
  char out[256];
  memset(out, 'x', sizeof out);
  assert_int_equal(ch_printable(text, size, lines, out, sizeof out), strlen(wanted));
  assert_string_equal(out, wanted);
}
#define SHOWS(text, lines, wanted) shows(text, sizeof(text) - 1, lines, wanted)

static void control_characters_are_escaped(void **state) {
  SHOWS("plain text, \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80", 0, "plain text, \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
  SHOWS("\x1B[31mred\a\x7F", 0, "\\x1B[31mred\\x07\\x7F");
  SHOWS("a\nb\tc\r", 0, "a\\nb\\tc\\r");
  SHOWS("a\nb\tc\r", 1, "a\nb\tc\\r");
  SHOWS("\0", 0, "\\x00");
  SHOWS(
      "\xC2\x9B"
      "31m",
      0, "\\u009B31m"); /* CSI in one character */
  SHOWS(
      "\xE2\x80\xAE"
      "gpj.exe",
      0, "\\u202Egpj.exe");                                                  /* right to left */
  SHOWS("\xE2\x80\xA8\xE2\x81\xA6\xEF\xBB\xBF", 0, "\\u2028\\u2066\\uFEFF"); /* line separator, isolate, mark */
  SHOWS("\xD8\x9C\xE2\x80\x8E\xE2\x80\x8F", 0, "\\u061C\\u200E\\u200F");     /* marks of direction */
  SHOWS("\xFF\xC3(\xE2\x82", 0, "\\xFF\\xC3(\\xE2\\x82");
  SHOWS("\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80", 0, "\\xC0\\x80\\xED\\xA0\\x80\\xF4\\x90\\x80\\x80");
  SHOWS("", 0, "");
}

static void messages_are_cut_between_characters(void **state) {
  const char text[] =
      "ab\x1B\xE2\x82\xAC"
      "cd";
  for (size_t capacity = 0; capacity < 16; capacity++) {
    char out[16];
    memset(out, '#', sizeof out);
    assert_int_equal(ch_printable(text, sizeof text - 1, 0, out, capacity), 11);
    if (!capacity) continue;
    size_t length = strlen(out);
    assert_true(length < capacity);
    assert_true(length <= 2 || length == 6 || length >= 9);
    for (size_t i = capacity; i < sizeof out; i++) assert_int_equal(out[i], '#');
  }
}

static void messages_are_one_line(void **state) {
  ch_error(CHOIR_ERROR_FORMAT, "tensor '%s' is missing", "x\nchoir: all is well\x1B[2J");
  assert_string_equal(choir_error_message(), "tensor 'x\\nchoir: all is well\\x1B[2J' is missing");
  ch_error_in(CHOIR_ERROR_FORMAT, "%s", "a\rb");
  assert_string_equal(choir_error_message(), "a\\rb: tensor 'x\\nchoir: all is well\\x1B[2J' is missing");
  errno = ENOENT;
  ch_error_errno("%s", "\x1B]0;t\a");
  assert_string_equal(choir_error_message(), "\\x1B]0;t\\x07: No such file or directory");
}

static void notices_are_told_once(void **state) {
  assert_string_equal(choir_notices(), "");
  ch_notice("first %d", 1);
  ch_notice("second\n%s", "\x1B");
  ch_notice("first %d", 1);
  assert_string_equal(choir_notices(), "first 1\nsecond\\n\\x1B\n");
  assert_string_equal(choir_notices(), "");
  for (int i = 0; i < 10000; i++) ch_notice("notice number %d", i); /* too many: the first stay, whole */
  const char *all = choir_notices();
  assert_int_equal(strncmp(all, "notice number 0\nnotice number 1\n", 32), 0);
  assert_int_equal(all[strlen(all) - 1], '\n');
  assert_string_equal(choir_notices(), "");
}

TEST_MAIN(NULL, NULL, control_characters_are_escaped, messages_are_cut_between_characters, messages_are_one_line,
          notices_are_told_once)
