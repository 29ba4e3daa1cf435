/* choir score: likelihoods of continuations, and predictions of a task's labels. */
#include "cli.h"

static cli_score_options o = {
    .run = CHOIR_MODEL_OPTIONS_INIT, .of_task = CHOIR_TASK_OPTIONS_INIT, .scoring = CHOIR_SCORE_OPTIONS_INIT};

static int check_files(void) {
  if (!o.requests == !o.task) return cli_usage("give one of --requests FILE and --task NAME");
  if (o.task && !o.of_task.data) return cli_usage("--task needs --data DIR, where the task's files are");
  if (o.requests && (o.of_task.data || o.of_task.out || o.of_task.split || o.of_task.batch_sequences != 32 ||
                     o.of_task.capacity_factor != 0))
    return cli_usage("--data, --split, --out, --batch and --capacity-factor require --task");
  if (o.of_task.capacity_factor != 0 && !o.of_task.batch_sequences)
    return cli_usage("--capacity-factor has no effect with --batch 0, which skips batch routing");
  if (!o.scoring.batch) return cli_usage("--slots 0: must be at least 1");
  if (o.task && o.tokens) return cli_usage("--tokens requires --requests");
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
    {"tokens", NULL, CLI_FLAG, &o.tokens, NULL, "with --requests: print every token and its log-probability", 0},
    {"task", "NAME|FILE", CLI_SMALL, &o.task, NULL, "name of a task, or a JSON file that describes one", 0},
    {"data", "DIR", CLI_PATH, &o.of_task.data, NULL,
     "the task's files, or a directory with a folder of the task's name", 0},
    {"split", "NAME", CLI_TEXT, &o.of_task.split, NULL, "which set of the task: dev, test, dev_mismatched, ... [dev]",
     0},
    {"out", "FILE", CLI_OUTPUT, &o.of_task.out, NULL,
     "write the predictions: in SuperGLUE's format if FILE ends in .jsonl, otherwise in GLUE's", 0},
    {"batch", "B", CLI_INT, &o.of_task.batch_sequences, "32",
     "number of texts that batch routing routes together; 0: no accuracy with batch routing", 0},
    {"capacity-factor", "C", CLI_REAL, &o.of_task.capacity_factor, NULL,
     "capacity factor of batch routing; default: the config's", 0},
    {"routing", "NAME", CLI_TEXT, &o.routing, NULL,
     "threshold, or another causal routing; default: threshold (masked models: the model's own)", 0},
    {"mask-samples", "S", CLI_INT, &o.scoring.mask_samples, NULL,
     "models of masked_diffusion: number of masks with which each continuation is scored; default: 32", 0},
    {"slots", "N", CLI_INT, &o.scoring.batch, "16", "number of sequences processed at a time; changes the speed only",
     0},
    {"chunk", "N", CLI_INT, &o.scoring.chunk, "512", "number of tokens processed at a time; changes the speed only", 0},
    CLI_MODEL_OPTIONS(o.run),
    {"json", NULL, CLI_FLAG, &o.json, NULL, "with --task: print JSON", 0},
    {0}};

CLI_VERB(
    score, "score", "RUN|CHECKPOINT", 1, 1, "compute log-likelihoods of continuations, or the accuracy on a task",
    "--requests prints a line of JSON for each line {\"context\": ..., \"continuation\": ...}: the log-likelihood of "
    "the continuation, its number of tokens, and whether the model would generate it at temperature 0 (\"greedy\"). A "
    "prefix that requests share is computed once. \"context_tokens\" and \"continuation_tokens\" give token ids "
    "instead; \"id\" is copied to the output.\n\n"
    "--task prints the accuracy on a labelled set and, for comparison, the share of the most frequent label. The "
    "model's answer is the label whose word has the highest probability after the task's text.\n\n"
    "Both use threshold routing, so no score depends on the batch, the order, or the number of threads. For a task, "
    "the accuracy with batch routing is printed as well; it depends on which texts share a batch.\n\n"
    "A masked model has no such log-likelihood. The JSON of masked_diffusion has log_likelihood_bound, an estimated "
    "lower bound, with its standard_error and mask_samples. That of masked_lm has pseudo_log_likelihood: the "
    "log-likelihood of each token given all other tokens (docs/diffusion.md). Each text is routed on its own.");
