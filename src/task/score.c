/* choir_score_task: a task's set from its file to its measures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/machine.h"
#include "task/set.h"

static int check(choir_model *model, const choir_tokenizer *tokenizer, const choir_task_options *o) {
  int V = model->config.model.vocab_size;
  if (!o->data) return ch_error(CHOIR_ERROR_ARGUMENT, "scoring a task needs the directory of its files");
  if (choir_tokenizer_vocab_size(tokenizer) != V)
    return ch_error(CHOIR_ERROR_FORMAT, "the tokenizer has %d pieces and the model %d: they do not belong together",
                    choir_tokenizer_vocab_size(tokenizer), V);
  if (o->batch_sequences < 0 || o->score.batch < 1 || o->score.chunk < 1)
    return ch_error(CHOIR_ERROR_ARGUMENT, "batch_sequences %d must not be negative, batch %d and chunk %d at least 1",
                    o->batch_sequences, o->score.batch, o->score.chunk);
  if (o->sequence_length < 0 || o->sequence_length > 1 << 20) /* as train.sequence_length */
    return ch_error(CHOIR_ERROR_ARGUMENT, "sequence_length is %d: must be 1 to %d, or 0 for the config's",
                    o->sequence_length, 1 << 20);
  if (!(o->capacity_factor >= 0 && o->capacity_factor <= 65536))
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "capacity_factor is %g: must be above 0 and 65536 at most, or 0 for the config's",
                    o->capacity_factor);
  return CHOIR_OK;
}

static int plan_batches(choir_model *model, const ch_examples *e, int asked) {
  ch_pass *passes;
  int count;
  CH_TRY(ch_predict_passes(e, asked, model->config.model.experts, &passes, &count));
  int code = ch_model_plan_passes(model, passes, count);
  free(passes);
  return code;
}

/* Batch routing is worth a look of its own only where it looks at other tokens. */
static int measure_batches(choir_model *model, const ch_set *set, const choir_task_options *o, choir_task_result *r) {
  choir_router_options *router = &model->net.config.router;
  double factor = router->eval_capacity_factor;
  int was = model->causal, code = CHOIR_OK;
  model->causal = 0;
  if (o->capacity_factor > 0) router->eval_capacity_factor = o->capacity_factor;
  if (o->batch_sequences > 0 && choir_model_looks_across_tokens(model)) {
    code = plan_batches(model, &set->examples, o->batch_sequences);
    if (!code) code = ch_set_measure(model, set, 1, o, NULL, &r->measure[r->measures++]);
  }
  router->eval_capacity_factor = factor;
  model->causal = was;
  return code;
}

static void describe(const ch_set *set, choir_task_result *r) {
  const ch_examples *e = &set->examples;
  int most = ch_majority(set->rows.task, e, &r->majority);
  r->majority_label = choir_task_label(set->rows.task, most);
  r->examples = e->count;
  r->malformed = set->rows.malformed;
  r->cut = e->cut;
  snprintf(r->file, sizeof r->file, "%s", set->path);
  if (r->malformed) snprintf(r->first_malformed, sizeof r->first_malformed, "%s", set->rows.first);
}

int choir_score_task(choir_model *model, const choir_tokenizer *tokenizer, const choir_task *task,
                     const choir_task_options *options, choir_task_result *result) {
  CH_TRY(CH_GIVEN(model, tokenizer, task, options, result));
  ch_set set;
  *result = (choir_task_result){0};
  CH_CHECK_RESERVED(options, "choir_task_options");
  CH_TRY(ch_model_alone(model, "choir_score_task"));
  CH_TRY(check(model, tokenizer, options));
  int length = options->sequence_length ? options->sequence_length : model->config.train.sequence_length;
  double begin = ch_machine_seconds();
  CH_TRY(ch_set_open(task, options->data, options->split ? options->split : "dev", tokenizer, length, 0, &set));
  describe(&set, result);
  int code = ch_set_measure(model, &set, 0, options, options->out, &result->measure[result->measures++]);
  if (!code) code = measure_batches(model, &set, options, result);
  ch_set_close(&set);
  result->seconds = ch_machine_seconds() - begin;
  return code;
}
