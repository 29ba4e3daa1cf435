/* choir generate: generates text token by token. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static struct {
  choir_model_options run;
  choir_generate_options generate;
  const char *prompt, *prompts, *routing, *infill, *order;
  int length, steps, block; /* of models that are trained by masking */
  cli_list stops;
  int json;
} o = {.run = CHOIR_MODEL_OPTIONS_INIT, .generate = CHOIR_GENERATE_OPTIONS_INIT};

/* The prompts, and the state of printing their texts. */
typedef struct {
  choir_prompt *prompt; /* [count] texts malloc'd */
  int count, printed;
  const choir_generated **ready; /* [count] NULL until the sequence has ended */
  cli_progress progress;
  int begun;                           /* the prompt has been processed, generation has begun */
  int broken;                          /* standard output was closed */
  const char *stops[CLI_LIST_MAX + 1]; /* malloc'd, NULL-terminated */
} generate_work;
static generate_work all;

/* ---- prompts */

static int add_prompt(generate_work *w, const char *text, size_t size) {
  choir_prompt *more = reallocarray(w->prompt, (size_t)w->count + 1, sizeof *more);
  char *copy = malloc(size + 1);
  if (more) w->prompt = more;
  if (!more || !copy) {
    free(copy);
    return cli_fail_with("out of memory");
  }
  memcpy(copy, text, size);
  copy[size] = 0;
  w->prompt[w->count++] = (choir_prompt){.text = copy, .size = size};
  return 0;
}

static int add_json(generate_work *w, int64_t number, const ch_value *line) {
  json_t *object, *text;
  int status = cli_json_read(o.prompts, number, line, &object);
  if (!object) return status;
  text = json_object_get(object, "prompt");
  status = json_is_string(text) ? add_prompt(w, json_string_value(text), json_string_length(text))
                                : cli_fail_with("%s: line %lld: no text \"prompt\"", o.prompts, (long long)number);
  json_decref(object);
  return status;
}

/* The number of spaces and line ends at the beginning of a text. */
static size_t count_blanks(const char *text, size_t size) {
  size_t blanks = 0;
  while (blanks < size && memchr(" \t\r\n", text[blanks], 4)) blanks++;
  return blanks;
}

/* Nonzero: the first character other than spaces is {. */
static int holds_json(ch_lines lines) {
  ch_value line;
  size_t blanks;
  while (ch_lines_next(&lines, &line))
    if ((blanks = count_blanks(line.text, line.size)) < line.size) return line.text[blanks] == '{';
  return 0;
}

/* Adds one prompt per line, or JSON lines without empty ones. */
static int add_lines(generate_work *w, const char *text, size_t size) {
  ch_lines lines = {text, text + size, 0};
  ch_value line;
  int json = holds_json(lines), status = 0;
  while (!status && ch_lines_next(&lines, &line)) {
    if (json && count_blanks(line.text, line.size) == line.size) continue;
    status = json ? add_json(w, lines.number, &line) : add_prompt(w, line.text, line.size);
  }
  return status;
}

static int read_prompts(generate_work *w) {
  if (o.prompt && o.prompts) return cli_usage("give one of --prompt TEXT and --prompts FILE");
  if (!o.prompts && !o.prompt) return add_prompt(w, "", 0);
  if (o.prompt && strcmp(o.prompt, "-")) return add_prompt(w, o.prompt, strlen(o.prompt));
  size_t size;
  char *text = cli_read_file(o.prompt ? "-" : o.prompts, &size);
  if (!text) return CLI_FAILED;
  if (o.prompt && size && text[size - 1] == '\n') size--; /* removes the line end that echo appends */
  int status = o.prompt ? add_prompt(w, text, size) : add_lines(w, text, size);
  free(text);
  if (!status && !w->count) status = cli_fail_with("%s: no prompts", o.prompts);
  return status;
}

/* ---- output */

/* Prints the prompt, in bold on a terminal to distinguish it from generated text. */
static void print_prompt(const choir_prompt *p) {
  int bold = p->size && isatty(STDOUT_FILENO);
  if (bold) fputs("\033[1m", stdout);
  cli_put_text(stdout, p->text, p->size);
  if (bold) fputs("\033[0m", stdout);
}

static int show_text(generate_work *w, const choir_text_event *new) {
  int first = !w->begun;
  if (first) cli_progress_clear(&w->progress);
  w->begun = 1;
  if (w->count > 1 || o.json) return 0;
  if (first) print_prompt(w->prompt);
  cli_put_text(stdout, new->text, new->size);
  if (new->size) w->broken |= fflush(stdout) != 0;
  return w->broken;
}

static int print_generated_json(const choir_prompt *p, const choir_generated *g) {
  json_t *row = json_pack("{s:s%, s:s%, s:i, s:i, s:s}", "prompt", p->text, p->size, "text", g->text, g->size,
                          "prompt_tokens", g->prompt_count, "tokens", g->count, "end", choir_end_name(g->end));
  return cli_json_line(row);
}

static int print_done(const generate_work *w, int i) {
  const choir_generated *g = w->ready[i];
  if (o.json) return print_generated_json(&w->prompt[i], g);
  if (w->count > 1) {
    printf("%s", i ? "---\n" : "");
    print_prompt(&w->prompt[i]);
    cli_put_text(stdout, g->text, g->size);
  }
  if (!g->size || g->text[g->size - 1] != '\n') putchar('\n');
  return 0;
}

/* Prints ended sequences in the order of the prompts, each as soon as all earlier ones have been printed. */
static int show_done(generate_work *w, const choir_text_event *new) {
  w->ready[new->sequence] = new->generated;
  cli_progress_clear(&w->progress);
  while (w->printed < w->count && w->ready[w->printed]) w->broken |= print_done(w, w->printed++) != 0;
  w->broken |= fflush(stdout) != 0;
  return w->broken;
}

static int on_event(void *context, const choir_event *e) {
  return (e->kind == CHOIR_EVENT_TEXT ? show_text : show_done)(context, e->text);
}

static int asked_to_stop(void *context, const choir_progress *p) {
  generate_work *w = context;
  if ((w->count > 1 || !w->begun) && cli_progress_due(&w->progress)) {
    const char *time = cli_duration(cli_seconds() - w->progress.started);
    if (w->count > 1)
      cli_progress_line(&w->progress, "%d of %d prompts, %s", (int)p->done, w->count, time);
    else
      cli_progress_line(&w->progress, "reading the prompt, %.3g MB, %s", (double)w->prompt->size / 1e6, time);
  }
  return w->broken || cli_stop_requested();
}

static double rate(int64_t tokens, double seconds) { return seconds > 0 ? (double)tokens / seconds : 0; }

/* Prints the speed. The first token of every sequence is computed with its prompt and is not counted as generated. */
static void print_speed(const choir_generate_result *r) {
  int64_t later = r->tokens;
  for (int i = 0; i < r->count; i++) later -= r->sequences[i].count > 0;
  fprintf(stderr, "prompt%s: %s tokens, %.1f tokens/s\n", r->count > 1 ? "s" : "", cli_grouped(r->prompt_tokens),
          rate(r->prompt_tokens, r->prompt_seconds));
  fprintf(stderr, "generated: %s tokens, %.1f tokens/s", cli_grouped(r->tokens), rate(later, r->seconds));
  if (r->count == 1) fprintf(stderr, "; end: %s", choir_end_name(r->sequences[0].end));
  fputc('\n', stderr);
}

/* Refuses options of causal generation for a masked model, and options of filling for a causal model. */
static int check_kind(int masked) {
  const choir_generate_options *g = &o.generate;
  const char *causal = o.prompts                             ? "prompts"
                       : o.stops.count                       ? "stop"
                       : g->max_tokens != 256                ? "max-tokens (it is --length here)"
                       : strcmp(o.routing, "threshold") != 0 ? "routing (each text is routed on its own)"
                                                             : NULL;
  const char *fills = o.infill ? "infill" : o.length ? "length" : o.steps ? "steps" : o.block ? "block" : NULL;
  if (!masked && !fills && strcmp(o.order, "confidence")) fills = "order";
  if (masked && causal) return cli_usage("--%s: cannot be used with a masked model", causal);
  if (!masked && fills) return cli_usage("--%s: is for masked models only (docs/diffusion.md)", fills);
  if (o.infill && o.prompt) return cli_usage("give one of --prompt TEXT and --infill TEXT");
  if (o.length < 0 || o.steps < 0 || o.block < 0)
    return cli_usage("--length, --steps and --block must not be negative");
  if (strcmp(o.order, "confidence") && strcmp(o.order, "random"))
    return cli_usage("--order %s: must be confidence or random", o.order);
  return 0;
}

static int fill(choir_model *model, const choir_tokenizer *tokenizer) {
  const choir_generate_options *g = &o.generate;
  const cli_fill_request request = {.fill = {.size = sizeof(choir_fill_options),
                                             .steps = o.steps,
                                             .block = o.block,
                                             .random_order = !strcmp(o.order, "random"),
                                             .temperature = g->temperature,
                                             .top_k = g->top_k,
                                             .top_p = g->top_p,
                                             .seed = g->seed},
                                    .prompt = o.prompt ? all.prompt[0].text : NULL,
                                    .infill = o.infill,
                                    .length = o.length,
                                    .json = o.json};
  return cli_fill(model, tokenizer, &request);
}

static int generate(choir_model *model, const choir_tokenizer *tokenizer) {
  generate_work *w = &all;
  int masked = cli_predicts_masked(model), status = check_kind(masked);
  if (status || masked) return status ? status : fill(model, tokenizer);
  if (choir_model_set_routing(model, o.routing)) return cli_fail();
  if (choir_model_check_causal(model)) return cli_fail(); /* the routing that --routing requests */
  choir_generate_result result;
  o.generate.stops = w->stops;
  o.generate.event = on_event;
  o.generate.progress = asked_to_stop;
  o.generate.context = w;
  cli_progress_begin(&w->progress, stderr);
  if (choir_generate(model, tokenizer, w->prompt, w->count, &o.generate, &result)) return cli_fail();
  print_speed(&result);
  choir_generate_result_clear(&result);
  return 0;
}

/* Refuses sampling options at temperature 0, where nothing is sampled. */
static int check_draws(void) {
  const char *given = o.generate.top_k ? "top-k" : o.generate.top_p != 0.95 ? "top-p" : o.generate.seed ? "seed" : NULL;
  if (o.generate.temperature != 0 || !given) return 0;
  return cli_usage("--%s has no effect at --temperature 0, which always selects the most likely token", given);
}

static int run_generate(int count, const char *const *operands) {
  cli_catch_signals();
  int status = o.generate.batch ? check_draws() : cli_usage("--slots 0: must be at least 1");
  if (!status) status = read_prompts(&all);
  for (int i = 0; i < o.stops.count && !status; i++)
    if (!(all.stops[i] = cli_unescape(o.stops.values[i])))
      status = cli_usage("--stop %s: unknown escape; use \\f, \\n, \\r, \\t or \\\\", o.stops.values[i]);
  if (!status && !(all.ready = calloc((size_t)all.count, sizeof *all.ready))) status = cli_fail_with("out of memory");
  if (!status) status = cli_with_model(operands[0], &o.run, NULL, 1, generate);
  for (int i = 0; i < o.stops.count; i++) free((char *)all.stops[i]);
  for (int i = 0; i < all.count; i++) free((char *)all.prompt[i].text);
  free(all.prompt);
  free(all.ready);
  return status || !all.broken ? status : CLI_FAILED;
}

static const cli_option options[] = {
    {"prompt", "TEXT", CLI_TEXT, &o.prompt, NULL,
     "text to continue; - reads standard input; default: start a new document", 0},
    {"prompts", "FILE", CLI_PATH, &o.prompts, NULL,
     "file with one prompt per line, or JSON lines with a field \"prompt\"; - reads standard input", 0},
    {"max-tokens", "N", CLI_INT, &o.generate.max_tokens, "256", "maximum number of new tokens per prompt", 0},
    {"temperature", "X", CLI_REAL, &o.generate.temperature, "0.8",
     "divides the logits; 0 always selects the most likely token", 0},
    {"top-k", "K", CLI_INT, &o.generate.top_k, "0", "sample from the K most likely tokens only; 0: from all", 0},
    {"top-p", "P", CLI_REAL, &o.generate.top_p, "0.95",
     "sample from the most likely tokens whose probabilities sum to P; 1: from all", 0},
    {"seed", "N", CLI_INT64, &o.generate.seed, "0", "random seed for sampling", 0},
    {"stop", "TEXT", CLI_LIST, &o.stops, NULL, "stop before this text; \\n is a line end", 0},
    {"slots", "N", CLI_INT, &o.generate.batch, "8", "number of prompts processed at a time; changes the speed only", 0},
    {"chunk", "N", CLI_INT, &o.generate.chunk, "512",
     "number of prompt tokens processed at a time; changes the speed only", 0},
    {"length", "N", CLI_INT, &o.length, "0",
     "masked models: number of tokens after the prompt (0: 64), or in each gap of --infill (0: 4)", 0},
    {"infill", "TEXT", CLI_TEXT, &o.infill, NULL, "masked models: text with gaps, each written as ___, to fill", 0},
    {"steps", "S", CLI_INT, &o.steps, "0", "masked models: number of passes for each block; 0: one pass per token", 0},
    {"block", "B", CLI_INT, &o.block, "0",
     "masked models: fill the text in blocks of B tokens, from left to right; 0: all tokens in one block", 0},
    {"order", "NAME", CLI_TEXT, &o.order, "confidence",
     "masked models: fill tokens by confidence, or in random order (random)", 0},
    {"routing", "NAME", CLI_TEXT, &o.routing, "threshold", "threshold, or another causal routing", 0},
    CLI_MODEL_OPTIONS(o.run),
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print a line of JSON for each prompt", 0},
    {0}};

CLI_VERB(generate, "generate", "RUN|CHECKPOINT", 1, 1, "continue a text, token by token",
         "Prints the prompt (bold on a terminal) and the generated text as it is generated. Several prompts are "
         "printed in order, separated by ---. The speed is printed to standard error at the end. Ctrl-C stops the "
         "generation and keeps the text so far.\n\n"
         "The text depends on the model, the prompt, the options, the seed and the number of the prompt only; not on "
         "the batch or on threads.\n\n"
         "A masked model fills gaps instead, in any order: --length, --infill, --steps, --block and --order are for "
         "such models (docs/diffusion.md).");
