/* Option structs with their defaults, for languages that cannot use CHOIR_..._INIT. */
#include "base/options.h"
#include "choir/choir.h"

#define DEFAULT(name, init)                                                     \
  void choir_##name##_default(choir_##name *options, size_t size) {             \
    const choir_##name defaults = init;                                         \
    if (options) ch_options_default(options, size, &defaults, sizeof defaults); \
  }

DEFAULT(data_build_options, CHOIR_DATA_BUILD_OPTIONS_INIT)
DEFAULT(eval_options, CHOIR_EVAL_OPTIONS_INIT)
DEFAULT(fill_options, CHOIR_FILL_OPTIONS_INIT)
DEFAULT(generate_options, CHOIR_GENERATE_OPTIONS_INIT)
DEFAULT(layer_options, CHOIR_LAYER_OPTIONS_INIT)
DEFAULT(model_options, CHOIR_MODEL_OPTIONS_INIT)
DEFAULT(score_options, CHOIR_SCORE_OPTIONS_INIT)
DEFAULT(session_options, CHOIR_SESSION_OPTIONS_INIT)
DEFAULT(task_options, CHOIR_TASK_OPTIONS_INIT)
DEFAULT(tokenizer_train_options, CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT)
DEFAULT(train_options, CHOIR_TRAIN_OPTIONS_INIT)
