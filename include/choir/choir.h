/* libchoir: Transformer language models with Mixture-of-Experts layers routed by expert choice.
 *
 * Opaque handles, plain option structs with initialisers, int error codes with choir_error_message(). The library never
 * exits, prints nothing, and keeps no state outside its handles (but the calling thread's last message). A handle may
 * be used by one thread at a time; different handles by different threads at once. */
#ifndef CHOIR_H
#define CHOIR_H

#include "choir/bench.h"
#include "choir/config.h"
#include "choir/data.h"
#include "choir/error.h"
#include "choir/finetune.h"
#include "choir/generate.h"
#include "choir/inspect.h"
#include "choir/layer.h"
#include "choir/machine.h"
#include "choir/model.h"
#include "choir/npy.h"
#include "choir/printable.h"
#include "choir/probe.h"
#include "choir/ranks.h"
#include "choir/report.h"
#include "choir/router.h"
#include "choir/routing.h"
#include "choir/score.h"
#include "choir/study.h"
#include "choir/task.h"
#include "choir/tensors.h"
#include "choir/tokenizer.h"
#include "choir/train.h"
#include "choir/version.h"

#endif
