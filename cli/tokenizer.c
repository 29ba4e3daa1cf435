/* choir tokenizer train | import | encode | decode */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "export/import.h"
#include "npy/npy.h"

static choir_tokenizer_train_options training = CHOIR_TOKENIZER_TRAIN_OPTIONS_INIT;
static struct {
  const char *out, *separator, *model, *pattern;
  int pieces, length;
  int64_t sample_bytes, eos;
} o = {.eos = -1};

static int show_line(void *context, const choir_progress *p) {
  cli_progress *progress = context;
  if (cli_progress_due(progress)) cli_progress_line(progress, "%s", p->text);
  return cli_stop_requested();
}

/* Trains the tokenizer and prints its file name; returns an exit status. */
static int train_on(const char *const *inputs, const char *separator) {
  cli_progress progress;
  cli_progress_begin(&progress, stderr);
  cli_catch_signals();
  cli_progress_line(&progress, "training a tokenizer with %s pieces", cli_grouped(training.vocab_size));
  training.inputs = inputs;
  training.separator = separator;
  training.output = o.out;
  training.sample_bytes = (size_t)o.sample_bytes;
  training.progress = show_line;
  training.context = &progress;
  int code = choir_tokenizer_train(&training);
  cli_progress_clear(&progress);
  if (code == CHOIR_ERROR_INTERRUPTED) { /* no exit(): it would destroy objects that the running search still uses */
    cli_fail();
    fflush(NULL);
    _exit(CLI_FAILED);
  }
  if (code) return cli_fail();
  choir_tokenizer *tokenizer;
  if (choir_tokenizer_load(o.out, &tokenizer)) return cli_fail();
  printf("%s: %s pieces, %s\n", cli_shown(o.out), cli_grouped(choir_tokenizer_vocab_size(tokenizer)),
         cli_duration(cli_seconds() - progress.started));
  choir_tokenizer_free(tokenizer);
  return 0;
}

static int train(int count, const char *const *operands) {
  cli_files files = {0};
  char *separator = NULL;
  int status = 0;
  if (o.separator && !(separator = cli_unescape(o.separator)))
    return cli_usage("--separator %s: unknown escape; use \\f, \\n, \\r, \\t or \\\\", o.separator);
  for (int i = 0; i < count && !status; i++) status = cli_files_add(&files, operands[i], o.pattern);
  if (!status) status = cli_files_end(&files);
  if (!status) status = train_on(files.names, separator);
  cli_files_free(&files);
  free(separator);
  return status;
}

static int import(int count, const char *const *files) {
  (void)count;
  int pieces;
  if (choir_tokenizer_import(files[0], o.eos, 0, o.out, &pieces)) return cli_fail();
  printf("%s: %s pieces\n", cli_shown(o.out), cli_grouped(pieces));
  return 0;
}

/* Writes ids [count], or with --length only complete rows [count/T,T]. */
static int write_ids(int32_t *ids, size_t count) {
  ch_npy array = {.type = CH_NPY_INT32, .dims = 1, .shape = {(int64_t)count}, .data = ids};
  if (o.length) {
    array.dims = 2;
    array.shape[0] = (int64_t)count / o.length;
    array.shape[1] = o.length;
    if (!array.shape[0]) return cli_fail_with("--length %d: the text has %zu tokens only", o.length, count);
  }
  return ch_npy_write(o.out, &array) ? cli_fail() : 0;
}

static int run_encode(int count, const char *const *files) {
  choir_tokenizer *tokenizer;
  size_t length, tokens;
  int32_t *ids = NULL;
  int status = 0;
  if (o.length && !o.out) return cli_usage("--length requires --out");
  if (o.pieces && o.out) return cli_usage("give one of --out IDS.npy and --pieces");
  if (choir_tokenizer_load(o.model, &tokenizer)) return cli_fail();
  char *text = cli_read_file(count ? files[0] : "-", &length);
  if (!text)
    status = CLI_FAILED;
  else if (choir_tokenizer_encode(tokenizer, text, length, &ids, &tokens))
    status = cli_fail();
  else if (o.out)
    status = write_ids(ids, tokens);
  else if (o.pieces)
    for (size_t i = 0; i < tokens; i++) printf("%d\t%s\n", ids[i], cli_shown(choir_tokenizer_piece(tokenizer, ids[i])));
  else
    for (size_t i = 0; i < tokens; i++) printf("%d%c", ids[i], i + 1 < tokens ? ' ' : '\n');
  free(ids);
  free(text);
  choir_tokenizer_free(tokenizer);
  return status;
}

/* Parses ids from text, malloc'd; NULL after a message. */
static int32_t *parse_ids(const char *path, size_t *count) {
  static const char space[] = " \t\r\n";
  size_t length;
  char *text = cli_read_file(path ? path : "-", &length), *end;
  int32_t *ids = text ? reallocarray(NULL, length / 2 + 1, sizeof *ids) : NULL;
  *count = 0;
  for (const char *at = text; ids; at = end) {
    at += strspn(at, space);
    if (at == text + length) break;
    long id = strtol(at, &end, 10);
    if (end == at || id < 0 || id > INT32_MAX || (*end && !strchr(space, *end))) {
      cli_fail_with("%s: byte %td: not a token id", path ? path : "standard input", at - text);
      free(ids);
      ids = NULL;
    } else {
      ids[(*count)++] = (int32_t)id;
    }
  }
  free(text);
  return ids;
}

static int decode(int count, const char *const *files) {
  choir_tokenizer *tokenizer;
  const char *path = count ? files[0] : NULL, *dot = path ? strrchr(path, '.') : NULL;
  ch_npy array = {0};
  size_t tokens, length;
  char *text;
  if (choir_tokenizer_load(o.model, &tokenizer)) return cli_fail();
  int status = 0;
  if (dot && !strcmp(dot, ".npy")) {
    if (ch_npy_read(path, CH_NPY_INT32, 0, &array)) status = cli_fail();
    tokens = 1;
    for (int i = 0; i < array.dims; i++) tokens *= (size_t)array.shape[i];
  } else if (!(array.data = parse_ids(path, &tokens))) {
    status = CLI_FAILED;
  }
  if (!status && choir_tokenizer_decode(tokenizer, array.data, tokens, &text, &length)) status = cli_fail();
  if (!status) {
    cli_put_text(stdout, text, length);
    free(text);
  }
  free(array.data);
  choir_tokenizer_free(tokenizer);
  return status;
}

static const cli_option train_options[] = {
    {"out", "FILE", CLI_OUTPUT, &o.out, NULL, "the .model file to write", 1},
    {"type", "TYPE", CLI_TEXT, &training.type, "bpe", "bpe, unigram, or char (one piece per character)", 0},
    {"vocab-size", "V", CLI_INT, &training.vocab_size, "8192", "number of pieces, up to 256,000", 0},
    CLI_PATTERN(&o.pattern),
    {"field", "NAME", CLI_TEXT, &training.field, NULL, "read JSON lines, with the text in this field", 0},
    {"separator", "LINE", CLI_TEXT, &o.separator, NULL, "the line between documents, such as '\\f' or '%%'", 0},
    {"sample-bytes", "N", CLI_INT64, &o.sample_bytes, "16777216",
     "bytes of text to train on, sampled evenly from all inputs", 0},
    {"replace-invalid", NULL, CLI_FLAG, &training.replace_invalid, NULL,
     "replace bytes that are not UTF-8 by U+FFFD; default: an error", 0},
    CLI_THREADS(&training.threads),
    {0}};
static const cli_option import_options[] = {
    {"out", "FILE", CLI_OUTPUT, &o.out, NULL, "the file to write", 1},
    {"eos", "ID", CLI_INT64, &o.eos, NULL, "the token that ends a text; default: </s>, or the one of byte-level BPE",
     0},
    {0}};
static const cli_option encode_options[] = {
    {"tokenizer", "FILE", CLI_INPUT, &o.model, NULL, "tokenizer file", 1},
    {"out", "IDS.npy", CLI_OUTPUT, &o.out, NULL, "write int32 ids to a NumPy file; default: print them", 0},
    {"length", "T", CLI_INT, &o.length, NULL,
     "with --out: write rows of T tokens, shape [B,T], without the incomplete last row", 0},
    {"pieces", NULL, CLI_FLAG, &o.pieces, NULL, "print each id with the text of its piece", 0},
    {0}};
static const cli_option decode_options[] = {{"tokenizer", "FILE", CLI_INPUT, &o.model, NULL, "tokenizer file", 1}, {0}};

CLI_VERB_OF(
    tokenizer_train, "tokenizer train", "FILE|DIR...", 1, -1, "train a SentencePiece tokenizer on text",
    "The tokenizer has byte fallback, so decoding returns every text unchanged. Files are plain text, or JSON lines "
    "with --field, each plain or compressed (gz, xz, zst, bz2). A directory stands for all files below it.",
    train_options, train);
CLI_VERB_OF(tokenizer_import, "tokenizer import", "TOKENIZER.json", 1, 1, "convert a tokenizer from Hugging Face",
            "A tokenizer.json with byte-level BPE, as in OLMoE, Qwen, Llama 3, GLM-4 and DeepSeek, is copied. One with "
            "SentencePiece's rules, as in Llama 2, Mistral and TinyLlama, becomes a SentencePiece model, which does "
            "not add a space before a text. Neither adds special tokens. If the tokens would differ, the import is "
            "refused, and the message names the field.",
            import_options, import);
CLI_VERB_OF(tokenizer_encode, "tokenizer encode", "[FILE]", 0, 1, "convert text to token ids",
            "Reads FILE or standard input.", encode_options, run_encode);
CLI_VERB_OF(tokenizer_decode, "tokenizer decode", "[IDS]", 0, 1, "convert token ids to text",
            "Reads numbers from IDS or standard input, or an integer array from a file whose name ends in .npy.",
            decode_options, decode);
