/* A labelled task of made-up words, which can be learned: its description, and its rows. */
#ifndef CH_TESTS_MADE_UP_TASK_H
#define CH_TESTS_MADE_UP_TASK_H

#include "program.h"

static const char made_up_task[] =
    "{\"name\": \"mine\", \"format\": \"tsv\", \"splits\": {\"train\": [\"train.tsv\"], \"dev\": [\"dev.tsv\"]},\n"
    " \"columns\": {\"text\": [\"text\"]}, \"label\": [\"label\"], \"metrics\": [\"f1\", \"matthews\"],\n"
    " \"labels\": [{\"word\": \" ka\", \"values\": [\"bad\"]}, {\"word\": \" lo\", \"values\": [\"good\"]}],\n"
    " \"template\": \"{text}\\nis\", \"cut\": \"text\"}\n";

/* Rows of made-up words, good where the last but one is "miten" and bad where it is "sura". */
static inline void made_up_rows(const char *path, int rows, uint32_t sub) {
  static const char *const word[] = {"kalo", "revo", "ten", "vo", "pel", "dor", "ni", "sur"};
  ch_rng rng = ch_rng_make(3, CH_STREAM_TEST, sub);
  FILE *file = fopen(path, "w");
  uint64_t at = 0;
  fprintf(file, "text\tlabel\n");
  for (int i = 0; i < rows; i++) {
    for (uint64_t words = ch_rng_below(rng, at++, 4); words; words--)
      fprintf(file, "%s ", word[ch_rng_below(rng, at++, 8)]);
    int good = (int)ch_rng_below(rng, at++, 2);
    fprintf(file, "%s %s\t%s\n", good ? "miten" : "sura", word[ch_rng_below(rng, at++, 8)], good ? "good" : "bad");
  }
  if (fclose(file)) abort();
}

/* mine.json, a task, and four rows of it for `path`, a file rows.tsv: enough to fine-tune for a few steps. */
static inline void made_up_four_rows(const char *path) {
  static const char task[] =
      "{\"name\": \"mine\", \"format\": \"tsv\", \"splits\": {\"train\": [\"rows.tsv\"], \"dev\": [\"rows.tsv\"]},\n"
      " \"columns\": {\"text\": [\"text\"]}, \"label\": [\"label\"],\n"
      " \"labels\": [{\"word\": \" a\", \"values\": [\"bad\"]}, {\"word\": \" e\", \"values\": [\"good\"]}],\n"
      " \"template\": \"{text}:\", \"cut\": \"text\"}\n";
  static const char rows[] = "text\tlabel\nku\tgood\nle\tbad\nmi\tgood\nno\tbad\n";
  test_ok(ch_file_save("mine.json", task, sizeof task - 1));
  test_ok(ch_file_save(path, rows, sizeof rows - 1));
}

#endif
