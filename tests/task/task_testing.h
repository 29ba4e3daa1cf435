/* The tests of tasks share a task and a model of its own tokenizer, both small. */
#ifndef CH_TESTS_TASK_TESTING_H
#define CH_TESTS_TASK_TESTING_H

#include "choir/choir.h"
#include "corpus.h"
#include "task/set.h"

/* Two columns and three labels, as a user would write it. */
static const char task_text[] =
    "{\"name\": \"toy\", \"format\": \"%s\", \"splits\": {\"train\": [\"train.%s\"], \"dev\": [\"dev.%s\", "
    "\"val.%s\"]},"
    " \"columns\": {\"a\": [\"first\", \"one\"], \"b\": [\"second\"]}, \"label\": [\"gold\"], \"index\": [\"id\"],"
    " \"unlabelled\": [\"-\"],"
    " \"labels\": [{\"word\": \" ka\", \"values\": [\"no\", \"0\", \"false\"]},"
    " {\"word\": \" mire\", \"values\": [\"yes\", \"1\", \"true\"]},"
    " {\"word\": \" ka to\", \"values\": [\"maybe\", \"2\"]}],"
    " \"template\": \"{a} and {b}\\nis\", \"cut\": \"a\"}";

static inline choir_task *task_toy(const char *format) {
  char text[2048];
  choir_task *task;
  int size = snprintf(text, sizeof text, task_text, format, format, format, format);
  test_ok(ch_task_parse(text, (size_t)size, "toy.json", &task));
  return task;
}

/* The rows of a text. */
static inline int task_rows(const choir_task *task, const char *text, int labelled, ch_rows *rows) {
  return ch_rows_parse(task, "file", text, strlen(text), labelled, rows);
}

static inline void task_value_is(const ch_rows *rows, int64_t row, int column, const char *want) {
  ch_value v = ch_rows_value(rows, row, column);
  if (v.size != strlen(want) || memcmp(v.text, want, v.size))
    fail_msg("row %d, column %d: '%.*s', not '%s'", (int)row, column, (int)v.size, v.text, want);
}

#endif
