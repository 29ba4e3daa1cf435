/* choir probe: changes tokens and compares logits that should not depend on them. */
#include "probe/probe.h"

#include "cli.h"
#include "npy/npy.h"

static struct {
  choir_model_options run;
  ch_probe_options probe;
  const char *tokens;
  ch_npy given; /* content of `tokens` */
  cli_list routings;
  int json;
} o = {.run = CHOIR_MODEL_OPTIONS_INIT};

static const char *const verdicts[] = {"untried", "equal", "rounded", "changed"};

static json_t *json_effect(const ch_probe_effect *e, int declared) {
  return json_pack("{s:s, s:b, s:I, s:I, s:i, s:o, s:o}", "verdict", verdicts[e->verdict], "declared", declared,
                   "compared", (json_int_t)e->compared, "changed", (json_int_t)e->changed, "first", e->first, "largest",
                   cli_json_real(e->largest), "loss", cli_json_real(e->loss));
}

static json_t *json_result(const ch_probe_result *r) {
  const choir_routing_properties *d = &r->declared;
  return json_pack("{s:s, s:i, s:i, s:o, s:o, s:b, s:o, s:o, s:o}", "routing", r->routing, "sequences", r->sequences,
                   "sequence_length", r->length, "loss", cli_json_real(r->loss), "spread", cli_json_real(r->spread),
                   "leaks", r->leaks, "looks_ahead", json_effect(&r->later, d->looks_ahead), "depends_on_batch",
                   json_effect(&r->others, d->depends_on_batch), "alone",
                   json_effect(&r->alone, d->looks_ahead || d->depends_on_batch));
}

static void print_effect(const char *what, const ch_probe_effect *e, int declared, double spread) {
  char text[256] = "not measured: the batch does not allow it";
  const char *compared = cli_grouped(e->compared), *changed = cli_grouped(e->changed);
  if (e->verdict == CH_PROBE_EQUAL)
    snprintf(text, sizeof text, "no (bit-equal, %s positions)", compared);
  else if (e->verdict == CH_PROBE_ROUNDED)
    snprintf(text, sizeof text,
             "no, up to rounding (%s of %s positions, largest change %.2g, %.2g of the logits' spread)", changed,
             compared, e->largest, e->largest / spread);
  else if (e->verdict == CH_PROBE_CHANGED)
    snprintf(text, sizeof text,
             "yes (%s of %s positions, first %d, largest change %.2g, %.2g of the logits' spread, loss %+.4f)", changed,
             compared, e->first, e->largest, e->largest / spread, e->loss);
  cli_print(25, "  %-22s %s%s", what, text,
            e->verdict == CH_PROBE_CHANGED ? declared ? "" : "  NOT DECLARED"
            : declared && e->verdict       ? "  (declared: it may)"
                                           : "");
}

static void print_result(const ch_probe_result *r) {
  const choir_routing_properties *d = &r->declared;
  printf("\nrouting '%s', loss %.4f\n", r->routing, r->loss);
  print_effect("looks ahead:", &r->later, d->looks_ahead, r->spread);
  print_effect("depends on the batch:", &r->others, d->depends_on_batch, r->spread);
  print_effect("differs alone, cut:", &r->alone, d->looks_ahead || d->depends_on_batch, r->spread);
}

/* Probes one routing and adds 1 to *leaks if it violates its declared causality. Returns an error code of the
 * library. */
static int probe(choir_model *model, const choir_tokenizer *tokenizer, json_t *results, int *leaks) {
  ch_probe_result r;
  int code = ch_probe(model, tokenizer, &o.probe, &r);
  if (code) return code;
  const char *router = cli_field(choir_model_config(model), "router.name");
  if (!o.json && !json_array_size(results))
    cli_print(2, "router %s, %d sequences of %d %s", router, r.sequences, r.length,
              o.probe.text || o.tokens ? "given tokens" : "random tokens (for effects on a loss pass --text)");
  if (!o.json) print_result(&r);
  json_array_append_new(results, json_result(&r));
  if (r.leaks) {
    fflush(stdout);
    cli_fail_with("LEAK: with routing '%s', router '%s' depends on tokens that it is declared independent of",
                  r.routing, router);
    ++*leaks;
  }
  return 0;
}

/* Probes the requested routings, or all that the router has; of these, routings that cannot run without thresholds,
 * or because the batch is too small for their pools, are skipped. */
static int probe_all(choir_model *model, const choir_tokenizer *tokenizer, json_t *results, int *leaks) {
  const char *router = cli_field(choir_model_config(model), "router.name");
  int all = !o.routings.count;
  for (int i = 0; all || i < o.routings.count; i++) {
    o.probe.routing = all ? choir_router_routings(router)[i] : o.routings.values[i];
    if (!o.probe.routing) break;
    int code = probe(model, tokenizer, results, leaks);
    if (code && !(all && (code == CHOIR_ERROR_UNSUPPORTED || code == CHOIR_ERROR_ARGUMENT))) return cli_fail();
    if (code) cli_fail_with("routing '%s' skipped: %s", o.probe.routing, choir_error_message());
  }
  return json_array_size(results) ? 0 : CLI_FAILED;
}

static int with_model(choir_model *model, const choir_tokenizer *tokenizer) {
  o.probe.tokens = o.given.data;
  if (o.tokens) o.probe.sequences = (int)o.given.shape[0], o.probe.length = (int)o.given.shape[1];
  json_t *results = json_array();
  int leaks = 0, status = probe_all(model, tokenizer, results, &leaks);
  if (!status && o.json)
    return cli_json_print(json_pack("{s:s, s:o, s:i}", "router", cli_field(choir_model_config(model), "router.name"),
                                    "routings", results, "leaks", leaks)) ||
           leaks;
  json_decref(results);
  return status ? status : leaks ? CLI_FAILED : 0;
}

static int run_probe(int count, const char *const *operands) {
  if (o.probe.text && o.tokens) return cli_usage("give one of --text FILE and --tokens TOKENS.npy");
  if (o.tokens && (o.probe.sequences || o.probe.length))
    return cli_usage("--%s has no effect with --tokens: all of them are the batch",
                     o.probe.sequences ? "batch" : "length");
  if (!o.probe.positions || !o.probe.draws)
    return cli_usage("--%s 0: must be at least 1", o.probe.positions ? "draws" : "positions");
  if (o.tokens && ch_npy_read(o.tokens, CH_NPY_INT32, 2, &o.given)) return cli_fail();
  int status = cli_with_model(operands[0], &o.run, NULL, o.probe.text != NULL, with_model);
  ch_npy_free(&o.given);
  return status;
}

static const cli_option options[] = {
    {"routing", "NAME", CLI_LIST, &o.routings, NULL, "routing to test; default: all that the model has", 0},
    {"text", "FILE", CLI_INPUT, &o.probe.text, NULL,
     "take the sequences from the beginning of a UTF-8 text; default: random tokens", 0},
    {"tokens", "TOKENS.npy", CLI_INPUT, &o.tokens, NULL, "take the sequences from an array, int32 [B,T]", 0},
    {"batch", "B", CLI_INT, &o.probe.sequences, "0", "number of sequences in the batch; 0: as in training", 0},
    {"length", "T", CLI_INT, &o.probe.length, "0", "tokens per sequence; 0: as in training", 0},
    {"positions", "N", CLI_INT, &o.probe.positions, "4", "number of positions after which tokens are changed", 0},
    {"draws", "N", CLI_INT, &o.probe.draws, "2", "number of random replacements at each position", 0},
    {"seed", "N", CLI_INT64, &o.probe.seed, "1", "seed of the positions and the new tokens", 0},
    CLI_COMPUTE(&o.run.compute),
    {"backend", "NAME", CLI_TEXT, &o.run.backend, "cpu", "cpu, or reference, which rounds every row in the same way",
     0},
    CLI_EMULATE_BF16(&o.run.emulate_bf16),
    CLI_UNCHECKED(o.run),
    CLI_THREADS(&o.run.threads),
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
    {0}};

CLI_VERB(
    probe, "probe", "RUN|CHECKPOINT", 1, 1, "test whether routing depends on later tokens or on other sequences",
    "Three tests: replace the tokens after a position and compare the logits up to it; replace all other sequences and "
    "compare the logits of the one kept; run a sequence alone and cut short. The new tokens are random.\n\n"
    "Exits with status 1 and a message if logits change by more than rounding although the routing is declared "
    "independent of those tokens. Random tokens differ from text: the effect of real text on a loss can be smaller or "
    "larger.");
