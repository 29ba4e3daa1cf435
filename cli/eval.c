/* choir eval: the loss on held-out data or a text, and statistics of the routing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static struct {
  choir_model_options run;
  choir_eval_options eval;
  const char *routing;
  int json;
} o = {.run = CHOIR_MODEL_OPTIONS_INIT, .eval = CHOIR_EVAL_OPTIONS_INIT};

/* Routings evaluated in addition to one that depends on other tokens. */
static const char *const causal_routings[] = {"threshold", NULL};
/* Routings of masked models, which need no causal routing: each text by itself, and threshold routing. */
static const char *const masked_routings[] = {"sequence", "threshold", NULL};
enum { MAX_RESULTS = 3 };

static choir_eval_result results[MAX_RESULTS];

static json_t *sources_json(const choir_eval_result *r) {
  json_t *list = json_array();
  for (int i = 0; i < r->source_count; i++)
    json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "name", r->sources[i].name, "tokens",
                                          (json_int_t)r->sources[i].tokens, "loss", cli_json_real(r->sources[i].loss)));
  return list;
}

static json_t *ratios_json(const choir_eval_result *r) {
  json_t *list = json_array();
  for (int i = 0; i < r->ratio_count; i++)
    json_array_append_new(
        list, json_pack("{s:f, s:f, s:I, s:o}", "from", r->ratio[i].from, "to", r->ratio[i].to, "evaluations",
                        (json_int_t)r->ratio[i].evaluations, "loss", cli_json_real(r->ratio[i].loss)));
  return list;
}

/* The loss and the statistics of one routing as JSON. NULL: the library's error. */
static json_t *result_json(const choir_model *model, const choir_eval_result *r) {
  json_t *layers = cli_json_layers(model);
  if (!layers) return NULL;
  json_t *json =
      json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:s, s:b, s:o, s:o}", "loss", cli_json_real(r->loss), "perplexity",
                cli_json_real(r->perplexity), "bits_per_byte", cli_json_real(r->bits_per_byte), "unigram_loss",
                cli_json_real(r->unigram_loss), "gzip_bits_per_byte", cli_json_real(r->gzip_bits_per_byte), "tokens",
                (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes, "routing", r->routing, "looks_across_tokens",
                r->looks_across_tokens, "sources", sources_json(r), "layers", layers);
  if (json && cli_is_masked(r->objective))
    json_object_update_new(json, json_pack("{s:s, s:o, s:o}", "objective", r->objective, "standard_error",
                                           cli_json_real(r->standard_error), "mask_ratios", ratios_json(r)));
  return json;
}

/* Begins a table with one column for each routing. */
static void begin_table(cli_table *table, int count, const char *first) {
  char heads[256];
  size_t used = (size_t)snprintf(heads, sizeof heads, "%s", first);
  for (int i = 0; i < count && used < sizeof heads; i++)
    used += (size_t)snprintf(heads + used, sizeof heads - used, "|%10s>", results[i].routing);
  cli_table_begin(table, 0, heads);
}

/* One row for each measure, one column for each routing. */
static int print_losses(int count) {
  const choir_eval_result *r = &results[0], *causal = &results[count > 1];
  int masked = cli_is_masked(r->objective);
  cli_table table;
  cli_print_outcome(r->objective, o.eval.text != NULL, causal->bits_per_byte / causal->loss, causal->loss,
                    causal->routing, causal->unigram_loss, causal->gzip_bits_per_byte);
  putchar('\n');
  begin_table(&table, count, "routing");
  cli_cell(&table, "%s", cli_measure(r->objective));
  for (int i = 0; i < count; i++) cli_cell(&table, "%.4f", results[i].loss);
  cli_cell(&table, "perplexity");
  for (int i = 0; i < count; i++) cli_cell(&table, "%.2f", results[i].perplexity);
  cli_cell(&table, "bits per byte");
  for (int i = 0; i < count; i++) cli_cell(&table, "%.4f", results[i].bits_per_byte);
  cli_cell(&table, masked ? "standard error" : "causal");
  for (int i = 0; i < count && masked; i++) cli_cell(&table, "%.4f", results[i].standard_error);
  for (int i = 0; i < count && !masked; i++) cli_cell(&table, "%s", results[i].looks_across_tokens ? "no" : "yes");
  int status = cli_table_end(&table);
  cli_print(4, "  %s: nats per token, over %s tokens (%s); unigram baseline: perplexity %.2f",
            cli_measure(r->objective), cli_grouped(r->tokens), cli_bytes((double)r->bytes), exp(r->unigram_loss));
  if (masked) cli_print(4, "  standard error: of sampling mask ratios and masks (--mask-samples)");
  if (r->looks_across_tokens && !masked)
    cli_print(4, "  causal no: the experts of a token depend on later tokens, which generation does not have yet");
  if (count > 1 && !strcmp(results[1].routing, "threshold") && !masked)
    cli_print(4, "  threshold: fixed thresholds, the mean cut-offs of training");
  return status;
}

/* The curve over mask ratios of each routing; all routings have the same ratios. */
static int print_ratios(int count) {
  const choir_eval_result *first = results;
  cli_table table;
  if (!first->ratio_count) return 0;
  puts("\nloss of masked tokens by mask ratio");
  begin_table(&table, count, "masked|evaluations>");
  for (int i = 0; i < first->ratio_count; i++) {
    cli_cell(&table, "%2.0f to %3.0f %%", 100 * first->ratio[i].from, 100 * first->ratio[i].to);
    cli_cell(&table, "%lld", (long long)first->ratio[i].evaluations);
    for (int r = 0; r < count; r++) cli_cell(&table, "%.4f", results[r].ratio[i].loss);
  }
  return cli_table_end(&table);
}

/* Prints the loss of each source if there are several. */
static int print_sources(int count) {
  int n = results->source_count;
  cli_table table;
  if (n < 2) return 0;
  puts("\nloss by source");
  begin_table(&table, count, "source|tokens>");
  for (int s = 0; s < n; s++) {
    cli_cell(&table, "%.64s", cli_shown(results->sources[s].name));
    cli_cell(&table, "%s", cli_grouped(results->sources[s].tokens));
    for (int i = 0; i < count; i++) {
      double loss = s < results[i].source_count ? results[i].sources[s].loss : (double)NAN;
      if (isnan(loss)) /* --sequences left no window of this source */
        cli_cell(&table, "-");
      else
        cli_cell(&table, "%.4f", loss);
    }
  }
  return cli_table_end(&table);
}

static int print_layers(const choir_model *model, const choir_eval_result *r) {
  for (int i = 0; i < choir_model_moe_layer_count(model); i++) {
    choir_route_stats stats;
    if (choir_model_get_route_stats(model, i, &stats)) return cli_fail();
    printf("\nlayer %d, routing %s: experts per token\n", stats.layer, r->routing);
    cli_print_histogram(&stats);
    cli_print_load("  ", &stats);
    cli_print_certificate(&stats.certificate);
    choir_route_stats_clear(&stats);
  }
  return 0;
}

/* Evaluates with a causal routing if the router has it and the model can use it; the JSON is added to `beside` under
 * its name. */
static int evaluate_causal(choir_model *model, const choir_tokenizer *tokenizer, const char *routing, int *count,
                           json_t *added) {
  choir_routing_properties p;
  if (choir_router_get_properties(cli_field(choir_model_config(model), "router.name"), routing, &p)) return 0;
  if (choir_model_set_routing(model, routing)) {
    if (cli_ranks_first()) fprintf(stderr, "no causal loss: %s\n", choir_error_message());
    return 0;
  }
  int status = cli_evaluate(model, tokenizer, o.eval, 0, &results[*count]);
  json_t *json = !status && o.json ? result_json(model, &results[*count]) : NULL;
  if (choir_ranks_agree(cli_ranks(), !status && o.json && !json ? CHOIR_ERROR_MEMORY : CHOIR_OK)) status = cli_fail();
  if (!status) (*count)++;
  if (json) json_object_set_new(added, routing, json);
  return status;
}

/* Evaluates with causal routings first, then with the model's own, whose statistics are printed. */
static int evaluate_all(choir_model *model, const choir_tokenizer *tokenizer) {
  json_t *json = NULL, *added = json_object();
  int count = 1, status = added ? 0 : CLI_FAILED;
  int masked = cli_predicts_masked(model);
  const char *const *routings = masked ? masked_routings : causal_routings;
  if (!masked && o.eval.mask_samples)
    status = cli_usage("--mask-samples is for masked models only (docs/diffusion.md)");
  if (masked && !o.eval.mask_samples) o.eval.mask_samples = 4;
  if (!o.routing && choir_model_looks_across_tokens(model)) {
    for (int i = 0; routings[i] && !status; i++)
      if (strcmp(routings[i], choir_model_routing(model)))
        status = evaluate_causal(model, tokenizer, routings[i], &count, added);
    if (!status && choir_model_set_routing(model, NULL)) status = cli_fail();
  }
  if (!status) status = cli_evaluate(model, tokenizer, o.eval, 0, &results[0]);
  if (!status && o.json && !(json = result_json(model, &results[0]))) status = cli_fail();
  if (json) json_object_update(json, added);
  if (json && count > 1 && !masked)
    json_object_set_new(json, "causal_gap", cli_json_real(results[1].loss - results[0].loss));
  json_decref(added);
  if (status) return status;
  if (json) return cli_json_print(json);
  status = print_losses(count);
  if (!status) status = print_ratios(count);
  if (!status) status = print_sources(count);
  return status ? status : print_layers(model, &results[0]);
}

static int run_eval(int count, const char *const *operands) {
  int status = o.eval.data && o.eval.text ? cli_usage("give one of --data DIR and --text FILE") : 0;
  if (!status && o.eval.text && o.eval.in_order)
    status = cli_usage("--in-order has no effect with --text, which is taken in order");
  if (!status && !o.eval.data && !o.eval.text)
    status = cli_data_of_run(operands[0], "--data DIR or --text FILE", &o.eval.data);
  status = cli_ranks_agree(status);
  if (status) return status;
  if (choir_ranks_check_same(cli_ranks(), "--routing", o.routing ? o.routing : ""))
    return cli_fail(); /* number of routings evaluated */
  cli_catch_signals();
  status = cli_with_model(operands[0], &o.run, o.routing, 1, evaluate_all);
  for (int i = 0; i < MAX_RESULTS; i++) choir_eval_result_clear(&results[i]);
  return status;
}

static const cli_option options[] = {
    {"data", "DIR", CLI_PATH, &o.eval.data, NULL, "evaluate on the held-out part of this data; default: the run's data",
     0},
    {"text", "FILE", CLI_INPUT, &o.eval.text, NULL, "evaluate on a UTF-8 text file", 0},
    {"routing", "NAME", CLI_TEXT, &o.routing, NULL,
     "batch, sequence, position, group or threshold; default: the model's own and, if that is not causal, also "
     "threshold (masked models: sequence and threshold)",
     0},
    {"sequences", "N", CLI_INT64, &o.eval.sequences, "0", "maximum number of sequences; 0: all", 0},
    {"in-order", NULL, CLI_FLAG, &o.eval.in_order, NULL,
     "take held-out sequences in order, so that a batch is a piece of one text instead of a mixture of texts", 0},
    {"batch", "B", CLI_INT, &o.eval.batch_sequences, "0",
     "number of sequences that are routed together; 0: as in training", 0},
    {"mask-samples", "S", CLI_INT, &o.eval.mask_samples, NULL,
     "masked models: number of mask ratios at which each sequence is evaluated; default: 4", 0},
    {"length", "T", CLI_INT, &o.eval.sequence_length, "0", "tokens per sequence; 0: as in training", 0},
    CLI_MODEL_OPTIONS(o.run),
    CLI_SHARDS(&o.run.shards),
    CLI_RANKS_OPTIONS,
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
    {0}};

CLI_VERB(
    eval, "eval", "RUN|CHECKPOINT", 1, 1, "evaluate a model: loss, perplexity, bits per byte, routing",
    "RUN stands for its best checkpoint, or for its newest if there is no best one. RUN/checkpoints/STEP selects "
    "another.\n\n"
    "Expert choice with batch routing uses later tokens, so its loss is not causal. The loss with threshold routing is "
    "causal, and is printed as well; use it to compare models. The unigram baseline is the loss of a model that knows "
    "only the frequency of each token: in the training data or, with --text, in the text itself.\n\n"
    "For a masked model (one trained with train.objective masked_diffusion or masked_lm), the output is an upper bound "
    "on the loss with its standard error, and the loss by mask ratio (docs/diffusion.md).\n\n"
    "Under mpirun or srun, all processes evaluate together, and rank 0 prints. The number of processes must divide "
    "train.grad_chunks, or --shards (docs/clusters.md).");
