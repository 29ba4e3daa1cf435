/* choir calibrate: computes thresholds for a kind of text. */
#include "cli.h"

static struct {
  choir_model_options run;
  choir_eval_options eval;
  const char *out;
} o = {.run = CHOIR_MODEL_OPTIONS_INIT, .eval = CHOIR_EVAL_OPTIONS_INIT};

typedef struct {
  double loss, experts; /* experts: mean per token */
  int64_t tokens;
} calibration;

/* Evaluates with a routing (NULL: the model's own); calibrate: the model's thresholds are then set from this text. */
static int evaluate_routing(choir_model *model, const choir_tokenizer *tokenizer, const char *routing, int calibrate,
                            calibration *e) {
  if (choir_model_set_routing(model, routing)) return cli_fail();
  choir_eval_result r;
  int status = cli_evaluate(model, tokenizer, o.eval, calibrate, &r), layers = choir_model_moe_layer_count(model);
  if (status) return status;
  *e = (calibration){.loss = r.loss, .tokens = r.tokens};
  choir_eval_result_clear(&r);
  for (int i = 0; i < layers; i++) {
    choir_route_stats stats;
    if (choir_model_get_route_stats(model, i, &stats)) return cli_fail();
    e->experts += (double)stats.assignments / (double)stats.tokens / layers;
    choir_route_stats_clear(&stats);
  }
  return 0;
}

static int calibrate(choir_model *model, const choir_tokenizer *tokenizer) {
  calibration before, batch, after;
  int status = evaluate_routing(model, tokenizer, "threshold", 0, &before);
  if (!status) status = evaluate_routing(model, tokenizer, NULL, 1, &batch);
  if (!status) status = evaluate_routing(model, tokenizer, "threshold", 0, &after);
  if (!status && choir_model_save(model, tokenizer, o.out)) status = cli_fail();
  if (status) return status;
  const struct {
    const char *routing;
    const calibration *measured;
  } rows[] = {{"threshold, before", &before}, {"threshold, calibrated", &after}, {"batch", &batch}};
  cli_table table;
  cli_table_begin(&table, 0, "routing|loss>|experts per token>");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    cli_cell(&table, "%s", rows[i].routing);
    cli_cell(&table, "%.4f", rows[i].measured->loss);
    cli_cell(&table, "%.2f", rows[i].measured->experts);
  }
  status = cli_table_end(&table);
  cli_print(2, "loss in nats per token, over the %s tokens that the thresholds were calibrated on; checkpoint in %s",
            cli_grouped(after.tokens), cli_shown(o.out));
  return status;
}

static int run_calibrate(int count, const char *const *operands) {
  if (!o.eval.data == !o.eval.text) return cli_usage("give one of --data DIR and --text FILE");
  if (cli_rounds_weights(&o.run))
    return cli_usage("--compute q8_0: its rounded weights are not for saving; use fp32 or bf16");
  cli_catch_signals();
  return cli_with_model(operands[0], &o.run, NULL, 1, calibrate);
}

static const cli_option options[] = {
    {"out", "CHECKPOINT", CLI_NEW, &o.out, NULL, "checkpoint directory to make", 1},
    {"data", "DIR", CLI_PATH, &o.eval.data, NULL, "use the held-out part of this data", 0},
    {"text", "FILE", CLI_INPUT, &o.eval.text, NULL, "use a UTF-8 text of the kind that the model will process", 0},
    {"sequences", "N", CLI_INT64, &o.eval.sequences, "0", "maximum number of sequences; 0: all", 0},
    {"batch", "B", CLI_INT, &o.eval.batch_sequences, "0",
     "number of sequences that are routed together; 0: as in training", 0},
    {"capacity-factor", "C", CLI_REAL, &o.eval.capacity_factor, "0",
     "mean number of experts per token with the new thresholds; smaller is faster; 0: as in evaluations", 0},
    {"length", "T", CLI_INT, &o.eval.sequence_length, "0", "tokens per sequence; 0: as in training", 0},
    CLI_MODEL_OPTIONS(o.run),
    {0}};

CLI_VERB(calibrate, "calibrate", "RUN|CHECKPOINT", 1, 1,
         "adapt the routing thresholds to a kind of text, or to another number of experts per token",
         "Use it for an expert-choice model that will process text unlike its training data, or that should run with "
         "fewer experts per token. The text is routed with batch routing, and each expert's mean cut-off score becomes "
         "its threshold. For router quantile_balanced, the biases become those that balance the loads on this text. "
         "Weights do not change.\n\n"
         "Example: choir calibrate run --text code.txt --out run-for-code");
