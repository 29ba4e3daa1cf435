/* choir stats: how the routers of a model route a text. choir inspect: a page on which that can be looked at. */
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
  cli_print_outcome(r->objective, "the text", r->bits_per_byte / r->loss, r->loss, r->routing, r->unigram_loss,
                    r->gzip_bits_per_byte);
  printf("perplexity %.2f; %s tokens%s\n", r->perplexity, cli_grouped(r->tokens),
         inspection->cut ? " from the beginning of the text" : "");
  printf("routing %s, %d x %d tokens at a time%s\n", r->routing, inspection->batch_sequences,
         inspection->sequence_length,
         r->looks_across_tokens ? "; it looks across tokens: not the loss of causal use" : "");
}

static double per_cent(int64_t part, int64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

static void print_layer_head(const choir_route_stats *s) {
  printf("\nlayer %d: %.2f experts a token, none for %.1f %%, dropped %.1f %% of choices, gate mass %.3f\n", s->layer,
         s->tokens ? (double)s->assignments / (double)s->tokens : 0, per_cent(s->histogram[0], s->tokens),
         per_cent(s->dropped, s->dropped + s->assignments), s->gate_mass);
  printf("  entropy of at most %.2f nats: ", log(s->experts));
  if (isfinite(s->token_entropy)) printf("%.2f of a token's scores, ", s->token_entropy);
  printf("%.2f of the load", s->load_entropy);
  if (isfinite(s->drift)) printf("; cut-offs drifted by %.1f %%", 100 * s->drift);
  printf("\n\n");
  cli_print_histogram(s);
}

/* A piece with its spaces visible and nothing that a terminal would obey. */
static void print_piece(const char *piece) {
  char shown[512];
  if (!piece) piece = "<mask>"; /* the tokenizer does not have it */
  ch_printable(piece, strlen(piece), 0, shown, sizeof shown);
  printf("  ");
  for (const char *c = shown; *c; c++) {
    if (*c == ' ')
      printf("\xE2\x90\xA3");
    else
      putchar(*c);
  }
}

/* The expert that shares most with this one; -1: none shares anything. */
static int nearest(const choir_route_stats *s, int expert) {
  int best = -1;
  for (int i = 0; i < s->experts; i++)
    if (i != expert && choir_route_stats_overlap(s, expert, i) > 0 &&
        (best < 0 || choir_route_stats_overlap(s, expert, i) > choir_route_stats_overlap(s, expert, best)))
      best = i;
  return best;
}

/* A score, or a dash where there is none. */
static void print_score(double score) {
  if (isfinite(score))
    printf(" %7.4f", score);
  else
    printf("       -");
}

static void print_expert(const choir_route_stats *s, int i, double most) {
  int near = nearest(s, i);
  double ratio = s->target > 0 ? (double)s->load[i] / s->target : 0;
  int64_t over = s->demand[i] > s->capacity ? s->demand[i] - s->capacity : 0;
  printf("  %6d %8s %6.0f %%  ", i, cli_count((double)s->load[i]), 100 * ratio);
  int width = (int)(12 * ratio / most + 0.5);
  if (width < 1 && s->load[i]) width = 1;
  printf("%-12.*s %7s %7.4f ", width, "############", over ? cli_count((double)over) : "-", s->gate[i]);
  print_score(s->cutoff[i]);
  print_score(s->threshold[i]);
  if (near >= 0)
    printf("  %4d %4.0f %%\n", near, 100 * choir_route_stats_overlap(s, i, near));
  else
    printf("     -\n");
}

static void print_experts(const choir_route_stats *s) {
  double most = 1;
  for (int i = 0; i < s->experts; i++)
    if (s->target > 0) most = fmax(most, (double)s->load[i] / s->target);
  printf("\n  expert     load  of target                over    gate  cut-off    kept  most shared with\n");
  for (int i = 0; i < s->experts; i++) print_expert(s, i, most);
}

typedef int favourite_list(const choir_route_stats *s, int expert, int most, choir_favourite *best);

static void print_tokens(const choir_route_stats *s, const choir_tokenizer *tokenizer, const char *title,
                         favourite_list *find, choir_favourite *list) {
  printf("\n  expert  %s\n", title);
  for (int i = 0; i < s->experts; i++) {
    int count = find(s, i, o.top, list);
    printf("  %6d", i);
    for (int f = 0; f < count; f++) {
      print_piece(choir_tokenizer_piece(tokenizer, list[f].token));
      printf(" %s x%.1f", cli_count((double)list[f].held), list[f].lift);
    }
    putchar('\n');
  }
}

static int print_inspection(const choir_tokenizer *tokenizer, const ch_inspection *inspection) {
  choir_favourite *list = reallocarray(NULL, (size_t)o.top + 1, sizeof *list);
  if (!list) return cli_fail_with("out of memory");
  print_head(inspection);
  for (int i = 0; i < inspection->layers; i++) {
    print_layer_head(&inspection->layer[i]);
    print_experts(&inspection->layer[i]);
    if (!o.top) continue;
    print_tokens(&inspection->layer[i], tokenizer, "most frequent tokens: times held, x over their share of the text",
                 choir_route_stats_get_frequent, list);
    print_tokens(&inspection->layer[i], tokenizer, "most typical tokens", choir_route_stats_get_typical, list);
  }
  free(list);
  return 0;
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
  if (count > CH_INSPECT_MOST) return cli_usage("%d checkpoints; a page has %d at most", count, CH_INSPECT_MOST);
  page = json_object();
  views = count;
  for (int i = 0; i < count && !status; i++) status = look(operands[i], add_to_page);
  if (status) return json_decref(page), status;
  if (ch_inspect_save(page, out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

/* Rows of both verbs; `limit` is the default of --tokens. */
/* clang-format off */
#define OPTIONS(limit)                                                                                   \
  {"text", "FILE", CLI_INPUT, &o.text, NULL, "the UTF-8 text", 1},                                              \
  {"tokens", "N", CLI_INT64, &o.tokens, limit, "of the beginning of the text, at most; 0: all", 0},            \
  {"routing", "NAME", CLI_TEXT, &o.routing, NULL,                                                              \
   "batch, sequence, position, group or threshold; otherwise as trained, or by thresholds where the text has fewer tokens than there are experts", 0},                                \
  {"batch", "B", CLI_INT, &o.batch_sequences, "0", "sequences that are routed together; 0: as in training", 0},\
  {"length", "T", CLI_INT, &o.sequence_length, "0", "tokens of a sequence; 0: as in training", 0},             \
  {"mask-ratio", "R", CLI_REAL, &o.mask_ratio, "0",                                                            \
   "of models of masked_diffusion: the share of tokens that is masked, to 1; 0: drawn, all shares", 0},         \
  {"top", "N", CLI_INT, &o.top, "8", "favourite tokens of each expert", 0},                                    \
  CLI_MODEL_OPTIONS(run)
/* clang-format on */

static const cli_option stats_options[] = {OPTIONS("0"),
                                           CLI_SHARDS(&run.shards),
                                           CLI_RANKS_OPTIONS,
                                           {"json", NULL, CLI_FLAG, &json, NULL, "print JSON", 0},
                                           {0}};

CLI_VERB_OF(
    stats, "stats", "RUN|CHECKPOINT", 1, 1,
    "how the routers route a text: experts per token, load, entropy, overlap, favourite tokens",
    "A run directory stands for its best checkpoint. For every MoE layer: tokens by their number of experts; "
    "for every expert its load (against what it should hold), how many tokens more than it has room for asked for "
    "it, the mean gate, the cut-off in this text beside the one that training kept, the expert that it shares "
    "most tokens with (Jaccard), and the tokens that it holds: the most frequent, and the most typical, by how "
    "much more often it holds them than their share of the text would give.\n\n"
    "Started by mpirun or srun, all processes share the work; their number must divide train.grad_chunks, or --shards "
    "(docs/clusters.md).\n\n"
    "Example: choir stats run --text page.txt --routing threshold",
    stats_options, stats);

static const cli_option inspect_options[] = {
    OPTIONS("4096"), {"out", "FILE.html", CLI_OUTPUT, &out, NULL, "the file to write", 1}, {0}};

CLI_VERB_OF(
    inspect, "inspect", "RUN|CHECKPOINT...", 1, -1,
    "write one self-contained HTML page that shows a text and which experts took its tokens",
    "A run directory stands for its best checkpoint. The page has the text, every token shaded by how many "
    "experts took it, in each layer and in all; pointing at a token shows which experts and their gates, choosing "
    "an expert shows its tokens. Beside it: experts per token, load of the experts, overlap, and the tokens that "
    "each expert likes best. Of several checkpoints of a run, in the order given, the page has a slider that leads "
    "from one to the next. Needs no network, neither to write nor to read.\n\n"
    "Example: choir inspect run --text page.txt --out page.html\n"
    "Example: choir inspect run/checkpoints/* --text page.txt --out page.html",
    inspect_options, inspect);
