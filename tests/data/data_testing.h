/* The tests of data share three sources, built. */
#ifndef CH_TESTS_DATA_TESTING_H
#define CH_TESTS_DATA_TESTING_H

#include "corpus.h"
#include "data/data.h"

/* Three sources: "docs" has 500 documents, "book" one long one, "lines" is JSON-free plain text of three documents. */
static choir_data_source sources[3];
static const char *inputs[3][3];
static ch_buffer texts[3];

static inline choir_data_build_options options(const char *output) {
  choir_data_build_options o = CHOIR_DATA_BUILD_OPTIONS_INIT;
  o.sources = sources, o.source_count = 3, o.tokenizer = corpus_path("small.model"), o.output = corpus_path(output);
  o.separator = "\f", o.holdout = 0.05, o.seed = 3;
  return o;
}

static inline int build(const char *output, int threads) {
  choir_data_build_options o = options(output);
  o.threads = threads;
  return choir_data_build(&o);
}

/* Each document begins with its own number, so that two documents never have the same text. */
static inline void write_source(int i, const char *name, int documents, size_t bytes) {
  for (int d = 0; d < documents; d++) {
    char title[64];
    snprintf(title, sizeof title, "%s<%s %d>\n", d ? "\n\f\n" : "", name, d);
    corpus_add(&texts[i], title);
    corpus_prose(&texts[i], bytes, (uint32_t)(1000 * i + d));
  }
  inputs[i][0] = strdup(corpus_path(name));
  corpus_save(inputs[i][0], texts[i].data, texts[i].size);
  sources[i] = (choir_data_source){.name = name, .inputs = inputs[i]};
}

static inline int begin(void **state) {
  if (corpus_begin(state)) return -1;
  write_source(0, "docs", 500, 300);
  write_source(1, "book", 1, 150000);
  write_source(2, "few", 3, 20000);
  test_ok(build("data", 0));
  return 0;
}

static inline int end(void **state) {
  for (int i = 0; i < 3; i++) free((void *)(uintptr_t)inputs[i][0]), free(texts[i].data);
  return corpus_end(state);
}

static inline choir_data *opened(const char *name) {
  choir_data *d;
  test_ok(choir_data_load(corpus_path(name), &d));
  return d;
}

#endif
