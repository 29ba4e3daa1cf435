/* metrics.jsonl and timing.jsonl (behind a byte 0): any lines become a page, or are refused; and what a run that goes
 * on without checkpoints reads of them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pages/page.h"
#include "pages/report.h"
#include "train/run.h"

static FILE *file_of(const uint8_t *data, size_t size) {
  FILE *file = size ? fmemopen((void *)(uintptr_t)data, size, "r") : fopen("/dev/null", "r");
  if (!file) abort();
  return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
  size_t first = cut ? (size_t)(cut - data) : size, second = cut ? size - first - 1 : 0;
  FILE *metrics = file_of(data, first), *timing = file_of(cut ? cut + 1 : data, second);
  ch_history history;
  if (!ch_history_parse(metrics, timing, &history)) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) abort();
    json_t *json = ch_history_json("run", &history);
    if (ch_html_json(out, json) || ferror(out) || fclose(out)) abort();
    if (strchr(text, '<') || bytes > 2000 + 40 * size) abort();
    json_decref(json);
    free(text);
    ch_history_free(&history);
  }
  ch_run_known known = {0};
  rewind(metrics);
  if (ch_run_log_read(metrics, &known)) abort();
  fclose(metrics);
  fclose(timing);
  return 0;
}
