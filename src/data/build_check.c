#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/threads.h"
#include "data/data.h"

static int check_source(const choir_data_build_options *o, int i) {
  const choir_data_source *s = &o->sources[i];
  CH_CHECK_RESERVED(s, "choir_data_source");
  CH_TRY(ch_source_name_check(s->name));
  for (int k = 0; k < i; k++)
    if (!strcmp(o->sources[k].name, s->name))
      return ch_error(CHOIR_ERROR_ARGUMENT, "there are two sources of that name");
  if (!s->inputs || !s->inputs[0]) return ch_error(CHOIR_ERROR_ARGUMENT, "no input files");
  if (!(s->weight >= 0) || isinf(s->weight))
    return ch_error(CHOIR_ERROR_ARGUMENT, "weight is %g; must be 0 or more", s->weight);
  if ((s->weight > 0) != (o->sources[0].weight > 0))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "weight is %g, but that of source \"%s\" is %g; give weights to all sources or to none", s->weight,
                    o->sources[0].name, o->sources[0].weight);
  return CHOIR_OK;
}

int ch_build_check(const choir_data_build_options *o) {
  if (!o->tokenizer) return ch_error(CHOIR_ERROR_ARGUMENT, "tokenizer: name a .model file");
  if (!o->output) return ch_error(CHOIR_ERROR_ARGUMENT, "output: name a directory");
  if (o->source_count < 1 || o->source_count > CH_SOURCE_LIMIT)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%d sources; must be 1 to %d", o->source_count, CH_SOURCE_LIMIT);
  if (!o->sources) return ch_error(CHOIR_ERROR_ARGUMENT, "sources: name texts");
  if (!(o->holdout >= 0 && o->holdout <= 0.5))
    return ch_error(CHOIR_ERROR_ARGUMENT, "holdout is %g; must be 0 to 0.5", o->holdout);
  int threads;
  CH_TRY(ch_threads_resolve(o->threads, &threads));
  for (int i = 0; i < o->source_count; i++) {
    int code = check_source(o, i);
    if (code) return ch_error_in(code, "source %d (\"%.64s\")", i + 1, o->sources[i].name ? o->sources[i].name : "");
  }
  return CHOIR_OK;
}
