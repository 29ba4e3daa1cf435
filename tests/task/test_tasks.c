/* Tasks: descriptions, both layouts of files, what is malformed in them, and rows as tokens. */
#include <limits.h>

#include "task/examples.h"
#include "task_testing.h"

/* ---- descriptions */

/* Every description that comes with the library can be read, and says what its set is. */
static void built_in(void **state) {
  static const char *const eleven[] = {"BoolQ", "CB",  "CoLA",  "MNLI", "MRPC", "QNLI",
                                       "QQP",   "RTE", "SST-2", "WNLI", "WiC"};
  int count = 0;
  for (const char *const *name = choir_task_names(); *name; name++, count++) {
    choir_task *task;
    test_ok(choir_task_load(*name, &task));
    assert_string_equal(choir_task_name(task), *name);
    assert_true(task->labels >= 2 && task->cut >= 0);
    assert_null(choir_task_labels(task)[task->labels]);
    choir_task_free(task);
  }
  assert_int_equal(count, 11);
  for (int i = 0; i < 11; i++) {
    choir_task *task;
    test_ok(choir_task_load(eleven[i], &task));
    choir_task_free(task);
  }
  choir_task *task;
  test_fails(choir_task_load("RTE2", &task), CHOIR_ERROR_ARGUMENT, "'RTE'");
  test_fails(choir_task_load("./absent.json", &task), CHOIR_ERROR_IO, "absent.json");
}

/* A description in which `from` reads `to` is refused with a message that has `part`. */
static void refused(const char *from, const char *to, const char *part) {
  char text[2048], whole[4096];
  choir_task *task;
  snprintf(text, sizeof text, task_text, "tsv", "tsv", "tsv", "tsv");
  const char *at = strstr(text, from);
  assert_non_null(at);
  int size = snprintf(whole, sizeof whole, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  test_fails(ch_task_parse(whole, (size_t)size, "toy.json", &task), CHOIR_ERROR_FORMAT, part);
  assert_non_null(strstr(choir_error_message(), "toy.json"));
  assert_null(task);
}

static void bad_descriptions(void **state) {
  refused("\"cut\"", "\"cutt\"", "did you mean 'cut'");
  refused("\"toy\"", "7", "\"name\"");
  refused("\"toy\"", "\"a/b\"", "a/b");
  refused("\"format\": \"tsv\"", "\"format\": \"csv\"", "csv");
  refused("\"splits\": {\"train\": [\"train.tsv\"]", "\"splits\": {\"train\": []", "train");
  refused("[\"first\", \"one\"]", "[\"first\", 0]", "0");
  refused("[\"first\", \"one\"]", "[\"first\", {}]", "{}");
  refused("{\"a\": [\"first\", \"one\"], \"b\": [\"second\"]}", "{}", "columns");
  refused("\"label\": [\"gold\"]", "\"label\": \"gold\"", "\"label\"");
  refused("\"word\": \" mire\"", "\"word\": \" ka\"", "two labels");
  refused("\"word\": \" mire\"", "\"word\": \"\"", "empty");
  refused("\"word\": \" mire\"", "\"world\": \" mire\"", "\"word\"");
  refused("\"1\", \"true\"", "\"1\", \"no\"", "\"no\"");
  refused("\"1\", \"true\"", "\"-\"", "\"-\"");
  refused("\"values\": [\"maybe\", \"2\"]", "\"values\": []", "values");
  refused("{a} and {b}", "{a} and {c}", "{c}");
  refused("{a} and {b}", "{a} and {b", "{b");
  refused("{a} and {b}", "a and b", "{a}");
  refused("\"cut\": \"a\"", "\"cut\": \"c\"", "\"cut\"");
  refused("\"cut\": \"a\"", "\"metrics\": [\"rouge\"]", "rouge");
  refused("\"cut\": \"a\"", "\"metrics\": [\"f1\"]", "two labels");
  refused("}", "", "toy.json");
}

static void finds_files(void **state) {
  choir_task *task = task_toy("tsv");
  char path[PATH_MAX];
  test_fails(ch_task_file(task, corpus_home, "dev", path), CHOIR_ERROR_IO, "dev.tsv, val.tsv");
  test_fails(ch_task_file(task, corpus_home, "test", path), CHOIR_ERROR_ARGUMENT, "train, dev");
  assert_int_equal(mkdir(corpus_path("toy"), 0777), 0);
  corpus_save(corpus_path("toy/val.tsv"), "x", 1);
  test_ok(ch_task_file(task, corpus_home, "dev", path));
  assert_non_null(strstr(path, "/toy/val.tsv"));
  corpus_save(corpus_path("val.tsv"), "x", 1);
  test_ok(ch_task_file(task, corpus_home, "dev", path));
  assert_string_equal(path, corpus_path("val.tsv"));
  choir_task_free(task);
}

/* ---- rows */

static void tab_separated(void **state) {
  choir_task *task = task_toy("tsv");
  ch_rows r;
  /* a byte order mark, CR LF, columns in any order and more of them, stray quotation marks, blanks, no last line end */
  test_ok(task_rows(task,
                    "\xEF\xBB\xBFid\tsecond\tmore\tone\tgold\r\n"
                    "7\tHe said \"so .\t-\t  \"x\" \tyes\r\n"
                    "\r\n"
                    "a9\t\tm\tü\t0\r\n"
                    "\tb\tm\ta\t-",
                    1, &r));
  assert_int_equal(r.count, 3);
  assert_int_equal(r.malformed, 0);
  task_value_is(&r, 0, 0, "\"x\"");
  task_value_is(&r, 0, 1, "He said \"so .");
  task_value_is(&r, 0, 2, "7");
  task_value_is(&r, 1, 0, "ü");
  task_value_is(&r, 1, 1, "");
  task_value_is(&r, 1, 2, "a9");
  task_value_is(&r, 2, 2, "2"); /* no index: the row's number */
  assert_int_equal(ch_rows_label(&r, 0), 1);
  assert_int_equal(ch_rows_label(&r, 1), 0);
  assert_int_equal(ch_rows_label(&r, 2), -1);
  ch_rows_free(&r);
  test_fails(task_rows(task, "id\tfirst\tgold\nx\ty\tno\n", 1, &r), CHOIR_ERROR_FORMAT, "'second'");
  test_fails(task_rows(task, "first\tsecond\nx\ty\n", 1, &r), CHOIR_ERROR_FORMAT, "'gold'");
  test_ok(task_rows(task, "FIRST\t Second \tGold\nx\ty\tno\n", 1, &r)); /* as spreadsheets write it */
  assert_int_equal(r.count, 1);
  task_value_is(&r, 0, 1, "y");
  ch_rows_free(&r);
  test_ok(task_rows(task, "first\tsecond\nx\ty\n", 0, &r));
  assert_int_equal(ch_rows_label(&r, 0), -1);
  ch_rows_free(&r);
  choir_task_free(task);
}

/* CoLA's: without a header in train and dev, with one in test. */
static void without_header(void **state) {
  choir_task *task;
  ch_rows r;
  test_ok(choir_task_load("CoLA", &task));
  test_ok(task_rows(task, "gj04\t1\t\tThe sailors rode the breeze.\ngj04\t0\t*\tThey drank the pub.\n", 1, &r));
  assert_int_equal(r.count, 2);
  task_value_is(&r, 0, 0, "The sailors rode the breeze.");
  task_value_is(&r, 1, 1, "1");
  assert_int_equal(ch_rows_label(&r, 0), 1);
  assert_int_equal(ch_rows_label(&r, 1), 0);
  ch_rows_free(&r);
  test_ok(task_rows(task, "index\tsentence\n0\tBill whistled.\n", 0, &r));
  assert_int_equal(r.count, 1);
  task_value_is(&r, 0, 0, "Bill whistled.");
  ch_rows_free(&r);
  test_fails(task_rows(task, "only\tthree\tcolumns\n", 1, &r), CHOIR_ERROR_FORMAT, "number 4");
  choir_task_free(task);
}

static void json_lines(void **state) {
  choir_task *task = task_toy("jsonl");
  ch_rows r;
  test_ok(task_rows(task,
                    "{\"one\": \"x \\\"y\\n\", \"second\": 12, \"gold\": true, \"id\": 5, \"more\": [1]}\n"
                    "\n"
                    "{\"second\": \"b\", \"first\": \"\\u00fc\", \"gold\": \"maybe\", \"id\": \"q\"}\r\n"
                    "{\"second\": \"b\", \"first\": \"a\", \"gold\": 0}",
                    1, &r));
  assert_int_equal(r.count, 3);
  task_value_is(&r, 0, 0, "x \"y");
  task_value_is(&r, 0, 1, "12");
  task_value_is(&r, 0, 2, "5");
  task_value_is(&r, 1, 0, "ü");
  task_value_is(&r, 1, 2, "q");
  task_value_is(&r, 2, 2, "2");
  assert_int_equal(ch_rows_label(&r, 0), 1);
  assert_int_equal(ch_rows_label(&r, 1), 2);
  assert_int_equal(ch_rows_label(&r, 2), 0);
  ch_rows_free(&r);
  test_ok(task_rows(task, "{\"second\": \"b\", \"first\": \"a\"}", 0, &r));
  assert_int_equal(ch_rows_label(&r, 0), -1);
  ch_rows_free(&r);
  choir_task_free(task);
}

/* A bad line among 200 good ones is left out, counted, and named. */
static void one_malformed(const char *format, const char *head, const char *good, const char *bad, const char *part) {
  choir_task *task = task_toy(format);
  ch_buffer text = {0};
  ch_rows r;
  corpus_add(&text, head);
  for (int i = 0; i < 200; i++) corpus_add(&text, i == 100 ? bad : good);
  test_ok(ch_rows_parse(task, "file", text.data, text.size, 1, &r));
  char line[16];
  snprintf(line, sizeof line, "line %d: ", *head ? 102 : 101);
  if (r.count != 199 || r.lines != 200 || r.malformed != 1 || strncmp(r.first, line, strlen(line)) ||
      !strstr(r.first, part))
    fail_msg("%s: %d rows, %d malformed: %s", bad, (int)r.count, (int)r.malformed, r.first);
  ch_rows_free(&r);
  free(text.data);
  choir_task_free(task);
}

static void malformed_rows(void **state) {
  static const char head[] = "first\tsecond\tgold\n", tsv[] = "a\tb\tno\n",
                    json[] =
                        "{\"first\": \"a\", \"second\": "
                        "\"b\", \"gold\": \"no\"}\n";
  one_malformed("tsv", head, tsv, "a\tno\n", "2 columns where line 1 has 3");
  one_malformed("tsv", head, tsv, "a\tb\tc\tno\n", "4 columns");
  one_malformed("tsv", head, tsv, "a\tb\xFF\tno\n", "byte 4 is not UTF-8");
  one_malformed("tsv", head, tsv, "a\tb\tNO\n", "label 'NO': must be one of no, yes, maybe");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"gold\": \"no\"}\n", "no 'second'");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"second\": [], \"gold\": \"no\"}\n", "'second' is no text");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"second\": \"b\", \"gold\": 0.5}\n", "'gold' is no text");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"second\": \"b\", \"gold\": 9}\n", "label '9'");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"second\": \"b\"}\n", "no label");
  one_malformed("jsonl", "", "{\"First\": \"a\", \" SECOND \": \"b\", \"Gold\": \"no\"}\n", "[1]\n", "no JSON object");
  one_malformed("jsonl", "", json, "{\"first\": \"a\", \"first\": \"a\"}\n", "duplicate");
  one_malformed("jsonl", "", json, "{\"first\": \"a\xFF\"}\n", "0xff");
  one_malformed("jsonl", "", json, "[1]\n", "no JSON object");
  one_malformed("jsonl", "", json, "{\"first\n", "column");
}

/* One always; more where they are not above one in a hundred. */
static void how_many_malformed(void **state) {
  choir_task *task = task_toy("tsv");
  ch_rows few;
  test_ok(task_rows(task, "first\tsecond\tgold\na\tb\tno\na\n", 1, &few));
  assert_int_equal(few.malformed, 1);
  ch_rows_free(&few);
  for (int lines = 199; lines <= 200; lines++) {
    ch_buffer text = {0};
    ch_rows r;
    corpus_add(&text, "first\tsecond\tgold\n");
    for (int i = 0; i < lines; i++) corpus_add(&text, i < 2 ? "a\n" : "a\tb\tno\n");
    int code = ch_rows_parse(task, "file", text.data, text.size, 1, &r);
    if (lines < 200)
      test_fails(code, CHOIR_ERROR_FORMAT, "2 of 199 rows are malformed");
    else
      test_ok(code);
    ch_rows_free(&r); /* empty where it was refused */
    free(text.data);
  }
  choir_task_free(task);
}

static void hostile_files(void **state) {
  choir_task *task = task_toy("tsv"), *lines = task_toy("jsonl");
  ch_rows r;
  test_fails(task_rows(task, "", 1, &r), CHOIR_ERROR_FORMAT, "no rows");
  test_fails(task_rows(task, "first\tsecond\tgold\n", 1, &r), CHOIR_ERROR_FORMAT, "no rows");
  test_fails(task_rows(lines, "\n\n", 1, &r), CHOIR_ERROR_FORMAT, "no rows");
  test_fails(task_rows(lines, "first\tsecond\n", 1, &r), CHOIR_ERROR_FORMAT, "1 of 1 rows are malformed");
  test_fails(task_rows(task, "first\tsecond\tgold\na\tb\tno\na\na\tb\tno\nb\n", 1, &r), CHOIR_ERROR_FORMAT,
             "2 of 4 rows are malformed for task toy; the first, line 3");
  test_fails(ch_rows_parse(task, "file", "first\tsecond\tgold\na\0b\tb\tno\n", 27, 1, &r), CHOIR_ERROR_FORMAT, "NUL");
  test_fails(ch_rows_read(task, corpus_path("absent.tsv"), 1, &r), CHOIR_ERROR_IO, "absent.tsv");
  choir_task_free(task);
  choir_task_free(lines);
}

/* ---- tokens */

static void prompt_is(const ch_examples *e, int64_t i, const choir_tokenizer *t, const char *want) {
  char *text;
  size_t size;
  test_ok(choir_tokenizer_decode(t, ch_examples_prompt(e, i), (size_t)ch_examples_length(e, i), &text, &size));
  if (strcmp(text, want)) fail_msg("prompt %d is '%s', not '%s'", (int)i, text, want);
  free(text);
}

static void rows_as_tokens(void **state) {
  choir_task *task = task_toy("tsv");
  choir_tokenizer *t;
  ch_rows r;
  ch_examples e;
  assert_int_equal(ch_task_label_of(task, "-1", 2), -1); /* as Hugging Face's datasets write test sets */
  assert_int_equal(ch_task_label_of(task, "-2", 2), -2);
  static const struct {
    const char *value;
    int label;
  } spelt[] = {{"1.0", 1},  {"0.00", 0}, {"-1.0", -1}, {"True", 1}, {"FALSE", 0}, {"1.", -2},
               {"1.5", -2}, {".0", -2},  {"3.0", -2},  {"", -2},    {"Truth", -2}};
  for (size_t i = 0; i < sizeof spelt / sizeof *spelt; i++) /* as pandas and Python write them */
    assert_int_equal(ch_task_label_of(task, spelt[i].value, strlen(spelt[i].value)), spelt[i].label);
  choir_task *lines = task_toy("jsonl");
  test_ok(task_rows(lines, "{\"first\": \"a\", \"second\": \"b\", \"gold\": 1.0}\n", 1, &r));
  assert_int_equal(ch_rows_label(&r, 0), 1);
  ch_rows_free(&r);
  choir_task_free(lines);
  test_ok(choir_tokenizer_load(corpus_path("small.model"), &t));
  test_ok(task_rows(task, "first\tsecond\tgold\nka to mi\tre sol\tyes\nka\t\t-\nto\tmi\tmaybe\n", 1, &r));
  test_ok(ch_examples_make(&r, t, 200, 0, &e));
  assert_int_equal(e.count, 3);
  assert_int_equal(e.cut, 0);
  prompt_is(&e, 0, t, "ka to mi and re sol\nis");
  prompt_is(&e, 1, t, "ka and\nis"); /* no blank is left where nothing follows it */
  assert_int_equal(e.label[0], 1);
  assert_int_equal(e.label[1], -1);
  /* the same tokens as the text has, with its word behind it */
  int32_t *ids;
  size_t count;
  test_ok(choir_tokenizer_encode(t, "ka to mi and re sol\nis mire", 27, &ids, &count));
  int length = ch_examples_length(&e, 0), word = ch_examples_word_length(&e, 1);
  assert_int_equal(count, length + word);
  assert_memory_equal(ids, ch_examples_prompt(&e, 0), (size_t)length * sizeof *ids);
  assert_memory_equal(ids + length, ch_examples_word(&e, 1), (size_t)word * sizeof *ids);
  free(ids);
  ch_examples_free(&e);
  test_ok(ch_examples_make(&r, t, 200, 1, &e));
  assert_int_equal(e.count, 2);
  assert_int_equal(e.unlabelled, 1);
  assert_int_equal(e.row[1], 2);
  ch_examples_free(&e);
  ch_rows_free(&r);
  choir_tokenizer_free(t);
  choir_task_free(task);
}

/* A text that is too long loses the end of column "a", then the beginning of the prompt, and never its end. */
static void long_rows(void **state) {
  choir_task *task = task_toy("tsv");
  choir_tokenizer *t;
  ch_rows r;
  ch_examples whole, e;
  int32_t *ids;
  size_t first; /* tokens of column "a" */
  test_ok(choir_tokenizer_load(corpus_path("small.model"), &t));
  test_ok(task_rows(task, "first\tsecond\tgold\nka to mi re sol an el is or un th\tto mi\tyes\nka\tto\tno\n", 1, &r));
  test_ok(choir_tokenizer_encode(t, "ka to mi re sol an el is or un th", 33, &ids, &first));
  free(ids);
  test_ok(ch_examples_make(&r, t, 200, 0, &whole));
  const int32_t *want = ch_examples_prompt(&whole, 0);
  int length = ch_examples_length(&whole, 0), word = whole.longest_word, rest = length - (int)first;
  for (int max = word + 1; max <= length + word; max++) {
    test_ok(ch_examples_make(&r, t, max, 0, &e));
    int now = ch_examples_length(&e, 0), head = now > rest ? now - rest : 0;
    assert_int_equal(now, max - word);
    assert_int_equal(e.cut, (now < length) + (now < ch_examples_length(&whole, 1)));
    assert_memory_equal(ch_examples_prompt(&e, 0), want, (size_t)head * sizeof *want);
    assert_memory_equal(ch_examples_prompt(&e, 0) + head, want + length - (now - head),
                        (size_t)(now - head) * sizeof *want);
    ch_examples_free(&e);
  }
  test_fails(ch_examples_make(&r, t, word, 0, &e), CHOIR_ERROR_ARGUMENT, "no room");
  ch_examples_free(&whole);
  ch_rows_free(&r);
  choir_tokenizer_free(t);
  choir_task_free(task);
}

TEST_MAIN(corpus_begin, corpus_end, built_in, bad_descriptions, finds_files, tab_separated, without_header, json_lines,
          malformed_rows, how_many_malformed, hostile_files, rows_as_tokens, long_rows)
