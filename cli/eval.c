/* choir eval: loss on held-out data or a text, and how it was routed. */
#include <math.h>

#include "cli.h"

static struct {
  const char *data, *text, *compute;
  int64_t sequences;
  int batch, length, threads, json;
} o;

static int show_progress(void *context, int64_t done, int64_t total) {
  cli_progress *progress = context;
  if (cli_progress_due(progress))
    cli_progress_line(progress, "%lld of %lld sequences, %s so far", (long long)done, (long long)total,
                      cli_duration(cli_seconds() - progress->started));
  return cli_stop_requested();
}

static int print_json(const choir_model *model, const choir_eval_result *r) {
  json_t *layers = cli_json_layers(model);
  if (!layers) return cli_fail();
  return cli_json_print(json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:s, s:b, s:o}", "loss", cli_json_real(r->loss),
                                  "perplexity", cli_json_real(r->perplexity), "bits_per_byte",
                                  cli_json_real(r->bits_per_byte), "unigram_loss", cli_json_real(r->unigram_loss),
                                  "tokens", (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes, "routing", r->routing,
                                  "looks_across_tokens", r->looks_across_tokens, "layers", layers));
}

static int print_text(const choir_model *model, const choir_eval_result *r) {
  printf("loss          %8.4f nats a token   over %s tokens, %s\n", r->loss, cli_grouped(r->tokens),
         cli_bytes((double)r->bytes));
  printf("perplexity    %8.2f                unigram baseline %.2f\n", r->perplexity, exp(r->unigram_loss));
  printf("bits per byte %8.4f\n", r->bits_per_byte);
  printf("routing       %8s%s\n", r->routing,
         r->looks_across_tokens ? "                looks across tokens: not the loss of causal use" : "");
  for (int i = 0; i < choir_model_moe_layers(model); i++) {
    choir_route_stats stats;
    if (choir_model_route_stats(model, i, &stats)) return cli_fail();
    printf("\nlayer %d: experts per token\n", cli_layer_number(model, i));
    cli_print_histogram(&stats);
    printf("  ");
    cli_print_load(&stats);
    choir_route_stats_free(&stats);
  }
  return 0;
}

static int evaluate(choir_model *model, const choir_tokenizer *tokenizer) {
  cli_progress progress;
  choir_eval_result result;
  cli_progress_begin(&progress, stderr);
  int code = choir_eval(model, tokenizer,
                        &(choir_eval_options){.data = o.data,
                                              .text = o.text,
                                              .sequences = o.sequences,
                                              .batch_sequences = o.batch,
                                              .sequence_length = o.length,
                                              .progress = show_progress,
                                              .context = &progress},
                        &result);
  cli_progress_clear(&progress);
  if (code) return cli_fail();
  return o.json ? print_json(model, &result) : print_text(model, &result);
}

static int run(int count, const char *const *operands) {
  (void)count;
  char path[4096];
  choir_tokenizer *tokenizer = NULL;
  choir_model *model = NULL;
  choir_run_options options = CHOIR_RUN_OPTIONS_INIT;
  options.compute = o.compute;
  options.threads = o.threads;
  if (!o.data == !o.text) return cli_usage("give one of --data DIR and --text FILE");
  int status = cli_checkpoint_file(operands[0], "tokenizer.model", path, sizeof path);
  if (status) return status;
  cli_catch_signals();
  if (choir_tokenizer_load(path, &tokenizer) || choir_model_load(operands[0], &options, &model))
    status = cli_fail();
  else
    status = evaluate(model, tokenizer);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  return status;
}

static const cli_option options[] = {
    {"data", "DIR", CLI_TEXT, &o.data, NULL, "evaluate on the held-out share of a data directory", 0},
    {"text", "FILE", CLI_TEXT, &o.text, NULL, "or on a UTF-8 text", 0},
    {"sequences", "N", CLI_INT64, &o.sequences, "0", "at most; 0 means all", 0},
    {"batch", "B", CLI_INT, &o.batch, "0", "sequences that are routed together; 0: as in training", 0},
    {"length", "T", CLI_INT, &o.length, "0", "tokens of a sequence; 0: as in training", 0},
    {"compute", "fp32|bf16", CLI_CHOICE, &o.compute, NULL, "type of the matrix products; the config's otherwise", 0},
    {"threads", "N", CLI_INT, &o.threads, "0", "threads; 0 means all CPUs", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
    {0}};

const cli_verb cli_eval = {"eval",
                           "RUN|CHECKPOINT",
                           1,
                           1,
                           "evaluate a model: loss, perplexity, bits per byte, routing",
                           "A run directory stands for its newest checkpoint. The unigram baseline predicts every "
                           "token by its frequency in the training "
                           "data. A router that looks across tokens sees the whole batch at once, so its loss is not "
                           "that of writing text token by token: "
                           "the output says so.",
                           options,
                           run};
