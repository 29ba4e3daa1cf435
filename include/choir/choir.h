/* libchoir: Transformer language models with Mixture-of-Experts layers routed by expert choice.
 *
 * Simple: a trained model continues a text.
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
 * With options: set fields before the call, as options.temperature = 0. Each long call has such a struct; choir_train
 * and choir_finetune take the same one.
 *
 * Streaming: options.event hears new text as it comes; a session (choir_session_create) gives the logits of each token
 * and leaves the choice to you; choir_model_on_routing shows how each layer routes meanwhile; a trainer
 * (choir_trainer_create) takes one step at a time on your own batches.
 *
 * Without a model: choir_route sends any matrix of scores through any router, and choir_layer_create makes one layer.
 *
 * Functions that can fail return 0 or an error code, and choir_error_message() says what was wrong. The library prints
 * nothing and keeps no state outside its handles, except for each thread's last message and notices (choir_notices). It
 * does not end the process, with two exceptions that would corrupt memory otherwise: an arena that is smaller than its
 * plan, a fault of choir, and a message between ranks that has the wrong length; these print why. A handle may
 * be used by one thread at a time; different handles by different threads at once.
 *
 * Every struct is initialised: options by CHOIR_..._INIT, or by the function of that name in lower case (..._default,
 * for C++17 and other languages), others with zeros. Options begin with `size`, which INIT sets and ..._default is
 * given, so that later versions can add to them: what a struct lacks is 0, which means what was before. What other
 * structs end with, `reserved`, belongs to later versions: a new field takes its place there, and the size stays. A
 * library that meets a field that it does not know yet refuses it (CHOIR_ERROR_UNSUPPORTED). Structs that only the
 * library makes and shows (choir_routing, what callbacks are told) may grow at their end. docs/embedding.md has the
 * rules.
 *
 * The library's threads come from OpenMP. Where other processes want the same cores, set GOMP_SPINCOUNT=1000 in the
 * environment before the program starts: threads that wait for each other spin first, and libgomp's default makes a
 * step ten times slower then. */
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
