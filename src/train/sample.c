/* What a model in training writes, for the page about the run: it goes on from the first held-out tokens. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "choir/generate.h"
#include "model/config.h"
#include "train/metrics.h"
#include "train/pretrain.h"

enum { PROMPT = 16, MORE = 48 }; /* tokens */

/* By the routing of text generation: by thresholds where the router looks across tokens. */
static int write_sample(const ch_pretraining *p, ch_metrics *metrics, const int32_t *tokens) {
  const ch_run *run = &p->run;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  char *prompt;
  size_t size;
  o.max_tokens = MORE;
  o.chunk = PROMPT;
  CH_TRY(choir_generate(run->trainer.model, run->tokenizer, &(choir_prompt){.tokens = tokens, .count = PROMPT}, 1, &o,
                        &r));
  int code = choir_tokenizer_decode(run->tokenizer, tokens, PROMPT, &prompt, &size);
  if (!code) {
    ch_metrics_sample(metrics, run->trainer.step, prompt, size, r.sequences[0].text, r.sequences[0].size);
    free(prompt);
  }
  choir_generate_result_clear(&r);
  return code;
}

void ch_pretraining_sample(const ch_pretraining *p, ch_metrics *metrics) {
  const ch_run *run = &p->run;
  int32_t tokens[PROMPT];
  if (run->trainer.model->x.comm->size > 1 || ch_config_masked(&run->config)) return;
  if (ch_data_heldout_windows(p->data, PROMPT - 1) < 1) return;
  ch_data_heldout(p->data, PROMPT - 1, 0, tokens);
  int code = write_sample(p, metrics, tokens);
  if (code && code != CHOIR_ERROR_UNSUPPORTED) /* a router without thresholds, or none of them set yet */
    ch_notice("no sample of text at step %" PRId64 ": %s", run->trainer.step, choir_error_message());
}
