/* choir data build | info */
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static struct {
  choir_data_build_options build;
  const char *separator, *pattern;
  cli_list sources;
  int json;
} o = {.build = CHOIR_DATA_BUILD_OPTIONS_INIT};

typedef struct watch {
  cli_progress progress;
  int64_t replaced; /* invalid UTF-8 bytes replaced so far */
} watch;

static int show_progress(void *context, const choir_progress *p) {
  watch *w = context;
  cli_progress *progress = &w->progress;
  w->replaced = p->replaced;
  if (!cli_progress_due(progress)) return cli_stop_requested();
  double share = p->total ? (double)p->done / (double)p->total : 0;
  double left = share > 0 ? p->seconds / share - p->seconds : -1;
  char documents[32] = ""; /* number of completely read documents */
  if (p->documents) snprintf(documents, sizeof documents, "  %s documents", cli_count((double)p->documents));
  cli_progress_line(progress, "%3.0f %%  %s of text  %s tokens%s  %s/s  %s left", 100 * share,
                    cli_bytes((double)p->text_bytes), cli_count((double)p->tokens), documents,
                    cli_bytes(p->seconds > 0 ? (double)p->text_bytes / p->seconds : 0), cli_duration(left));
  return cli_stop_requested();
}

/* Parses "NAME=WEIGHT:FILE" or "NAME:FILE" (FILE may be a pattern, because the shell does not expand patterns after
 * a colon), followed by further operands. */
static int parse_source(const char *text, int count, const char *const *operands, cli_files *files,
                        choir_data_source *source) {
  const char *colon = strchr(text, ':'), *equals = colon ? memchr(text, '=', (size_t)(colon - text)) : NULL;
  char *end = NULL;
  glob_t found = {0};
  if (!colon) return cli_usage("--source %s: must be NAME=WEIGHT:FILES...", text);
  if (equals) source->weight = strtod(equals + 1, &end);
  if (equals && (end != colon || end == equals + 1 || !(source->weight > 0)))
    return cli_usage("--source %s: the weight must be a positive number", text);
  if (!(source->name = strndup(text, (size_t)((equals ? equals : colon) - text))))
    return cli_fail_with("out of memory");
  if (colon[1] && glob(colon + 1, GLOB_NOCHECK, NULL, &found)) return cli_fail_with("out of memory");
  if (!found.gl_pathc && !count) return cli_usage("--source %s: names no file", text);
  int status = 0;
  for (size_t i = 0; i < found.gl_pathc && !status; i++) status = cli_files_add(files, found.gl_pathv[i], o.pattern);
  for (int i = 0; i < count && !status; i++) status = cli_files_add(files, operands[i], o.pattern);
  globfree(&found);
  return status ? status : cli_files_end(files);
}

/* Fills `sources` from --source options, or from bare files as the one source "text"; *number is how many. */
static int collect_sources(int count, const char *const *operands, cli_files *files, choir_data_source *sources,
                           int *number) {
  static const cli_list bare = {.count = 1, .values = {"text:"}};
  const cli_list *list = o.sources.count ? &o.sources : &bare;
  int status = 0;
  *number = list->count;
  if (list->at[0] > 0) return cli_usage("'%s' stands before the first --source and belongs to none", operands[0]);
  if (list == &bare && !count) return cli_usage("no files; usage: choir data build ... FILE... (or --source)");
  for (int i = 0; i < list->count && !status; i++) {
    int end = i + 1 < list->count ? list->at[i + 1] : count;
    status = parse_source(list->values[i], end - list->at[i], operands + list->at[i], files, &sources[i]);
  }
  for (size_t i = 0, at = 0; i < (size_t)*number && !status;
       i++, at++) { /* only now, because the list no longer moves */
    sources[i].inputs = files->names + at;
    while (files->names[at]) at++;
  }
  return status;
}

static int print_info(const char *directory, double seconds) {
  choir_data *data;
  choir_data_info info;
  char hash[17];
  if (choir_data_load(directory, &data)) return cli_fail();
  choir_data_get_info(data, &info);
  choir_data_free(data);
  snprintf(hash, sizeof hash, "%016" PRIx64, info.hash);
  if (o.json)
    return cli_json_print(json_pack("{s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I}", "hash", hash, "vocab_size",
                                    info.vocab_size, "sources", info.sources, "documents", (json_int_t)info.documents,
                                    "train_tokens", (json_int_t)info.train_tokens, "train_bytes",
                                    (json_int_t)info.train_bytes, "heldout_tokens", (json_int_t)info.heldout_tokens,
                                    "heldout_bytes", (json_int_t)info.heldout_bytes));
  cli_print(2, "%s: %s document%s from %d source%s, vocabulary %s", cli_shown(directory),
            cli_grouped((int64_t)info.documents), info.documents == 1 ? "" : "s", info.sources,
            info.sources == 1 ? "" : "s", cli_grouped(info.vocab_size));
  printf("  training  %15s tokens  %10s of text  %.2f bytes per token\n", cli_grouped((int64_t)info.train_tokens),
         cli_bytes((double)info.train_bytes),
         (double)info.train_bytes / (double)(info.train_tokens ? info.train_tokens : 1));
  printf("  held out  %15s tokens  %10s of text\n", cli_grouped((int64_t)info.heldout_tokens),
         cli_bytes((double)info.heldout_bytes));
  if (seconds > 0)
    printf("  built in %s (%s/s)\n", cli_duration(seconds),
           cli_bytes((double)(info.train_bytes + info.heldout_bytes) / seconds));
  return 0;
}

static int run_build(int count, const char *const *operands) {
  choir_data_source sources[CLI_LIST_MAX] = {{0}};
  cli_files files = {0};
  watch w = {0};
  char *separator = NULL;
  int number = 0, status = 0;
  if (o.separator && !(separator = cli_unescape(o.separator)))
    return cli_usage("--separator %s: unknown escape; use \\f, \\n, \\r, \\t or \\\\", o.separator);
  status = collect_sources(count, operands, &files, sources, &number);
  if (!status) {
    cli_progress_begin(&w.progress, stderr);
    cli_catch_signals();
    o.build.sources = sources;
    o.build.source_count = number;
    o.build.separator = separator;
    o.build.progress = show_progress;
    o.build.context = &w;
    int code = choir_data_build(&o.build);
    cli_progress_clear(&w.progress);
    if (!code) cli_print_notices(choir_notices());
    status = code ? cli_fail() : print_info(o.build.output, cli_seconds() - w.progress.started);
  }
  if (!status && w.replaced && !o.json)
    printf("  %s bytes were not UTF-8 and became U+FFFD\n", cli_grouped(w.replaced));
  for (int i = 0; i < number; i++) free((char *)sources[i].name);
  cli_files_free(&files);
  free(separator);
  return status;
}

static int info(int count, const char *const *operands) { return print_info(operands[0], 0); }

static const cli_option build_options[] = {
    {"out", "DIR", CLI_PATH, &o.build.output, NULL, "directory to make; must be new or empty", 1},
    {"tokenizer", "FILE", CLI_INPUT, &o.build.tokenizer, NULL, "tokenizer file", 1},
    {"source", "NAME=WEIGHT:FILES...", CLI_LIST, &o.sources, NULL,
     "a source of the data mixture: its name, its share of the training samples, and its files, including the operands "
     "that follow; without =WEIGHT, the share is proportional to its number of tokens",
     0},
    {"field", "NAME", CLI_TEXT, &o.build.field, NULL, "read JSON lines, with the text in this field", 0},
    CLI_PATTERN(&o.pattern),
    {"separator", "LINE", CLI_TEXT, &o.separator, NULL,
     "the line between documents, such as '\\f'; default: each file is one document", 0},
    {"holdout", "P", CLI_REAL, &o.build.holdout, "0.01", "share of the documents kept for evaluation", 0},
    {"seed", "S", CLI_INT64, &o.build.seed, "0", "seed of the choice of these documents", 0},
    {"replace-invalid", NULL, CLI_FLAG, &o.build.replace_invalid, NULL,
     "replace bytes that are not UTF-8 by U+FFFD, and count them; default: an error", 0},
    CLI_THREADS(&o.build.threads),
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print the counts as JSON", 0},
    {0}};
static const cli_option info_options[] = {{"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0}, {0}};

CLI_VERB_OF(data_build, "data build", "[FILE|DIR...]", 0, -1, "tokenize text into data for training and evaluation",
            "Files are plain text, or JSON lines with --field, each plain or compressed (gz, xz, zst, bz2). A "
            "directory stands for all files below it. Text must be UTF-8. Memory does not grow with the input.\n\n"
            "Example: choir data build --out data --tokenizer en.model --separator '\\f' --source books=2: "
            "books/*.txt.xz --source news=1: news.txt.gz",
            build_options, run_build);
CLI_VERB_OF(data_info, "data info", "DIR", 1, 1, "check a data directory and count its tokens", NULL, info_options,
            info);
