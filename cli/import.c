/* choir import: makes a checkpoint from a Hugging Face folder or a GGUF file. */
#include "export/import.h"

#include "cli.h"

static choir_import_options o;

static int run_import(int count, const char *const *operands) {
  cli_progress progress;
  choir_import_result result;
  o.from = operands[0];
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o.progress = cli_progress_share;
  o.context = &progress;
  int code = choir_import(&o, &result);
  cli_progress_clear(&progress);
  if (code) return cli_fail();
  cli_print_notices(choir_notices());
  printf("%s: %s, %s parameters%s\n", cli_shown(o.out), result.architecture, cli_grouped(result.parameters),
         result.tokenizer ? "" : ", no tokenizer");
  return 0;
}

static const cli_option options[] = {
    {"out", "CHECKPOINT", CLI_NEW, &o.out, NULL, "checkpoint directory to make", 1},
    {"tokenizer", "FILE", CLI_INPUT, &o.tokenizer, NULL,
     "tokenizer file to use; default: the model's own, if decoding it returns texts unchanged", 0},
    {0}};

CLI_VERB(import, "import", "FOLDER|FILE.gguf", 1, 1, "convert a model from Hugging Face or llama.cpp",
         "FOLDER has config.json and safetensors files of a model of type llama, mistral, qwen3, mixtral, olmoe, "
         "qwen3_moe, glm4_moe or exaone_moe. FILE is a GGUF file of architecture llama, qwen3, olmoe, qwen3moe, "
         "glm4moe or hy_v3 with weights of type F32, F16, BF16 or Q8_0. Unknown fields, and fields that choir cannot "
         "compute, are refused by name. choir train --init-from makes a dense model into an expert-choice model.");
