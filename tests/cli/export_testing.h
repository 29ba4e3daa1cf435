/* What tests of exports begin with: data of a tokenizer that goes along, and the block that stock programs know. */
#ifndef CH_TESTS_EXPORT_TESTING_H
#define CH_TESTS_EXPORT_TESTING_H

#include "program.h"

#define MODERN                                                                                                   \
  "--set position=rope --set activation=swiglu --set expert_activation=swiglu --set router.score=sigmoid --set " \
  "moe_every=1 --set dense_layers=1 --set kv_heads=1 --set eval_every=0 "

/* Makes bpe.model and bpe/, and does what `more` says. */
static inline int export_setup(void **state, const char *more) {
  if (program_setup(state)) return -1;
  int status = program_run(
      "set -e; choir tokenizer train --vocab-size 320 --out bpe.model corpus.txt;"
      "choir data build --tokenizer bpe.model --separator '\\f' --holdout 0.1 --out bpe corpus.txt; %s",
      more);
  if (status) fprintf(stderr, "training, status %d:\n%s\n", status, program_output);
  return status;
}

#endif
