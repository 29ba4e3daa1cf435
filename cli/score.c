/* choir score: likelihoods of continuations, and a task's labels by them. */
#include "cli.h"

static cli_score_options o = {
    .run = CHOIR_MODEL_OPTIONS_INIT, .of_task = CHOIR_TASK_OPTIONS_INIT, .scoring = CHOIR_SCORE_OPTIONS_INIT};

static int check_files(void) {
  if (!o.requests == !o.task) return cli_usage("give one of --requests FILE and --task NAME");
  if (o.task && !o.of_task.data) return cli_usage("--task needs --data DIR, where the task's files are");
  if (o.requests && (o.of_task.data || o.of_task.out || o.of_task.split || o.of_task.batch_sequences != 32 ||
                     o.of_task.capacity_factor != 0))
    return cli_usage("--data, --split, --out, --batch and --capacity-factor go with --task");
  if (o.of_task.capacity_factor != 0 && !o.of_task.batch_sequences)
    return cli_usage("--capacity-factor has no effect with --batch 0, which leaves batch routing out");
  if (!o.scoring.batch) return cli_usage("--slots 0: must be at least 1");
  if (o.task && o.tokens) return cli_usage("--tokens goes with --requests");
  return 0;
}

static int run_task_or_requests(choir_model *model, const choir_tokenizer *tokenizer) {
  int masked = cli_predicts_masked(model);
  if (!o.routing && !masked && choir_model_set_routing(model, "threshold")) return cli_fail();
  return (o.task ? cli_score_task : cli_score_requests)(&o, model, tokenizer);
}

static int run_score(int count, const char *const *operands) {
  int status = check_files();
  cli_catch_signals();
  return status ? status : cli_with_model(operands[0], &o.run, o.routing, 1, run_task_or_requests);
}

static const cli_option options[] = {
    {"requests", "FILE", CLI_INPUT, &o.requests, NULL,
     "JSON lines with \"context\" and \"continuation\"; - reads standard input", 0},
    {"tokens", NULL, CLI_FLAG, &o.tokens, NULL, "with --requests: every token and its log-probability", 0},
    {"task", "NAME|FILE", CLI_SMALL, &o.task, NULL, "a task by its name, or by the JSON file that describes it", 0},
    {"data", "DIR", CLI_PATH, &o.of_task.data, NULL, "the task's files, or a directory with a folder of its name", 0},
    {"split", "NAME", CLI_TEXT, &o.of_task.split, NULL, "which of its sets: dev, test, dev_mismatched, ... [dev]", 0},
    {"out", "FILE", CLI_OUTPUT, &o.of_task.out, NULL,
     "write the predictions: SuperGLUE's format for FILE.jsonl, GLUE's for other names", 0},
    {"batch", "B", CLI_INT, &o.of_task.batch_sequences, "32",
     "texts that batch routing routes together; 0: no accuracy by batch routing", 0},
    {"capacity-factor", "C", CLI_REAL, &o.of_task.capacity_factor, NULL, "of batch routing; the config's otherwise", 0},
    {"routing", "NAME", CLI_TEXT, &o.routing, NULL,
     "threshold, or another that looks at no later token [threshold; of a model that is trained by masking: its own]",
     0},
    {"mask-samples", "S", CLI_INT, &o.scoring.mask_samples, NULL,
     "of a model that is trained by masked_diffusion: sets of masks that each continuation is scored with; default: 32",
     0},
    {"slots", "N", CLI_INT, &o.scoring.batch, "16", "sequences at a time by thresholds: speed only", 0},
    {"chunk", "N", CLI_INT, &o.scoring.chunk, "512", "tokens at a time by thresholds: speed only", 0},
    CLI_MODEL_OPTIONS(o.run),
    {"json", NULL, CLI_FLAG, &o.json, NULL, "with --task: print JSON", 0},
    {0}};

CLI_VERB(score, "score", "RUN|CHECKPOINT", 1, 1, "log-likelihood of continuations; task accuracy",
         "With --requests: for every line {\"context\": ..., \"continuation\": ...} the log-likelihood of the "
         "continuation, whether it is what the model would write at temperature 0 (greedy), and its number of tokens, "
         "as a line of JSON. What requests begin with in common goes through the model once. \"context_tokens\" and "
         "\"continuation_tokens\" take token ids; \"id\" comes back as it is.\n\n"
         "With --task: for every row of a labelled set the label whose word is likeliest after the task's text, and "
         "how often that is right, beside the share of the commonest label.\n\n"
         "Both route by thresholds: no score depends on the batch, the order or the number of threads. For a task "
         "the accuracy by batch routing is also printed; it depends on the texts of the batch.\n\n"
         "A model that is trained by masking has no such log-likelihood. The JSON of masked_diffusion has "
         "log_likelihood_bound, an estimate of a lower bound, with its standard_error and mask_samples; that of "
         "masked_lm has pseudo_log_likelihood, of each token given all others (docs/diffusion.md). Each text is routed "
         "by itself.");
