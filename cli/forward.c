/* choir forward: loss, logits and gradients of given tokens, for comparison with other implementations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "npy/npy.h"

static struct {
  choir_model_options run;
  const char *logits, *gradients, *routing, *routes, *save_routes;
  int json;
  const char *path;            /* file of the tokens */
  ch_npy tokens, forced, seen; /* forced, seen: uint8 [MoE layers,B*T,e], 1 where the expert is assigned to the token */
} o = {.run = CHOIR_MODEL_OPTIONS_INIT};

static int write_logits(int B, int T, int V, float *logits) {
  ch_npy array = {.type = CH_NPY_FLOAT32, .dims = 3, .shape = {B, T, V}, .data = logits};
  return ch_npy_write(o.logits, &array) ? cli_fail() : 0;
}

/* Gradients with the names of their parameters. */
typedef struct {
  choir_tensor *tensor;
  int count;
} gradients;

/* Allocates a gradient array for every trainable parameter; 0: out of memory. */
static int allocate_gradients(const choir_model *model, gradients *g) {
  int count = choir_model_parameter_count(model);
  g->tensor = calloc((size_t)count + 1, sizeof *g->tensor);
  for (int i = 0; i < count && g->tensor; i++) {
    choir_parameter p;
    choir_tensor *t = &g->tensor[g->count];
    if (choir_model_parameter_at(model, i, &p) || !p.trained) continue;
    snprintf(t->name, sizeof t->name, "%s", p.name);
    t->dtype = CHOIR_F32;
    t->dims = p.dims;
    t->bytes = sizeof(float);
    for (int d = 0; d < p.dims; d++) t->bytes *= (size_t)(t->shape[d] = p.shape[d]);
    if (!(t->data = malloc(t->bytes))) return 0;
    g->count++;
  }
  return g->tensor != NULL;
}

/* Collects the gradients from all ranks; collective. */
static int collect_gradients(const choir_model *model, gradients *g) {
  int code = choir_ranks_agree(cli_ranks(), allocate_gradients(model, g) ? CHOIR_OK : CHOIR_ERROR_MEMORY);
  if (code) return cli_fail_with("no memory for a copy of the gradients");
  for (int i = 0, t = 0; t < g->count; i++) {
    choir_parameter p;
    if (choir_model_parameter_at(model, i, &p) || !p.trained) continue;
    if (choir_model_get_parameter(model, i, 1, (float *)(uintptr_t)g->tensor[t++].data)) return cli_fail();
  }
  return 0;
}

static void free_gradients(gradients *g) {
  for (int i = 0; i < g->count; i++) free((void *)(uintptr_t)g->tensor[i].data);
  free(g->tensor);
}

/* The name of the routing. Forced routing depends on a file, and on no token. */
static const char *routing_of(const choir_model *model) { return o.routes ? "forced" : choir_model_routing(model); }
static int looks(const choir_model *model) { return !o.routes && choir_model_looks_across_tokens(model); }

/* A choir_routing_callback: records the experts of each token. */
static void see_routing(void *context, const choir_routing *r) {
  ch_npy *seen = context;
  uint8_t *mark = (uint8_t *)seen->data + (int64_t)r->moe * r->tokens * r->experts;
  for (int i = 0; i < r->experts; i++)
    for (int s = r->expert_begin[i]; s < r->expert_begin[i + 1]; s++)
      mark[(int64_t)r->slot_token[s] * r->experts + i] = 1;
}

/* Makes the model use the assignment in the file of --routes, and records its routing for the file of --save-routes. */
static int handle_routes(choir_model *model, int B, int T) {
  int layers = choir_model_moe_layer_count(model), e = cli_count_of(choir_model_config(model), "model.experts");
  int64_t n = (int64_t)B * T;
  if (o.routes) {
    if (ch_npy_read(o.routes, CH_NPY_UINT8, 3, &o.forced)) return cli_fail();
    const int64_t *s = o.forced.shape;
    if (s[0] != layers || s[1] != n || s[2] != e)
      return cli_fail_with("%s: has shape [%lld,%lld,%lld]; this needs [%d,%lld,%d]: MoE layers, tokens, experts",
                           o.routes, (long long)s[0], (long long)s[1], (long long)s[2], layers, (long long)n, e);
    if (choir_model_force_routing(model, B, T, o.forced.data))
      return cli_fail_with("%s: %s", o.routes, choir_error_message());
  }
  if (!o.save_routes) return 0;
  o.seen = (ch_npy){
      .type = CH_NPY_UINT8, .dims = 3, .shape = {layers, n, e}, .data = calloc((size_t)(layers * n), (size_t)e)};
  if (!layers) return cli_fail_with("--save-routes: the model has no MoE layer");
  if (!o.seen.data) return cli_fail_with("no memory for the routes: %s", cli_bytes((double)layers * (double)n * e));
  choir_model_on_routing(model, see_routing, &o.seen);
  return 0;
}

static int print_forward_json(const choir_model *model, int B, int T, const choir_forward_result *result) {
  json_t *layers = cli_json_layers(model);
  if (!layers) return cli_fail();
  return cli_json_print(json_pack("{s:o, s:o, s:o, s:i, s:i, s:s, s:b, s:o}", "loss", cli_json_real(result->loss),
                                  "aux_loss", cli_json_real(result->aux_loss), "z_loss", cli_json_real(result->z_loss),
                                  "sequences", B, "sequence_length", T, "routing", routing_of(model),
                                  "looks_across_tokens", looks(model), "layers", layers));
}

static int print_forward(const choir_model *model, int B, int T, const choir_forward_result *result, double seconds) {
  int masked = cli_predicts_masked(model);
  char loss[64] = "no loss: no token is masked here; 'choir eval' masks some";
  if (!masked) snprintf(loss, sizeof loss, "loss %.6f  perplexity %.4f", result->loss, exp(result->loss));
  cli_print(2, "%s  auxiliary loss" CLI_TIE "%.6f  %d" CLI_TIE "x" CLI_TIE "%d" CLI_TIE "tokens, %.3f s", loss,
            result->aux_loss, B, T, seconds);
  cli_print(2, "routing %s%s", routing_of(model),
            looks(model) && !masked ? " (not causal: experts of a token depend on other tokens)" : "");
  for (int i = 0; i < choir_model_moe_layer_count(model); i++) {
    choir_route_stats stats;
    if (choir_model_get_route_stats(model, i, &stats)) return cli_fail();
    char before[24];
    snprintf(before, sizeof before, "layer %2d: ", stats.layer);
    cli_print_load(before, &stats);
    cli_print_certificate(&stats.certificate);
    choir_route_stats_clear(&stats);
  }
  return 0;
}

static int run_pass(choir_model *model, const choir_tokenizer *none) {
  int B = (int)o.tokens.shape[0], T = (int)o.tokens.shape[1],
      V = cli_count_of(choir_model_config(model), "model.vocab_size");
  int unready = cli_ranks_agree(handle_routes(model, B, T));
  if (unready) return unready;
  float *logits = o.logits ? reallocarray(NULL, (size_t)B * (size_t)T, (size_t)V * sizeof *logits) : NULL;
  choir_forward_result result;
  gradients g = {0};
  if (choir_ranks_agree(cli_ranks(), o.logits && !logits ? CHOIR_ERROR_MEMORY : CHOIR_OK)) {
    free(logits);
    return cli_fail_with("no memory for the logits: %s", cli_bytes((double)B * T * V * (double)sizeof *logits));
  }
  double start = cli_seconds();
  int code = choir_model_forward(model, B, T, o.tokens.data, logits, o.gradients != NULL, &result), status = 0;
  if (code == CHOIR_ERROR_ARGUMENT) /* the tokens' number or a value is wrong */
    status = cli_fail_with("%s: %s", o.path, choir_error_message());
  else if (code)
    status = cli_fail();
  double seconds = cli_seconds() - start;
  if (!status && o.save_routes && cli_ranks_first() && ch_npy_write(o.save_routes, &o.seen)) status = cli_fail();
  if (!status && o.gradients) status = collect_gradients(model, &g);
  if (!status && o.logits && cli_ranks_first()) status = write_logits(B, T, V, logits);
  if (!status && o.gradients && cli_ranks_first() && choir_tensors_write(o.gradients, g.tensor, g.count, NULL))
    status = cli_fail();
  if (!status)
    status = o.json ? print_forward_json(model, B, T, &result) : print_forward(model, B, T, &result, seconds);
  free_gradients(&g);
  free(logits);
  return status;
}

static int run_forward(int count, const char *const *operands) {
  o.path = operands[1];
  int status = o.routes && o.routing ? cli_usage("--routing has no effect with --routes: give one of them") : 0;
  if (!status && o.gradients && cli_rounds_weights(&o.run))
    status = cli_usage("--compute q8_0: its rounded weights are not for --gradients; use fp32 or bf16");
  status = cli_ranks_agree(status);
  if (status) return status;
  if (choir_ranks_agree(cli_ranks(), ch_npy_read(o.path, CH_NPY_INT32, 2, &o.tokens)))
    status = cli_fail();
  else
    status = cli_with_model(operands[0], &o.run, o.routing, 0, run_pass);
  ch_npy_free(&o.tokens);
  ch_npy_free(&o.forced);
  ch_npy_free(&o.seen);
  return status;
}

static const cli_option options[] = {
    {"logits", "OUT.npy", CLI_OUTPUT, &o.logits, NULL, "write the logits, float32 [B,T,V]", 0},
    {"gradients", "OUT.safetensors", CLI_OUTPUT, &o.gradients, NULL,
     "write the gradient of the loss for each parameter", 0},
    {"routing", "NAME", CLI_TEXT, &o.routing, NULL,
     "batch, threshold, sequence, position or group, if the router has it; default: the config's", 0},
    {"routes", "IN.npy", CLI_INPUT, &o.routes, NULL,
     "route by this array, uint8 [MoE layers,B*T,experts]: 1 assigns the token to the expert", 0},
    {"save-routes", "OUT.npy", CLI_OUTPUT, &o.save_routes, NULL, "write the assignments, in the format of --routes", 0},
    CLI_MODEL_OPTIONS(o.run),
    CLI_EMULATE_BF16(&o.run.emulate_bf16),
    CLI_SHARDS(&o.run.shards),
    CLI_RANKS_OPTIONS,
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print the loss and routing statistics as JSON", 0},
    {0}};

CLI_VERB(forward, "forward", "CHECKPOINT TOKENS.npy", 2, 2, "run a model on given tokens: loss, logits, gradients",
         "TOKENS is int32 [B,T]. All B*T positions form one routing pool, unless --routing changes it. The loss is the "
         "mean cross-entropy of predicting token t+1 at position t, over B*(T-1) positions. Gradients include the "
         "router's weighted auxiliary loss, which is also reported separately.\n\n"
         "Under mpirun or srun, all processes share the work. The number of processes must divide train.grad_chunks, "
         "or --shards, and this number of shards must divide B (docs/clusters.md).");
