/* Reading text: every compression, documents, JSON lines, damage, UTF-8, and blocks that add up. */
#include <archive.h>
#include <archive_entry.h>

#include "base/text.h"
#include "corpus.h"
#include "data/text.h"

static int begin(void **state) { return corpus_make_home(); }

/* Everything in the files, each document ended by '|' (which no test text holds otherwise). */
static int read_all(const ch_text_options *options, ch_buffer *out) {
  ch_text *text;
  ch_block block;
  int more, code = ch_text_open(options, &text);
  out->size = 0;
  if (code) return code;
  while (!(code = ch_text_next(text, &block, &more)) && more) {
    assert_int_equal(ch_utf8_valid(block.text, block.size), block.size);
    test_ok(ch_buffer_append(out, block.text, block.size));
    if (block.last) test_ok(ch_buffer_append(out, "|", 1));
  }
  if (!code) assert_int_equal(ch_text_bytes_done(text), ch_text_bytes_total(text));
  ch_text_close(text);
  test_ok(ch_buffer_append(out, "", 1));
  return code;
}

/* The file with this content gives these documents, whatever the size of blocks. */
static void gives(const char *content, size_t size, const char *separator, const char *field, const char *want) {
  const char *inputs[] = {corpus_path("in"), NULL};
  ch_buffer got = {0};
  corpus_save(inputs[0], content, size);
  for (size_t block = 8; block < 40; block++) {
    test_ok(read_all(&(ch_text_options){.inputs = inputs, .separator = separator, .field = field, .block_bytes = block},
                     &got));
    assert_string_equal(got.data, want);
  }
  free(got.data);
}
#define GIVES(content, separator, want) gives((content), sizeof(content) - 1, (separator), NULL, (want))
#define GIVES_JSON(content, want) gives((content), sizeof(content) - 1, NULL, "text", (want))

static void splits_documents(void **state) {
  GIVES("", NULL, "");
  GIVES("", "\f", "");
  GIVES("one\ntwo\n", NULL, "one\ntwo\n|");
  GIVES("one\ntwo", NULL, "one\ntwo|");
  GIVES("\n", NULL, "\n|");
  GIVES("one\n\f\ntwo\n", "\f", "one|two\n|");
  GIVES("one\n\f\ntwo", "\f", "one|two|");
  GIVES("\f\none\n\f\n\f\ntwo\n\f\n", "\f", "one|two|"); /* empty documents do not count */
  GIVES("\f\n\f\n", "\f", "");
  GIVES("one\n\n\f\ntwo\n\f", "\f", "one\n|two|");
  GIVES("one\n\nrest\n\n\nend\n", "", "one|rest|end\n|");   /* empty lines separate */
  GIVES("one \f\nx\f\n \f\n", "\f", "one \f\nx\f\n \f\n|"); /* only a whole line does */
  GIVES("one\n-----\ntwo\n-----x\n", "-----", "one|two\n-----x\n|");
  GIVES("one\r\ntwo\r\n", NULL, "one\r\ntwo\r\n|");
  GIVES("\xEF\xBB\xBFone\n", NULL, "one\n|");
  GIVES("a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9", NULL,
        "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9|");
}

static void takes_windows_line_ends(void **state) {
  const char *inputs[] = {corpus_path("in"), NULL};
  ch_buffer got = {0};
  corpus_save(inputs[0], "one\r\n\f\r\ntwo\r\n", 13);
  test_ok(read_all(&(ch_text_options){.inputs = inputs, .separator = "\f", .block_bytes = 1000}, &got));
  assert_string_equal(got.data, "one|two\r\n|");
  free(got.data);
  GIVES("one\r\n\f\ntwo", "\f", "one\r|two|"); /* a separator of the other kind takes none of the text */
}

static void reads_json_lines(void **state) {
  GIVES_JSON("{\"text\": \"one\\ntwo \\u00e9\\t\"}\n{\"id\": 12345678901234567890123, \"text\": \"kato\"}\n",
             "one\ntwo \xC3\xA9\t|kato|");
  GIVES_JSON("\n{\"text\": \"one\"}\r\n  \n{\"text\": \"\"}\n{\"text\":\"two\"}", "one|two|");
  GIVES_JSON("{\"text\": \"1e999 NaN\", \"a\": NaN, \"b\": [-Infinity, 1e999, 5]}",
             "1e999 NaN|");                                      /* as Python writes */
  GIVES_JSON("{\"text\": \"a,}\", \"b\": [1, 2, ],\t}", "a,}|"); /* and people */
  GIVES_JSON("{\"a\\u0000\": 1, \"text\": \"a\\\\u0000\", \"\\\\\\u0000\" : 2}", "a\\u0000|");
  GIVES_JSON("{\"a\\u0000\": {\"b\": \"\\u0000:\"}, \"text\": \"c\"}", "c|");
  GIVES_JSON("{\"text\": \"a b c d e f g h i j k l m n o p q r s t u v w x y z \\ud83d\\ude00\"}",
             "a b c d e f g h i j k l m n o p q r s t u v w x y z \xF0\x9F\x98\x80|");
}

static int read_one(const char *name, const char *separator, const char *field, int replace, ch_buffer *got) {
  const char *inputs[] = {corpus_path(name), NULL};
  return read_all(
      &(ch_text_options){
          .inputs = inputs, .separator = separator, .field = field, .replace_invalid = replace, .block_bytes = 64},
      got);
}

/* Half of a pair of surrogates is no character: it is an error, or becomes U+FFFD as its bytes would. */
static void half_pairs_are_replaced(void **state) {
  static const char line[] =
      "{\"text\": \"a\\ud83d b\\ude00\\ud83d\\ude00 \\\\ud83d \\uD83D\", \"score\": NaN}\n{\"text\": \"two\"}\n";
  ch_buffer got = {0};
  corpus_save(corpus_path("in"), line, sizeof line - 1);
  test_fails(read_one("in", NULL, "text", 0, &got), CHOIR_ERROR_FORMAT, "in:1: not JSON");
  got.size = 0;
  test_ok(read_one("in", NULL, "text", 1, &got));
  assert_string_equal(got.data, "a\xEF\xBF\xBD b\xEF\xBF\xBD\xF0\x9F\x98\x80 \\ud83d \xEF\xBF\xBD|two|");
  free(got.data);
}

static void json_errors_name_the_line(void **state) {
  static const struct {
    const char *line, *part;
  } cases[] = {{"{\"text\": \"x\"", "in:3: not JSON"},
               {"[1]", "in:3: expected an object, found an array"},
               {"3", "in:3: expected an object"},
               {"{\"txt\": \"x\"}", "in:3: no field \"text\""},
               {"{\"text\": 3}", "is a number, not a string"},
               {"{\"text\": null}", "in:3: field \"text\" is null"},
               {"{\"text\": \"\\ud800\"}", "in:3: not JSON"},
               {"{\"text\": \"\xFF\"}", "(line 3): not UTF-8 (0xFF)"},
               {"{\"text\": \"a\", \"text\": \"b\"}", "in:3: not JSON: duplicate object key"},
               {"plain text", "in:3: not JSON"},
               {NULL, "in:3: not JSON"}}; /* zeros, as a crash leaves them */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ch_buffer got = {0}, content = {0};
    corpus_add(&content, "{\"text\": \"fine\"}\n\n");
    test_ok(cases[i].line ? ch_buffer_append(&content, cases[i].line, strlen(cases[i].line))
                          : ch_buffer_append(&content, "\0\0\0", 3));
    corpus_add(&content, "\n");
    corpus_save(corpus_path("in"), content.data, content.size);
    test_fails(read_one("in", NULL, "text", 0, &got), CHOIR_ERROR_FORMAT, cases[i].part);
    free(got.data);
    free(content.data);
  }
}

/* Without a field, JSON lines are refused, and so is a file that is one JSON object or array. Anything else is text,
 * and everything with a separator. */
static void tells_json_lines_from_text(void **state) {
  static const char lines[] = "{\"id\": 1, \"text\": \"ka\", \"by\": \"lo\"}\n{\"text\": \"mi\"}\n";
  static const char *const text[] = {"{a}\n{b}\n", "{}\nka\n", "[1]\n[2]\n", "[1] ka\n", "{", ""};
  static const char *const whole[] = {"{\"text\": \"ka\"}\n", "{\"text\": \"ka\"}", "{\n\"text\": 1}\n\n",
                                      "[{\"text\": \"ka\"}, {\"text\": \"lo\"}]\n", " [\"ka\",\n\"lo\"]\n"};
  ch_buffer got = {0};
  corpus_save(corpus_path("in"), lines, sizeof lines - 1);
  test_fails(
      read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT,
      "in: is JSON lines: name the field that holds the text (--field, or field; its strings are \"text\", \"by\")");
  test_ok(read_one("in", "", NULL, 0, &got));
  test_ok(read_one("in", NULL, "text", 0, &got));
  for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
    corpus_save(corpus_path("in"), text[i], strlen(text[i]));
    test_ok(read_one("in", NULL, NULL, 0, &got));
  }
  for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
    corpus_save(corpus_path("in"), whole[i], strlen(whole[i]));
    test_fails(read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT,
               i < 3 ? "is one JSON object" : "is one JSON array");
    test_ok(read_one("in", "", NULL, 0, &got));
  }
  free(got.data);
}

/* Offsets and lines are those of the file, wherever blocks end. */
static void invalid_bytes_are_located(void **state) {
  ch_buffer content = {0}, got = {0};
  corpus_prose(&content, 3000, 2);
  ch_rng r = ch_rng_make(3, CH_STREAM_TEST, 0);
  for (uint64_t trial = 0; trial < 100; trial++) {
    char part[64];
    size_t at = (size_t)ch_rng_below(r, trial, content.size), line = 1;
    char kept = content.data[at];
    for (size_t i = 0; i < at; i++) line += content.data[i] == '\n';
    content.data[at] = (char)0xFF;
    if ((unsigned char)kept < 0x80) { /* else the other half of a character is what is wrong first */
      snprintf(part, sizeof part, "in: byte %zu (line %zu): not UTF-8 (0xFF)", at, line);
      corpus_save(corpus_path("in"), content.data, content.size);
      test_fails(read_one("in", "\f", NULL, 0, &got), CHOIR_ERROR_FORMAT, part);
    }
    content.data[at] = kept;
  }
  corpus_save(corpus_path("in"),
              "a\xFF\xFE"
              "b\n\f\n\xC3",
              8);
  test_ok(read_one("in", "\f", NULL, 1, &got));
  assert_string_equal(got.data,
                      "a\xEF\xBF\xBD\xEF\xBF\xBD"
                      "b|\xEF\xBF\xBD|");
  corpus_save(corpus_path("in"), "{\"text\": \"a\xFF\"}\n", 14);
  test_ok(read_one("in", NULL, "text", 1, &got));
  assert_string_equal(got.data, "a\xEF\xBF\xBD|");
  free(content.data);
  free(got.data);
}

static void compress(const char *path, int (*filter)(struct archive *), const void *data, size_t size) {
  struct archive *a = archive_write_new();
  struct archive_entry *entry = archive_entry_new();
  if (filter) assert_int_equal(filter(a), ARCHIVE_OK);
  assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
  assert_int_equal(archive_write_set_bytes_in_last_block(a, 1), ARCHIVE_OK);
  assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_pathname(entry, "x");
  assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
  assert_int_equal(archive_write_data(a, data, size), (la_ssize_t)size);
  assert_int_equal(archive_write_close(a), ARCHIVE_OK);
  archive_entry_free(entry);
  archive_write_free(a);
}

static int (*const filters[])(struct archive *) = {NULL, archive_write_add_filter_gzip, archive_write_add_filter_xz,
                                                   archive_write_add_filter_zstd, archive_write_add_filter_bzip2};
enum { FILTERS = 5 };

static void reads_every_compression(void **state) {
  ch_buffer content = {0}, got = {0};
  corpus_prose(&content, 700000, 3);
  for (int f = 0; f < FILTERS; f++) {
    compress(corpus_path("in"), filters[f], content.data, content.size);
    test_ok(read_one("in", NULL, NULL, 0, &got));
    assert_int_equal(got.size, content.size + 2); /* '|' and NUL */
    assert_memory_equal(got.data, content.data, content.size);
  }
  free(content.data);
  free(got.data);
}

static void write_tar(const char *path, int (*format)(struct archive *), int gzip) {
  struct archive *a = archive_write_new();
  struct archive_entry *entry = archive_entry_new();
  if (gzip) assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
  assert_int_equal(format(a), ARCHIVE_OK);
  assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_pathname(entry, "texts/one.txt");
  archive_entry_set_size(entry, 10);
  assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
  assert_int_equal(archive_write_data(a, "kato mire\n", 10), 10);
  assert_int_equal(archive_write_close(a), ARCHIVE_OK);
  archive_entry_free(entry);
  archive_write_free(a);
}

/* An archive of texts is not one text. Text that looks like one is text. */
static void refuses_archives(void **state) {
  int (*const formats[])(struct archive *) = {archive_write_set_format_ustar, archive_write_set_format_gnutar,
                                              archive_write_set_format_pax_restricted, archive_write_set_format_v7tar};
  ch_buffer got = {0};
  for (int f = 0; f < 8; f++) {
    write_tar(corpus_path("in"), formats[f / 2], f % 2);
    test_fails(read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT, "in: is a tar archive; unpack it");
  }
  char text[600];
  memset(text, 'x', sizeof text);
  memcpy(text + 148, "0000000 ", 8);
  corpus_save(corpus_path("in"), text, sizeof text);
  test_ok(read_one("in", NULL, NULL, 0, &got));
  assert_int_equal(got.size, sizeof text + 2);
  free(got.data);
}

/* Cut anywhere, or with a bit flipped in its middle, a compressed file must not pass for a shorter or another text. */
static void refuses_damaged_compression(void **state) {
  ch_buffer content = {0}, got = {0};
  corpus_prose(&content, 30000, 4);
  for (int f = 1; f < FILTERS; f++) {
    compress(corpus_path("whole"), filters[f], content.data, content.size);
    ch_buffer whole = corpus_load(corpus_path("whole"));
    for (size_t cut = 1; cut <= 20; cut++) {
      corpus_save(corpus_path("in"), whole.data, whole.size - cut * whole.size / 25);
      assert_int_equal(read_one("in", NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT);
    }
    corpus_save(corpus_path("in"), whole.data, whole.size - 1);
    assert_int_equal(read_one("in", NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT);
    int checked = filters[f] != archive_write_add_filter_zstd; /* its frames need no checksum, and these have none */
    for (size_t at = whole.size / 10; checked && at < whole.size - whole.size / 10; at += whole.size / 10) {
      whole.data[at] ^= 4;
      corpus_save(corpus_path("in"), whole.data, whole.size);
      test_fails(read_one("in", NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT, " at byte ");
      whole.data[at] ^= 4;
    }
    free(whole.data);
  }
  free(content.data);
  free(got.data);
}

/* Streams in a row are one text, whatever compressed them; what stands between two is no end of the file. */
static void reads_every_stream(void **state) {
  ch_buffer got = {0};
  for (int f = 1; f < FILTERS; f++) {
    compress(corpus_path("a"), filters[f], "kato\n", 5);
    compress(corpus_path("b"), filters[f], "hundo\n", 6);
    ch_buffer a = corpus_load(corpus_path("a")), b = corpus_load(corpus_path("b")), two = {0};
    test_ok(ch_buffer_append(&two, a.data, a.size));
    test_ok(ch_buffer_append(&two, b.data, b.size));
    corpus_save(corpus_path("in"), two.data, two.size);
    test_ok(read_one("in", NULL, NULL, 0, &got));
    assert_string_equal(got.data, "kato\nhundo\n|");
    for (int bit = 0; bit < 32; bit++) { /* of the second member's magic number */
      two.data[a.size + (size_t)bit / 8] ^= (char)(1 << bit % 8);
      corpus_save(corpus_path("in"), two.data, two.size);
      int code = read_one("in", NULL, NULL, 0, &got);
      two.data[a.size + (size_t)bit / 8] ^= (char)(1 << bit % 8);
      if (code != CHOIR_ERROR_FORMAT && (code || strcmp(got.data, "kato\nhundo\n|")))
        fail_msg("filter %d, bit %d: code %d, text %s", f, bit, code, got.data);
    }
    two.size = a.size;
    test_ok(ch_buffer_append(&two, "zzzz", 4));
    test_ok(ch_buffer_append(&two, b.data, b.size));
    corpus_save(corpus_path("in"), two.data, two.size);
    test_fails(read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT, "in: ");
    free(a.data), free(b.data), free(two.data);
  }
  free(got.data);
}

/* Members in a row are one text, zeros may follow, other bytes may not. */
static void reads_gzip_members(void **state) {
  ch_buffer got = {0};
  compress(corpus_path("a"), archive_write_add_filter_gzip, "kato\n", 5);
  ch_buffer a = corpus_load(corpus_path("a")), b = {0};
  for (int i = 0; i < 3; i++) test_ok(ch_buffer_append(&b, a.data, a.size));
  test_ok(ch_buffer_append(&b, "\0\0\0", 3));
  corpus_save(corpus_path("in"), b.data, b.size);
  test_ok(read_one("in", NULL, NULL, 0, &got));
  assert_string_equal(got.data, "kato\nkato\nkato\n|");
  corpus_save(corpus_path("in"), b.data, 2 * a.size + 3);
  test_fails(read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT, "ends too early");
  corpus_add(&b, "kato");
  corpus_save(corpus_path("in"), b.data, b.size);
  test_fails(read_one("in", NULL, NULL, 0, &got), CHOIR_ERROR_FORMAT, "incorrect header check");
  free(a.data);
  free(b.data);
  free(got.data);
}

static void names_what_cannot_be_read(void **state) {
  ch_buffer got = {0};
  test_fails(read_one("none", NULL, NULL, 0, &got), CHOIR_ERROR_IO, "none: No such file");
  test_fails(read_one("", NULL, NULL, 0, &got), CHOIR_ERROR_IO, "is a directory");
  corpus_save(corpus_path("zero"), "", 0);
  test_ok(read_one("zero", NULL, NULL, 0, &got));
  assert_string_equal(got.data, "");
  free(got.data);
}

/* A bit flipped in the first bytes makes a compressed file one that no decompressor knows: it is not read as text, its
 * invalid bytes replaced, nor is a file that is only called like one. */
static void refuses_damaged_beginnings(void **state) {
  static const size_t magic[FILTERS] = {0, 3, 6, 4, 10};
  ch_buffer content = {0}, got = {0};
  corpus_prose(&content, 30000, 4);
  for (int f = 1; f < FILTERS; f++) {
    compress(corpus_path("whole"), filters[f], content.data, content.size);
    ch_buffer whole = corpus_load(corpus_path("whole"));
    for (size_t bit = 0; bit < 8 * magic[f]; bit++) {
      whole.data[bit / 8] ^= (char)(1 << bit % 8);
      corpus_save(corpus_path("in"), whole.data, whole.size);
      if (read_one("in", NULL, NULL, 1, &got) != CHOIR_ERROR_FORMAT && strncmp(got.data, content.data, content.size))
        fail_msg("filter %d, bit %zu: %.20s", f, bit, got.data);
      whole.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(whole.data);
  }
  static const char *const names[] = {"text.gz", "text.XZ", "text.zst", "text.tgz", "text.zip"};
  for (int i = 0; i < 5; i++) {
    corpus_save(corpus_path(names[i]), "plain\n", 6);
    test_fails(read_one(names[i], NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT,
               "its name ends like that of a compressed file");
  }
  corpus_save(corpus_path("in"), "PK\3\4 and so on\n", 16);
  test_fails(read_one("in", NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT, "begins like a zip file, and is no text");
  corpus_save(corpus_path("in"), "BZh is a text, and %PDX is one\n", 31);
  test_ok(read_one("in", NULL, NULL, 1, &got));
  free(content.data);
  free(got.data);
}

/* Another encoding is not trained on byte by byte; a few wrong bytes are. */
static void refuses_another_encoding(void **state) {
  char noise[4096];
  ch_buffer got = {0};
  for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(i % 7 ? 0x41 : 0xC0 | (i & 31));
  compress(corpus_path("in"), filters[1], noise, sizeof noise);
  test_fails(read_one("in", NULL, NULL, 1, &got), CHOIR_ERROR_FORMAT, "586 of its first 4096 bytes are not UTF-8");
  corpus_save(corpus_path("in"), noise, 64);
  test_ok(read_one("in", NULL, NULL, 1, &got));
  free(got.data);
}

static int end(void **state) { return corpus_end(state); }

TEST_MAIN(begin, end, splits_documents, takes_windows_line_ends, reads_json_lines, half_pairs_are_replaced,
          json_errors_name_the_line, tells_json_lines_from_text, invalid_bytes_are_located, reads_every_compression,
          refuses_archives, refuses_damaged_compression, refuses_damaged_beginnings, reads_every_stream,
          refuses_another_encoding, reads_gzip_members, names_what_cannot_be_read)
