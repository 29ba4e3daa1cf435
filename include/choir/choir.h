/* libchoir: Transformer language models with Mixture-of-Experts layers routed by expert choice.
 *
 * Opaque handles, plain option structs with initialisers, int error codes with choir_error_message(). The library never
 * exits, prints nothing, and keeps no state outside its handles (but the calling thread's last message). A handle may
 * be used by one thread at a time; different handles by different threads at once.
 *
 * Every struct is initialised, by its CHOIR_..._INIT, by the function of that name in lower case (..._default, for
 * C++17 and other languages), or with zeros. What it ends with, `reserved`, belongs to later versions: a new field
 * takes its place there, 0 means what was before, and the size of the struct stays. A library that meets a field that
 * it does not know yet refuses it (CHOIR_ERROR_UNSUPPORTED). Structs that only the library makes and shows
 * (choir_routing, what callbacks are told) may grow at their end. docs/embedding.md has the rules.
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
#include "choir/finetune.h"
#include "choir/generate.h"
#include "choir/layer.h"
#include "choir/model.h"
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
