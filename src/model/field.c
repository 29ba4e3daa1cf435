#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/text.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/router.h"
#include "optim/optim.h"

static const char *const *activations(void) { return ch_activation_names; }
static const char *const *optimizers(void) { return ch_optim_names; }
static const char *const *schedules(void) {
  static const char *const names[] = {"inverse_sqrt", "cosine", NULL};
  return names;
}
static const char *const *positions(void) {
  static const char *const names[] = {"relative", "rope", NULL};
  return names;
}
static const char *const *computes(void) { return ch_compute_names; }
static const char *const *pools(void) { return ch_router_pools; }
static const char *const *solvers(void) { return ch_router_solvers; }
static const char *const *scores(void) { return ch_router_scores; }

/* From 2^53 on, double precision (ours and other JSON readers') rounds integers. Sizes that must be given have 0 as
 * default, which is below their limit; the router's numbers have none here: choir_router_default brings them. */
#define BIG (0x1p53 - 1)
#define MODEL(name) offsetof(choir_config, model.name)
#define ROUTER(name) offsetof(choir_config, model.router.name)
#define TRAIN(name) offsetof(choir_config, train.name)
#define PARALLEL(name) offsetof(choir_config, parallel.name)
const ch_field ch_fields[] = {
    {.path = "model.name", .kind = CH_FIELD_WORD, .offset = MODEL(name), .word = "", .help = "for people"},
    {"model.vocab_size", CH_FIELD_INTEGER, MODEL(vocab_size), 0, 0, 1 << 20, .help = "V; 0: the data's tokenizer says"},
    {"model.layers", CH_FIELD_INTEGER, MODEL(layers), 0, 1, 4096, .help = "L"},
    {"model.d_model", CH_FIELD_INTEGER, MODEL(d_model), 0, 1, 1 << 17, .help = "d, the width of the residual stream"},
    {"model.d_hidden", CH_FIELD_INTEGER, MODEL(d_hidden), 0, 1, 1 << 20,
     .help = "h, of the dense layers and of one expert"},
    {"model.d_expert", CH_FIELD_INTEGER, MODEL(d_expert), 0, 0, 1 << 20,
     .help = "h of one expert where it is another than that of the dense layers; 0: d_hidden"},
    {"model.heads", CH_FIELD_INTEGER, MODEL(heads), 0, 1, 1 << 12, .help = "H"},
    {"model.d_head", CH_FIELD_INTEGER, MODEL(d_head), 0, 0, 1 << 12, .help = "width of one head; 0: d/H"},
    {"model.experts", CH_FIELD_INTEGER, MODEL(experts), 0, 1, 1 << 16, .help = "e of every MoE layer"},
    {"model.moe_every", CH_FIELD_INTEGER, MODEL(moe_every), 2, 0, 4096,
     .help = "layers moe_every-1, 2 moe_every-1, ... are MoE, counted behind dense_layers; 0: none"},
    {"model.rel_buckets", CH_FIELD_INTEGER, MODEL(rel_buckets), 32, 2, 4096,
     .help = "buckets of the relative position bias"},
    {"model.rel_max_distance", CH_FIELD_INTEGER, MODEL(rel_max_distance), 128, 2, 1 << 24,
     .help = "from here on all distances share the last bucket"},
    {.path = "model.position",
     .kind = CH_FIELD_WORD,
     .offset = MODEL(position),
     .word = "relative",
     .words = positions,
     .help = "how attention knows distances: a learned bias by distance, or rotary queries and keys"},
    {"model.rope_theta", CH_FIELD_NUMBER, MODEL(rope_theta), 1e4, 1, 1e9, .help = "base of rope's wavelengths"},
    {"model.rope_fraction", CH_FIELD_NUMBER, MODEL(rope_fraction), 1, 0, 1, 1,
     .help = "share of a head's width that rope turns, from its front"},
    {"model.kv_heads", CH_FIELD_INTEGER, MODEL(kv_heads), 0, 0, 1 << 12,
     .help = "heads of keys and values, a divisor of heads; 0: as many"},
    {"model.qk_norm", CH_FIELD_FLAG, MODEL(qk_norm), 0, 0, 1, .help = "RMSNorm of each head's queries and keys"},
    {"model.qk_norm_whole", CH_FIELD_FLAG, MODEL(qk_norm_whole), 0, 0, 1,
     .help = "qk_norm is over all heads together, as in OLMoE"},
    {"model.tied", CH_FIELD_FLAG, MODEL(tied), 1, 0, 1, .help = "the head's weight is the embedding's"},
    {"model.embed_scale", CH_FIELD_NUMBER, MODEL(embed_scale), 1, 0, 1e6, 1, .help = "factor of the embedding"},
    {"model.head_scale", CH_FIELD_NUMBER, MODEL(head_scale), 0, 0, 1e6, .help = "factor of the logits; 0: 1/sqrt(d)"},
    {"model.norm_eps", CH_FIELD_NUMBER, MODEL(norm_eps), 1e-6, 0, 1, 1, .help = "epsilon of RMSNorm"},
    {.path = "model.activation",
     .kind = CH_FIELD_WORD,
     .offset = MODEL(activation),
     .word = "geglu",
     .words = activations,
     .help = "of dense layers: gated GELU, GELU, or gated SiLU"},
    {.path = "model.expert_activation",
     .kind = CH_FIELD_WORD,
     .offset = MODEL(expert_activation),
     .word = "gelu",
     .words = activations,
     .help = "of experts, shared ones too"},
    {"model.shared_experts", CH_FIELD_INTEGER, MODEL(shared_experts), 0, 0, 64,
     .help = "width, in experts, of a dense layer that every token also passes; 0: none"},
    {"model.dense_layers", CH_FIELD_INTEGER, MODEL(dense_layers), 0, 0, 4096,
     .help = "number of dense layers at the front; moe_every counts behind them"},
    {.path = "model.router.name",
     .kind = CH_FIELD_WORD,
     .offset = ROUTER(name),
     .word = "expert_choice",
     .words = choir_router_names,
     .help = "which router; brings its own defaults for the rest of the object"},
    {"model.router.capacity_factor", CH_FIELD_NUMBER, ROUTER(capacity_factor), 0, 0, 65536, 1,
     .help = "c of expert_choice (mean experts per token), the capacity factor of the token-choice routers"},
    {"model.router.eval_capacity_factor", CH_FIELD_NUMBER, ROUTER(eval_capacity_factor), 0, 0, 65536,
     .help = "the same while evaluating; 0: as in training"},
    {.path = "model.router.pool",
     .kind = CH_FIELD_WORD,
     .offset = ROUTER(pool),
     .word = "batch",
     .words = pools,
     .help = "the tokens that expert_choice chooses among"},
    {"model.router.aux_loss_weight", CH_FIELD_NUMBER, ROUTER(aux_loss_weight), 0, 0, 1e3,
     .help = "weight of the load-balancing loss, for the routers that have one"},
    {"model.router.jitter", CH_FIELD_NUMBER, ROUTER(jitter), 0, 0, 0.999,
     .help = "training multiplies the router's input by U[1-jitter, 1+jitter], for the routers that take it"},
    {"model.router.random_second", CH_FIELD_FLAG, ROUTER(random_second), 0, 0, 1,
     .help = "gshard_top2 keeps the second expert with probability 2 g2 while training"},
    {"model.router.group_size", CH_FIELD_INTEGER, ROUTER(group_size), 0, 1, 1 << 30,
     .help = "tokens of one pool where router.pool is group"},
    {"model.router.cap", CH_FIELD_INTEGER, ROUTER(cap), 0, 0, 65536,
     .help = "b, experts that one token may have at most; 0: any number"},
    {"model.router.experts_per_token", CH_FIELD_INTEGER, ROUTER(experts_per_token), 0, 1, 65536,
     .help = "K, for the routers that give every token as many experts"},
    {.path = "model.router.solver",
     .kind = CH_FIELD_WORD,
     .offset = ROUTER(solver),
     .word = "exact",
     .words = solvers,
     .help = "how capped_expert_choice assigns"},
    {"model.router.solver_lambda", CH_FIELD_NUMBER, ROUTER(solver_lambda), 0, 0, 1e3, 1,
     .help = "weight of the entropy that solver dykstra adds"},
    {"model.router.solver_iterations", CH_FIELD_INTEGER, ROUTER(solver_iterations), 0, 1, 1 << 20,
     .help = "iterations of solver dykstra, at most"},
    {"model.router.solver_stages", CH_FIELD_INTEGER, ROUTER(solver_stages), 0, 1, 100,
     .help = "stages of solver dykstra, each with a smaller entropy: the iterations are shared among them"},
    {"model.router.consistency_weight", CH_FIELD_NUMBER, ROUTER(consistency_weight), 0, 0, 1e3,
     .help = "weight of the consistency loss of router random"},
    {"model.router.decay", CH_FIELD_NUMBER, ROUTER(decay), 0, 0, 0.999999999,
     .help = "of the running means that a router keeps for causal use: cut-off scores, centroids"},
    {"model.router.threshold_after", CH_FIELD_LONG, ROUTER(threshold_after), 0, 0, BIG,
     .help = "steps after which training takes tokens by thresholds; 0: never"},
    {"model.router.normalize_gates", CH_FIELD_FLAG, ROUTER(normalize_gates), 0, 0, 1,
     .help = "a token's gates are scaled to sum 1: upcycling begins where the dense model was"},
    {.path = "model.router.score",
     .kind = CH_FIELD_WORD,
     .offset = ROUTER(score),
     .word = "softmax",
     .words = scores,
     .help = "what a token's logits become: shares of 1 over experts, or a sigmoid of each by itself"},
    {"model.router.bias_rate", CH_FIELD_NUMBER, ROUTER(bias_rate), 0, 0, 1, 1,
     .help = "what the prices of bias_balanced move by after each step"},
    {"train.sequence_length", CH_FIELD_INTEGER, TRAIN(sequence_length), 0, 1, 1 << 20,
     .help = "T, tokens of one sequence"},
    {"train.batch_sequences", CH_FIELD_INTEGER, TRAIN(batch_sequences), 0, 1, 1 << 20,
     .help = "B of one micro-batch, of all processes; the routing pool is B*T tokens"},
    {"train.shards", CH_FIELD_INTEGER, TRAIN(shards), 1, 1, 1 << 20,
     .help =
         "parts of a micro-batch, each computed by itself and summed in a fixed tree: a divisor of batch_sequences"},
    {"train.accumulate", CH_FIELD_INTEGER, TRAIN(accumulate), 1, 1, 1 << 20, .help = "micro-batches per step"},
    {"train.steps", CH_FIELD_LONG, TRAIN(steps), 1000, 1, BIG, .help = "optimizer steps of the run"},
    {.path = "train.optimizer",
     .kind = CH_FIELD_WORD,
     .offset = TRAIN(optimizer),
     .word = "adafactor",
     .words = optimizers,
     .help = "update rule"},
    {"train.rate", CH_FIELD_NUMBER, TRAIN(rate), 0.01, 0, 1e3, 1,
     .help = "learning rate; adafactor: relative to the size of the parameter, adamw: absolute"},
    {"train.warmup_steps", CH_FIELD_LONG, TRAIN(warmup_steps), 0, 0, BIG,
     .help = "steps over which the learning rate rises from 0; 0: none"},
    {"train.constant_steps", CH_FIELD_LONG, TRAIN(constant_steps), 10000, 1, BIG,
     .help = "steps at `rate`, then rate * sqrt(constant_steps / step)"},
    {"train.schedule_start", CH_FIELD_LONG, TRAIN(schedule_start), 0, 0, BIG,
     .help = "steps that the schedule counts as done before the first: goes on with that of an earlier run"},
    {.path = "train.schedule",
     .kind = CH_FIELD_WORD,
     .offset = TRAIN(schedule),
     .word = "inverse_sqrt",
     .words = schedules,
     .help = "of the rate after warmup; inverse_sqrt: see `constant_steps`, cosine: half a cosine over all steps"},
    {"train.cooldown_steps", CH_FIELD_LONG, TRAIN(cooldown_steps), 0, 0, BIG,
     .help = "last steps of the run, over which the rate falls linearly; 0: none"},
    {"train.cooldown_to", CH_FIELD_NUMBER, TRAIN(cooldown_to), 0.1, 0, 1,
     .help = "share of the rate that is left at the last step: of a cooldown, of schedule cosine"},
    {.path = "train.freeze",
     .kind = CH_FIELD_WORD,
     .offset = TRAIN(freeze),
     .word = "",
     .help = "weights that stay as they are: names with *, separated by commas, as *.attn.*,*.ffn.*"},
    {"train.beta1", CH_FIELD_NUMBER, TRAIN(beta1), 0.9, 0, 0.999999, .help = "adamw: decay of the mean gradient"},
    {"train.beta2", CH_FIELD_NUMBER, TRAIN(beta2), 0.99, 0, 0.999999999, .help = "decay of the mean squared gradient"},
    {"train.weight_decay", CH_FIELD_NUMBER, TRAIN(weight_decay), 0, 0, 1e3, .help = "adamw: decoupled, times the rate"},
    {"train.clip_norm", CH_FIELD_NUMBER, TRAIN(clip_norm), 0, 0, 1e30, .help = "largest global gradient norm; 0: any"},
    {"train.dropout", CH_FIELD_NUMBER, TRAIN(dropout), 0, 0, 0.9,
     .help = "share of the embedding, and of what each half of a layer adds to the stream, that training sets to 0"},
    {"train.seed", CH_FIELD_SEED, TRAIN(seed), 1, 0, BIG, .help = "seed of initial weights, data order and sampling"},
    {.path = "train.compute",
     .kind = CH_FIELD_WORD,
     .offset = TRAIN(compute),
     .word = "fp32",
     .words = computes,
     .help = "what inputs of matrix products are rounded to"},
    {"train.eval_every", CH_FIELD_LONG, TRAIN(eval_every), 500, 0, BIG,
     .help = "steps between evaluations; 0: only at the end"},
    {"train.eval_sequences", CH_FIELD_LONG, TRAIN(eval_sequences), 256, 0, BIG,
     .help = "held-out sequences per evaluation; 0: all"},
    {"train.checkpoint_every", CH_FIELD_LONG, TRAIN(checkpoint_every), 1000, 0, BIG,
     .help = "steps between checkpoints; 0: only at the end"},
    {"train.keep_checkpoints", CH_FIELD_INTEGER, TRAIN(keep_checkpoints), 2, 0, 1 << 30,
     .help = "number of newest checkpoints to keep; 0: all"},
    {"train.expert_copies", CH_FIELD_FLAG, TRAIN(expert_copies), 1, 0, 1,
     .help = "bf16 keeps rounded copies of experts' weights; without, products round them: 2 bytes a weight less"},
    {"train.file_bytes", CH_FIELD_LONG, TRAIN(file_bytes), 5e9, 0, BIG,
     .help =
         "bytes of tensors in one file of a checkpoint; more are split into several files with an index; 0: no limit"},
    {.path = "parallel.wire",
     .kind = CH_FIELD_WORD,
     .offset = PARALLEL(wire),
     .word = "fp32",
     .words = computes,
     .help = "what rows between tokens and experts, and their gradients, are rounded to; on one process, too"},
};
_Static_assert(sizeof ch_fields / sizeof *ch_fields == CH_FIELDS, "config.h counts the fields");

static double number_of(const choir_config *config, const ch_field *f) {
  const void *from = (const char *)config + f->offset;
  switch (f->kind) {
    case CH_FIELD_LONG:
      return (double)*(const int64_t *)from;
    case CH_FIELD_SEED:
      return (double)*(const uint64_t *)from;
    case CH_FIELD_NUMBER:
      return *(const double *)from;
    default:
      return *(const int *)from;
  }
}

static const char *word_of(const choir_config *config, const ch_field *f) { return (const char *)config + f->offset; }

/* value is within the limits of the field, so every conversion is exact. */
static void set_number(choir_config *config, const ch_field *f, double value) {
  void *to = (char *)config + f->offset;
  switch (f->kind) {
    case CH_FIELD_LONG:
      *(int64_t *)to = (int64_t)value;
      break;
    case CH_FIELD_SEED:
      *(uint64_t *)to = (uint64_t)value;
      break;
    case CH_FIELD_NUMBER:
      *(double *)to = value;
      break;
    default:
      *(int *)to = (int)value;
  }
}

static void set_word(choir_config *config, const ch_field *f, const char *word) {
  char *to = (char *)config + f->offset;
  memset(to, 0, CHOIR_NAME_BYTES);
  memcpy(to, word, strlen(word));
}

const char *ch_field_wanted(const ch_field *f, char *text, size_t size) {
  char list[256];
  if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "true or false");
  else if (f->kind == CH_FIELD_NUMBER)
    ch_format(text, size, f->open ? "a number above %.10g, at most %.10g" : "a number from %.10g to %.10g", f->low,
              f->high);
  else if (f->kind != CH_FIELD_WORD && f->high == BIG)
    ch_format(text, size, "an integer from %.0f to 2^53 - 1", f->low);
  else if (f->kind != CH_FIELD_WORD)
    ch_format(text, size, "an integer from %.0f to %.0f", f->low, f->high);
  else if (f->words)
    snprintf(text, size, "one of: %s", ch_word_list(list, sizeof list, f->words()));
  else
    snprintf(text, size, "text of at most %d bytes", CHOIR_NAME_BYTES - 1);
  return text;
}

static int refuse(const ch_field *f, const char *value, const char *suggestion) {
  char text[400];
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s: must be %s%s", f->path, value, ch_field_wanted(f, text, sizeof text),
                  suggestion);
}

static int number_fits(const ch_field *f, double value) {
  if (!(value >= f->low && value <= f->high) || (f->open && value <= f->low)) return 0;
  return f->kind == CH_FIELD_NUMBER || value == floor(value);
}

static int check_word(const ch_field *f, const char *word) {
  char value[64], suggestion[100];
  snprintf(value, sizeof value, "\"%.40s\"", word);
  if (strlen(word) >= CHOIR_NAME_BYTES) return refuse(f, value, "");
  if (!f->words) return CHOIR_OK;
  for (const char *const *w = f->words(); *w; w++)
    if (!strcmp(word, *w)) return CHOIR_OK;
  return refuse(f, value, ch_did_you_mean(suggestion, sizeof suggestion, word, f->words()));
}

void ch_field_default(choir_config *config, const ch_field *f) {
  if (f->kind == CH_FIELD_WORD)
    set_word(config, f, f->word);
  else
    set_number(config, f, f->value);
}

int ch_field_set(choir_config *config, const ch_field *f, const json_t *value) {
  char text[80];
  if (f->kind == CH_FIELD_WORD && json_is_string(value)) {
    CH_TRY(check_word(f, json_string_value(value)));
    set_word(config, f, json_string_value(value));
    return CHOIR_OK;
  }
  /* JSON has numbers, not integers and reals: 1e4 is an integer too. */
  int right = f->kind == CH_FIELD_FLAG ? json_is_boolean(value) : f->kind != CH_FIELD_WORD && json_is_number(value);
  double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
  if (!right || !number_fits(f, number)) return refuse(f, ch_json_show(value, text, sizeof text), "");
  set_number(config, f, number);
  return CHOIR_OK;
}

int ch_field_check(const choir_config *config, const ch_field *f) {
  char text[100];
  if (f->kind == CH_FIELD_WORD) {
    if (!memchr(word_of(config, f), 0, CHOIR_NAME_BYTES)) return refuse(f, "text without an end", "");
    return check_word(f, word_of(config, f));
  }
  double value = number_of(config, f);
  if (number_fits(f, value)) return CHOIR_OK;
  if (value == 0 && f->value == 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is missing: %s (%s)", f->path, ch_field_wanted(f, text, sizeof text),
                    f->help);
  ch_format(text, sizeof text, "%.17g", value);
  return refuse(f, text, "");
}

const char *ch_field_text(const choir_config *config, const ch_field *f, char *text, size_t size) {
  if (f->kind == CH_FIELD_WORD)
    snprintf(text, size, "%.*s", CHOIR_NAME_BYTES, word_of(config, f));
  else if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "%s", number_of(config, f) != 0 ? "true" : "false");
  else
    ch_format(text, size, "%.10g", number_of(config, f));
  return text;
}

int ch_field_same(const choir_config *a, const choir_config *b, const ch_field *f) {
  if (f->kind == CH_FIELD_WORD) return !strncmp(word_of(a, f), word_of(b, f), CHOIR_NAME_BYTES);
  return number_of(a, f) == number_of(b, f);
}

json_t *ch_field_json(const choir_config *config, const ch_field *f) {
  switch (f->kind) {
    case CH_FIELD_WORD:
      return json_string(word_of(config, f));
    case CH_FIELD_FLAG:
      return json_boolean(number_of(config, f) != 0);
    case CH_FIELD_NUMBER:
      return json_real(number_of(config, f));
    default:
      return json_integer((json_int_t)number_of(config, f));
  }
}
