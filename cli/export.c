/* choir export: writes a checkpoint in the format of transformers or llama.cpp. */
#include "export/export.h"

#include <math.h>

#include "cli.h"

static choir_export_options o;
static int json;

static json_t *real_or_null(const choir_export_result *r, double number) {
  return r->measured ? cli_json_real(number) : json_null();
}

static int print_export_json(const choir_export_result *r) {
  return cli_json_print(
      json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:s?, s:I, s:I}", "checkpoint", r->checkpoint, "out",
                o.out, "architecture", r->architecture, "experts_per_token", r->experts_per_token, "null_experts",
                r->null_experts, "tokens_cut", real_or_null(r, r->cut), "loss", real_or_null(r, r->loss), "loss_cut",
                real_or_null(r, r->loss_cut), "loss_written", real_or_null(r, r->loss_written), "objective",
                r->measured ? r->objective : NULL, "tokens", (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes));
}

static int print(const choir_export_result *r) {
  cli_print(2, "%s: %s of %s, %s of weights as %s", cli_shown(o.out), r->architecture, cli_shown(r->checkpoint),
            cli_bytes((double)r->bytes), o.dtype);
  if (r->null_experts)
    cli_print(19,
              "experts per token  0 to %d, with threshold routing; %d null experts fill the places of missing experts",
              r->experts_per_token, r->null_experts);
  else if (r->experts_per_token)
    printf("experts per token  %d\n", r->experts_per_token);
  if (!r->measured) return 0;
  if (r->null_experts) printf("tokens cut         %.3f %% have more experts in some layer\n", 100 * r->cut);
  if (r->null_experts && !r->cut && r->twentieth < r->experts_per_token)
    cli_print(19, "%19sat most %d experts are faster, and not exact: --cut 0.05", "", r->twentieth);
  char cut[48] = "", written[48] = "";
  if (r->cut > 0) snprintf(cut, sizeof cut, ", %.4f with at most %d experts", r->loss_cut, r->experts_per_token);
  if (!isnan(r->loss_written)) snprintf(written, sizeof written, ", %.4f with rounded weights", r->loss_written);
  cli_print(19, "%-18s %.4f%s%s; nats per token, over %s held-out tokens", cli_measure(r->objective), r->loss, cut,
            written, cli_grouped(r->tokens));
  return 0;
}

static int run_export(int count, const char *const *operands) {
  cli_progress progress;
  choir_export_result result;
  o.checkpoint = operands[0];
  if (o.cut > 0 && o.experts_per_token) return cli_usage("give one of --cut SHARE and --experts-per-token K");
  if (o.cut > 0 && !o.sequences) return cli_usage("--cut needs held-out text: --sequences must not be 0");
  if (!o.sequences && o.data) return cli_usage("--data has no effect with --sequences 0, which measures nothing");
  int status = o.sequences && !o.data
                   ? cli_data_of_run(operands[0], "--data DIR, or --sequences 0 to measure nothing", &o.data)
                   : 0;
  if (status) return status;
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o.progress = cli_progress_share;
  o.context = &progress;
  int code = choir_export(&o, &result);
  cli_progress_clear(&progress);
  if (code) return cli_fail();
  return json ? print_export_json(&result) : print(&result);
}

static const cli_option options[] = {
    {"format", "hf|gguf", CLI_CHOICE, &o.format, NULL,
     "hf: a folder for transformers and vLLM; gguf: a file for llama.cpp", 1},
    {"out", "OUT", CLI_PATH, &o.out, NULL, "folder or file to make", 1},
    {"dtype", "f32|bf16|q8_0", CLI_CHOICE, &o.dtype, "f32", "type of the matrices; q8_0 is for gguf only", 0},
    {"experts-per-token", "K", CLI_INT, &o.experts_per_token, "0",
     "expert choice: maximum number of experts per token; 0: the maximum in choir, which is exact", 0},
    {"cut", "SHARE", CLI_REAL, &o.cut, "0",
     "use the smallest K that removes experts from at most this share of the tokens: faster, not exact", 0},
    {"data", "DIR", CLI_PATH, &o.data, NULL,
     "measure the losses on the held-out part of this data; default: the run's data", 0},
    {"sequences", "N", CLI_INT64, &o.sequences, "64", "maximum number of sequences to measure; 0: measure nothing", 0},
    CLI_THREADS(&o.threads),
    {"json", NULL, CLI_FLAG, &json, NULL, "print JSON", 0},
    {0}};

CLI_VERB(export, "export", "RUN|CHECKPOINT", 1, 1, "convert a model for transformers, vLLM or llama.cpp",
         "The result uses standard architectures, which compute the same function when tokens are routed one by one: "
         "Glm4Moe, ExaoneMoe (hy_v3 in llama.cpp), Qwen3Moe, Olmoe, Mixtral, Qwen3 and Llama, and llama.cpp's llada, "
         "llada-moe and rnd1 for masked models. This requires model.position rope, activation swiglu and, for expert "
         "choice, router.score sigmoid. A field without an equivalent is refused by name.\n\n"
         "For expert choice, the thresholds become a selection bias, and every token selects K experts, some of them "
         "null experts, which compute nothing. By default, K is the largest number of experts of a token in choir, so "
         "logits and text are the same. A smaller K is faster.\n\n"
         "Prints the share of tokens that K cuts, and the loss on held-out text: of the model itself, with K, and with "
         "weights rounded to --dtype. docs/serving.md has the next steps.");
