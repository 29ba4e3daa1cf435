/* libchoir: Transformer language models with Mixture-of-Experts layers routed by expert choice.
 *
 * The shortest use: a trained model continues a text.
 *
 *   choir_model *model;
 *   choir_tokenizer *tokenizer;
 *   choir_generate_options options = CHOIR_GENERATE_OPTIONS_INIT;
 *   choir_generate_result result;
 *   if (choir_model_load("run", NULL, &model, &tokenizer)) return puts(choir_error_message());
 *   if (choir_generate(model, tokenizer, &(choir_prompt){.text = "In the beginning"}, 1, &options, &result))
 *     return puts(choir_error_message());
 *   puts(result.sequences[0].text);
 *   choir_generate_result_clear(&result);
 *   choir_tokenizer_free(tokenizer);
 *   choir_model_free(model);
 *
 * Options: set fields before the call, for example options.temperature = 0. Each long call has its own options struct;
 * choir_train and choir_finetune share one.
 *
 * Streaming: the callback options.event receives new text as it is generated. A session (choir_session_create) returns
 * the logits of each token, so that you choose the next one. choir_model_on_routing sets a callback that receives the
 * routing of each layer. A trainer (choir_trainer_create) runs single steps on your own batches.
 *
 * Without a model: choir_route routes any matrix of scores with any router, and choir_layer_create creates one layer.
 *
 * Functions that can fail return 0 or an error code; choir_error_message() describes the error. The library prints
 * nothing and has no state outside its handles, except each thread's last message and notices (choir_notices). It ends
 * the process, after printing the reason, in only two cases, which would corrupt memory otherwise: an arena overflows
 * its planned size (a bug in choir), or a message between ranks has the wrong length. A handle may be used by one
 * thread at a time; different handles may be used by different threads at the same time.
 *
 * Initialize every struct: options by CHOIR_..._INIT, or by the function of that name in lower case (..._default, for
 * C++17 and other languages), other structs with zeros. Options begin with `size`, which INIT sets and ..._default
 * takes as an argument, so that later versions can append fields: a field beyond `size` counts as 0, and 0 selects the
 * earlier behavior. Other structs end with `reserved`, where later versions place new fields without a change of the
 * size. The library refuses a nonzero field that it does not know (CHOIR_ERROR_UNSUPPORTED). Structs that only the
 * library creates (choir_routing, the arguments of callbacks) may get new fields at their end. docs/embedding.md has
 * the rules.
 *
 * The library's threads come from OpenMP. If other processes use the same cores, set GOMP_SPINCOUNT=1000 in the
 * environment before the program starts: waiting threads spin, and with libgomp's default spin count a step is then ten
 * times slower. */
#ifndef CHOIR_H
#define CHOIR_H

#include "choir/backend.h"
#include "choir/config.h"
#include "choir/data.h"
#include "choir/error.h"
#include "choir/event.h"
#include "choir/finetune.h"
#include "choir/generate.h"
#include "choir/layer.h"
#include "choir/model.h"
#include "choir/plugin.h"
#include "choir/ranks.h"
#include "choir/router.h"
#include "choir/routing.h"
#include "choir/score.h"
#include "choir/task.h"
#include "choir/tensors.h"
#include "choir/tokenizer.h"
#include "choir/train.h"
#include "choir/trainer.h"
#include "choir/version.h"

#endif
