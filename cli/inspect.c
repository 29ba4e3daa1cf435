/* choir stats: statistics of the routing of a text. choir inspect: a page that shows them. */
#include "pages/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static ch_inspect_options o;
static choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
static const char *out;
static int json;

static void print_head(const ch_inspection *inspection) {
  const choir_eval_result *r = &inspection->eval;
  cli_print_outcome(r->objective, 1, r->bits_per_byte / r->loss, r->loss, r->routing, r->unigram_loss,
                    r->gzip_bits_per_byte);
  cli_print(2, "%.4f nats per token, perplexity %.2f, over %s tokens%s in batches of %d x %d%s", r->loss, r->perplexity,
            cli_grouped(r->tokens), inspection->cut ? " from the beginning of the text" : "",
            inspection->batch_sequences, inspection->sequence_length,
            r->looks_across_tokens ? "; not causal: experts of a token depend on other tokens" : "");
}

static double per_cent(int64_t part, int64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

static void print_layer_head(const choir_route_stats *s) {
  char tokens[64] = "", drift[64] = "";
  putchar('\n');
  cli_print(2,
            "layer %d: %.2f experts per token, none for %.1f %% of the tokens, %.1f %% of the choices dropped, gate "
            "mass %.3f",
            s->layer, s->tokens ? (double)s->assignments / (double)s->tokens : 0, per_cent(s->histogram[0], s->tokens),
            per_cent(s->dropped, s->dropped + s->assignments), s->gate_mass);
  if (isfinite(s->token_entropy)) snprintf(tokens, sizeof tokens, "%.2f of a token's scores, ", s->token_entropy);
  if (isfinite(s->drift)) snprintf(drift, sizeof drift, "; cut-offs drifted by %.1f %%", 100 * s->drift);
  cli_print(4, "  entropy (max %.2f nats): %s%.2f of the load%s\n", log(s->experts), tokens, s->load_entropy, drift);
  cli_print_histogram(s);
}

/* Appends a piece with visible spaces and escaped control characters. */
static void append_piece(ch_buffer *line, const char *piece) {
  char shown[512];
  if (!piece) piece = "<mask>"; /* a mask, which the tokenizer does not have */
  ch_printable(piece, strlen(piece), 0, shown, sizeof shown);
  for (const char *c = shown; *c; c++) {
    int blank = *c == ' ';
    ch_buffer_append(line, blank ? "\xE2\x90\xA3" : c, blank ? 3 : 1);
  }
}

/* The expert that shares most tokens with this one; -1: none shares any. */
static int nearest(const choir_route_stats *s, int expert) {
  int best = -1;
  for (int i = 0; i < s->experts; i++)
    if (i != expert && choir_route_stats_overlap(s, expert, i) > 0 &&
        (best < 0 || choir_route_stats_overlap(s, expert, i) > choir_route_stats_overlap(s, expert, best)))
      best = i;
  return best;
}

/* A score, or a dash if there is none. */
static void score_cell(cli_table *table, double score) {
  if (isfinite(score))
    cli_cell(table, "%.4f", score);
  else
    cli_cell(table, "-");
}

/* A row of the experts' table; `max`: the highest load, as a multiple of the target. */
static void add_expert(cli_table *table, const choir_route_stats *s, int i, double max) {
  int near = nearest(s, i);
  double ratio = s->target > 0 ? (double)s->load[i] / s->target : 0;
  int64_t over = s->demand[i] > s->capacity ? s->demand[i] - s->capacity : 0;
  int bar = (int)(10 * ratio / max + 0.5);
  if (bar < 1 && s->load[i]) bar = 1;
  cli_cell(table, "%d", i);
  cli_cell(table, "%s", cli_count((double)s->load[i]));
  cli_cell(table, "%.0f %%", 100 * ratio);
  cli_cell(table, "%.*s", bar, "##########");
  cli_cell(table, "%s", over ? cli_count((double)over) : "-");
  cli_cell(table, "%.4f", s->gate[i]);
  score_cell(table, s->cutoff[i]);
  score_cell(table, s->threshold[i]);
  if (near >= 0)
    cli_cell(table, "%d: %.0f %%", near, 100 * choir_route_stats_overlap(s, i, near));
  else
    cli_cell(table, "-");
}

static int print_experts(const choir_route_stats *s) {
  double max = 1;
  cli_table table;
  for (int i = 0; i < s->experts; i++)
    if (s->target > 0) max = fmax(max, (double)s->load[i] / s->target);
  putchar('\n');
  cli_table_begin(&table, 2, "expert>|load>|target>||over>|gate>|cut-off>|threshold>|shares>");
  for (int i = 0; i < s->experts; i++) add_expert(&table, s, i, max);
  return cli_table_end(&table);
}

typedef int favourite_list(const choir_route_stats *s, int expert, int max, choir_favourite *best);

static int print_tokens(const choir_route_stats *s, const choir_tokenizer *tokenizer, const char *title,
                        favourite_list *find, choir_favourite *list) {
  char heads[128];
  cli_table table;
  putchar('\n');
  snprintf(heads, sizeof heads, "expert>|%s", title);
  cli_table_begin(&table, 2, heads);
  for (int i = 0; i < s->experts; i++) {
    ch_buffer line = {0};
    int count = find(s, i, o.top, list);
    for (int f = 0; f < count; f++) {
      char held[64];
      append_piece(&line, choir_tokenizer_piece(tokenizer, list[f].token));
      int size = snprintf(held, sizeof held, CLI_TIE "%s" CLI_TIE "x%.1f%s", cli_count((double)list[f].held),
                          list[f].lift, f + 1 < count ? "  " : "");
      ch_buffer_append(&line, held, (size_t)size);
    }
    cli_cell(&table, "%d", i);
    cli_cell(&table, "%.*s", (int)line.size, line.data ? line.data : "");
    free(line.data);
  }
  return cli_table_end(&table);
}

static void ratio_cell(cli_table *table, ch_ratio r) {
  if (r.whole)
    cli_cell(table, "%.1f %%", 100 * (double)r.part / (double)r.whole);
  else
    cli_cell(table, "-");
}

static void locality_row(cli_table *table, const char *name, const ch_locality_sums *s) {
  cli_cell(table, "%s", name);
  ratio_cell(table, s->reuse);
  for (int c = 0; c < CH_CACHE_SIZES; c++) ratio_cell(table, s->lru[c]);
  for (int g = 0; g < CH_SEGMENTS; g++) ratio_cell(table, s->srp[1][g]);
}

/* A row for each layer, and for the same tokens shuffled. */
static int print_locality(const ch_inspection *inspection) {
  int e = inspection->layer[0].experts;
  char heads[160], name[32];
  cli_table table;
  putchar('\n');
  cli_print(
      2,
      "locality: experts of a token that the previous token used; hits of an LRU cache of %d, %d and %d of the %d "
      "experts; uses of the best fixed %d experts of segments of 16, 64 and 256 tokens (SRP)",
      ch_cache_size(e, 0), ch_cache_size(e, 1), ch_cache_size(e, 2), e, ch_cache_size(e, 1));
  snprintf(heads, sizeof heads, "layer|reuse>|LRU %d>|%d>|%d>|SRP 16>|64>|256>", ch_cache_size(e, 0),
           ch_cache_size(e, 1), ch_cache_size(e, 2));
  cli_table_begin(&table, 2, heads);
  for (int i = 0; i <= inspection->layers; i++) {
    if (i == inspection->layers)
      snprintf(name, sizeof name, "all");
    else
      snprintf(name, sizeof name, "%d", inspection->layer[i].layer);
    locality_row(&table, name, &inspection->locality[i].text);
    locality_row(&table, "  shuffled", &inspection->locality[i].shuffled);
  }
  return cli_table_end(&table);
}

/* A row for each number of candidate experts; the bar is the hit rate. */
static int print_trade(const ch_inspection *inspection) {
  cli_table table;
  putchar('\n');
  cli_print(2,
            "trade: loss and hit rate of an LRU cache of %d experts in each layer, if a token chooses its usual number "
            "of experts from more candidates (among), cached experts first",
            o.cache);
  cli_table_begin(&table, 2, "among>|hits>||loss>|change>|perplexity>");
  for (int p = 0; p < inspection->trade_points; p++) {
    const ch_trade_point *at = &inspection->trade[p];
    ch_ratio hits = at->hits[inspection->layers];
    if (at->among)
      cli_cell(&table, "%d", at->among);
    else
      cli_cell(&table, "own");
    ratio_cell(&table, hits);
    cli_cell(&table, "%.*s", hits.whole ? (int)(20 * hits.part / hits.whole) : 0, "####################");
    cli_cell(&table, "%.4f", at->loss);
    cli_cell(&table, "%+.4f", at->loss - inspection->trade->loss);
    cli_cell(&table, "%.2f", at->perplexity);
  }
  return cli_table_end(&table);
}

static int print_layer(const choir_route_stats *s, const choir_tokenizer *tokenizer, choir_favourite *list) {
  print_layer_head(s);
  int status = print_experts(s);
  if (!status && o.top)
    status = print_tokens(s, tokenizer, "most frequent tokens: count, x over their share of the text",
                          choir_route_stats_get_frequent, list);
  if (!status && o.top) status = print_tokens(s, tokenizer, "most typical tokens", choir_route_stats_get_typical, list);
  return status;
}

static int print_inspection(const choir_tokenizer *tokenizer, const ch_inspection *inspection) {
  choir_favourite *list = reallocarray(NULL, (size_t)o.top + 1, sizeof *list);
  int status = 0;
  if (!list) return cli_fail_with("out of memory");
  print_head(inspection);
  for (int i = 0; i < inspection->layers && !status; i++) status = print_layer(&inspection->layer[i], tokenizer, list);
  if (!status && inspection->locality) status = print_locality(inspection);
  if (!status && inspection->trade) status = print_trade(inspection);
  if (!status && inspection->layers) putchar('\n');
  if (!status && inspection->layers)
    cli_print(2,
              "target: load as a share of an even load; over: requests beyond the capacity; cut-off: lowest chosen "
              "score in this text; threshold: the mean cut-off of training; shares: the expert with the most tokens in "
              "common (Jaccard)");
  free(list);
  return status;
}

static int show_stats(choir_model *model, const choir_tokenizer *tokenizer) {
  ch_inspection inspection;
  int status;
  if (ch_inspect_text(model, tokenizer, &o, &inspection))
    status = cli_fail();
  else
    status = json ? cli_json_print(ch_inspection_json(model, tokenizer, &o, &inspection))
                  : print_inspection(tokenizer, &inspection);
  ch_inspection_free(&inspection);
  return status;
}

static json_t *page;
static int views;

static int add_to_page(choir_model *model, const choir_tokenizer *tokenizer) {
  return ch_inspect_add(model, tokenizer, &o, views, page) ? cli_fail() : 0;
}

static int look(const char *checkpoint, int (*show)(choir_model *model, const choir_tokenizer *tokenizer)) {
  cli_progress progress;
  cli_catch_signals();
  cli_progress_begin(&progress, stderr);
  o.checkpoint = checkpoint;
  o.progress = cli_progress_count;
  o.context = &progress;
  return cli_with_model(checkpoint, &run, NULL, 1, show);
}

static int stats(int count, const char *const *operands) { return look(operands[0], show_stats); }

static int inspect(int count, const char *const *operands) {
  int status = 0;
  if (count > CH_INSPECT_MAX) return cli_usage("%d checkpoints; a page has %d at most", count, CH_INSPECT_MAX);
  page = json_object();
  views = count;
  for (int i = 0; i < count && !status; i++) status = look(operands[i], add_to_page);
  if (status) return json_decref(page), status;
  if (ch_inspect_save(page, out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

/* Option rows of both verbs; `limit` is the default of --tokens. */
/* clang-format off */
#define OPTIONS(limit)                                                                                   \
  {"text", "FILE", CLI_INPUT, &o.text, NULL, "UTF-8 text file", 1},                                              \
  {"tokens", "N", CLI_INT64, &o.tokens, limit, "maximum number of tokens, from the beginning of the text; 0: all", 0},            \
  {"routing", "NAME", CLI_TEXT, &o.routing, NULL,                                                              \
   "batch, sequence, position, group or threshold; default: as trained, or threshold if the text has fewer tokens than the layer has experts", 0},                                \
  {"batch", "B", CLI_INT, &o.batch_sequences, "0", "number of sequences that are routed together; 0: as in training", 0},\
  {"length", "T", CLI_INT, &o.sequence_length, "0", "tokens per sequence; 0: as in training", 0},             \
  {"mask-ratio", "R", CLI_REAL, &o.mask_ratio, "0",                                                            \
   "models of masked_diffusion: share of the tokens that is masked, up to 1; 0: random ratios", 0},         \
  {"top", "N", CLI_INT, &o.top, "8", "number of tokens listed for each expert", 0},                                    \
  CLI_MODEL_OPTIONS(run)
/* clang-format on */

/* clang-format off */
static const cli_option stats_options[] = {
  OPTIONS("0"),
  {"cache", "N", CLI_INT, &o.cache, "0",
   "loss against hit rate where tokens prefer the experts in an LRU cache of N experts in each layer; with --among; 0: not", 0},
  {"among", "M", CLI_INT, &o.among, "0", "maximum number of candidates of a token, among which it prefers the experts in the cache", 0},
  CLI_SHARDS(&run.shards),
  CLI_RANKS_OPTIONS,
  {"json", NULL, CLI_FLAG, &json, NULL, "print JSON", 0},
  {0}};
/* clang-format on */

CLI_VERB_OF(
    stats, "stats", "RUN|CHECKPOINT", 1, 1,
    "print how the routers route a text: experts per token; load and tokens of each expert, and tokens that it shares",
    "RUN stands for its best checkpoint. For every MoE layer, the output has the number of tokens by number of "
    "experts, and for each expert:\n- its load, and the load that it should have\n- the number of tokens that selected "
    "it beyond its capacity\n- its mean gate\n- its cut-off score in this text, and the threshold from training\n- the "
    "expert with which it shares most tokens (Jaccard index)\n- its most frequent tokens, and its most typical ones: "
    "those that it processes more often than their frequency in the text explains\n\n"
    "Under mpirun or srun, all processes share the work. The number of processes must divide train.grad_chunks, or "
    "--shards (docs/clusters.md).\n\n"
    "Example: choir stats run --text page.txt --routing threshold\nExample: choir stats run --text page.txt --cache 2 "
    "--among 4",
    stats_options, stats);

static const cli_option inspect_options[] = {
    OPTIONS("4096"), {"out", "FILE.html", CLI_OUTPUT, &out, NULL, "HTML file to write", 1}, {0}};

CLI_VERB_OF(
    inspect, "inspect", "RUN|CHECKPOINT...", 1, -1,
    "make a web page that shows a text and which experts processed each token",
    "RUN stands for its best checkpoint. On the page, each token is shaded by the number of experts that processed it, "
    "in one layer or in all. Point at a token to see its experts and gates; select an expert to see its tokens. Charts "
    "show the experts per token, the load and overlap of the experts, and the tokens that each expert prefers.\n\n"
    "Several checkpoints of one run, in the given order, become one page with a slider. The page is one file and needs "
    "no network.\n\n"
    "Example: choir inspect run --text page.txt --out page.html\nExample: choir inspect run/checkpoints/* --text "
    "page.txt --out page.html",
    inspect_options, inspect);
