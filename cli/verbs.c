/* The verbs, in the order of help: one row per verb, whose file defines cli_NAME. */
#include "cli.h"

/* clang-format off */
#define VERBS(row)                                                                                   \
  row(tokenizer_train) row(tokenizer_import) row(tokenizer_encode) row(tokenizer_decode)             \
  row(data_build) row(data_info) row(configs) row(info) row(plan) row(init) row(train) row(eval)     \
  row(calibrate) row(generate) row(finetune) row(score) row(export) row(import) row(forward)         \
  row(route) row(probe) row(bench) row(devices) row(report) row(stats) row(inspect) row(study)
/* clang-format on */

#define DECLARE(name) extern const cli_verb cli_##name;
#define POINTER(name) &cli_##name,
VERBS(DECLARE)
const cli_verb *const cli_verbs[] = {VERBS(POINTER) NULL};
