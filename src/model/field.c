#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/format.h"
#include "base/text.h"
#include "model/config.h"
#include "model/param.h"
#include "moe/router.h"
#include "optim/optim.h"

static const char *const schedules[] = {"inverse_sqrt", "cosine", NULL};
static const char *const objectives[] = {"next_token", "masked_diffusion", "masked_lm", NULL};
static const char *const mask_schedules[] = {"linear", "cosine", NULL};
static const char *const positions[] = {"relative", "rope", NULL};
static const char *const attentions[] = {"causal", "bidirectional", NULL};

/* Rows are: section, name, default, lowest and highest value, help. From 2^53 on, double precision (ours and other JSON
 * readers') rounds integers. Required sizes have the default 0, which is below their limit. Defaults of the router's
 * numbers come from choir_router_options_default instead. */
#define BIG (0x1p53 - 1)
#define FIELD(of, section, name) \
  .path = #section "." #name, .kind = CH_FIELD_##of, .offset = offsetof(choir_config, section.name)
#define RANGE(of, section, name, otherwise, least, most, text) \
  { FIELD(of, section, name), .value = otherwise, .low = least, .high = most, .help = text }
#define INTEGER(...) RANGE(INTEGER, __VA_ARGS__)
#define LONG(...) RANGE(LONG, __VA_ARGS__)
#define SEED(...) RANGE(SEED, __VA_ARGS__)
#define STEPS(...) RANGE(STEPS, __VA_ARGS__)
#define NUMBER(...) RANGE(NUMBER, __VA_ARGS__)
#define FLAG(section, name, otherwise, text) RANGE(FLAG, section, name, otherwise, 0, 1, text)
#define ABOVE(section, name, otherwise, least, most, text) \
  { FIELD(NUMBER, section, name), .value = otherwise, .low = least, .high = most, .open = 1, .help = text }
#define WORD(section, name, otherwise, choices, text)                                                                  \
  {                                                                                                                    \
    FIELD(WORD, section, name), .bytes = sizeof((choir_config *)0)->section.name, .word = otherwise, .words = choices, \
                                .help = text                                                                           \
  }
const ch_field ch_fields[] = {
    WORD(model, name, "", NULL, "for people"),
    INTEGER(model, vocab_size, 0, 0, 1 << 20, "V; 0: the data's tokenizer says"),
    INTEGER(model, layers, 0, 1, 4096, "L"),
    INTEGER(model, d_model, 0, 1, 1 << 17, "d, the width of the residual stream"),
    INTEGER(model, d_hidden, 0, 1, 1 << 20, "h, of the dense layers and of one expert"),
    INTEGER(model, d_expert, 0, 0, 1 << 20, "hidden width of one expert; 0: d_hidden"),
    INTEGER(model, heads, 0, 1, 1 << 12, "H"),
    INTEGER(model, d_head, 0, 0, 1 << 12, "width of one head; 0: d/H"),
    INTEGER(model, experts, 0, 1, 1 << 16, "e of every MoE layer"),
    INTEGER(model, moe_every, 2, 0, 4096,
            "layers moe_every-1, 2 moe_every-1, ... are MoE, counted after dense_layers; 0: none"),
    INTEGER(model, rel_buckets, 32, 2, 4096, "buckets of the relative position bias"),
    INTEGER(model, rel_max_distance, 128, 2, 1 << 24, "from here on all distances share the last bucket"),
    WORD(model, attention, "causal", attentions,
         "what a position sees: itself and those before it, or all positions of its sequence (docs/diffusion.md)"),
    WORD(model, position, "relative", positions,
         "how attention knows distances: a learned bias by distance, or rotary queries and keys"),
    NUMBER(model, rope_theta, 1e4, 1, 1e9, "base of rope's wavelengths"),
    ABOVE(model, rope_fraction, 1, 0, 1, "share of a head's width that rope turns, from its front"),
    INTEGER(model, kv_heads, 0, 0, 1 << 12, "heads of keys and values, a divisor of heads; 0: as many"),
    FLAG(model, qk_norm, 0, "RMSNorm of each head's queries and keys"),
    FLAG(model, qk_norm_whole, 0, "qk_norm is over all heads together, as in OLMoE"),
    FLAG(model, tied, 1, "the head's weight is the embedding's"),
    ABOVE(model, embed_scale, 1, 0, 1e6, "factor of the embedding"),
    NUMBER(model, head_scale, 0, 0, 1e6, "factor of the logits; 0: 1/sqrt(d)"),
    ABOVE(model, norm_eps, 1e-6, 0, 1, "epsilon of RMSNorm"),
    WORD(model, activation, "geglu", ch_activation_names, "of dense layers: gated GELU, GELU, or gated SiLU"),
    WORD(model, expert_activation, "gelu", ch_activation_names, "of experts, shared ones too"),
    INTEGER(model, shared_experts, 0, 0, 64,
            "width, in experts, of a dense layer that every token also passes; 0: none"),
    INTEGER(model, dense_layers, 0, 0, 4096, "number of dense layers at the front; moe_every counts after them"),
    WORD(model, layer_capacity, "", NULL,
         "weights of router.capacity_factor by MoE layer, whose mean it stays: 1,2,3; empty: all alike"),
    WORD(model.router, name, "expert_choice", ch_router_names,
         "which router; brings its own defaults for the rest of the object"),
    NUMBER(model.router, capacity_factor, 0, 0, 65536,
           "c of expert_choice (mean experts per token); where tokens choose, room in even shares, 0: for all"),
    NUMBER(model.router, eval_capacity_factor, 0, 0, 65536, "the same while evaluating; 0: as in training"),
    NUMBER(model.router, capacity_start, 0, 0, 65536,
           "capacity_factor at the first step of training, which goes to its own linearly; 0: the same throughout"),
    WORD(model.router, pool, "batch", ch_router_pools, "the tokens that expert_choice chooses among"),
    NUMBER(model.router, aux_loss_weight, 0, 0, 1e3,
           "weight of the load-balancing loss, for the routers that have one"),
    WORD(model.router, aux_scope, "batch", ch_router_scopes,
         "tokens over which the load-balancing loss wants equal loads: all of a batch, or each sequence's"),
    WORD(model.router, priority, "order", ch_router_priorities,
         "who comes first where room is short: order of tokens, or the best score"),
    WORD(model.router, gate_on, "output", ch_router_gate_places,
         "what the gate scales: what an expert writes, or what it reads, as in Llama 4"),
    NUMBER(model.router, z_loss_weight, 0, 0, 1e3,
           "weight of the mean square of log sum exp of a token's logits, which keeps these small"),
    NUMBER(model.router, jitter, 0, 0, 0.999,
           "training multiplies the router's input by U[1-jitter, 1+jitter], for the routers that take it"),
    FLAG(model.router, random_second, 0, "gshard_top2 keeps the second expert with probability 2 g2 while training"),
    INTEGER(model.router, group_size, 0, 1, 1 << 30, "tokens of one pool where router.pool is group"),
    INTEGER(model.router, cap, 0, 0, 65536, "b, experts that one token may have at most; 0: any number"),
    INTEGER(model.router, experts_per_token, 0, 1, 65536, "K, for the routers that give every token as many experts"),
    INTEGER(model.router, null_experts, 0, 0, 65536,
            "experts beside the model's that compute nothing, so that a token has experts_per_token of these or fewer"),
    WORD(model.router, solver, "exact", ch_router_solvers, "how capped_expert_choice assigns"),
    ABOVE(model.router, solver_lambda, 0, 0, 1e3, "weight of the entropy that solver dykstra adds"),
    INTEGER(model.router, solver_iterations, 0, 1, 1 << 20, "iterations of solver dykstra, at most"),
    INTEGER(model.router, solver_stages, 0, 1, 100,
            "stages of solver dykstra, each with a smaller entropy: the iterations are shared among them"),
    NUMBER(model.router, consistency_weight, 0, 0, 1e3, "weight of the consistency loss of router random"),
    NUMBER(model.router, decay, 0, 0, 0.999999999,
           "of the running means that a router keeps for causal use: cut-off scores, centroids"),
    LONG(model.router, threshold_after, 0, 0, BIG, "steps after which training takes tokens by thresholds; 0: never"),
    FLAG(model.router, normalize_gates, 0,
         "a token's gates are scaled to sum 1: upcycling begins where the dense model was"),
    WORD(model.router, score, "softmax", ch_router_scores,
         "what a token's logits become: shares of 1 over experts, or a sigmoid of each by itself"),
    NUMBER(model.router, bias_rate, 0, 0, 1,
           "what the prices of bias_balanced move by after each step; 0: plain top-K"),
    WORD(model.router, capacity_schedule, "constant", ch_router_schedules,
         "trained by masking: how c of a sequence goes with its share of masked tokens; its mean is c"),
    INTEGER(train, sequence_length, 0, 1, 1 << 20, "T, tokens of one sequence"),
    INTEGER(train, batch_sequences, 0, 1, 1 << 20,
            "B of one micro-batch, of all processes; the routing pool is B*T tokens"),
    INTEGER(train, shards, 1, 1, 1 << 20,
            "parts of a micro-batch, each computed by itself and summed in a fixed tree: a divisor of batch_sequences"),
    INTEGER(train, accumulate, 1, 1, 1 << 20, "micro-batches per step"),
    LONG(train, steps, 1000, 1, BIG, "optimizer steps of the run"),
    WORD(train, optimizer, "adafactor", ch_optim_names, "update rule"),
    ABOVE(train, rate, 0.01, 0, 1e3,
          "learning rate; adafactor: relative to the size of the parameter, adamw: absolute"),
    STEPS(train, warmup_steps, 0, 0, BIG,
          "steps over which the learning rate rises from 0; below 1: a share of `steps`; 0: none"),
    LONG(train, constant_steps, 10000, 1, BIG, "steps at `rate`, then rate * sqrt(constant_steps / step)"),
    LONG(train, schedule_start, 0, 0, BIG,
         "steps that the schedule counts as done before the first: goes on with that of an earlier run"),
    WORD(train, schedule, "inverse_sqrt", schedules,
         "of the rate after warmup; inverse_sqrt: see `constant_steps`, cosine: half a cosine over all steps"),
    STEPS(train, cooldown_steps, 0, 0, BIG,
          "last steps of the run, over which the rate falls linearly; below 1: a share of `steps`; 0: none"),
    WORD(train, objective, "next_token", objectives,
         "what is predicted: the next token, or masked ones at ratios from 0 to 1, or 15 % of them as BERT does"),
    WORD(train, mask_schedule, "linear", mask_schedules,
         "masked_diffusion: mask ratios are uniform, or, by a cosine, more of them high"),
    NUMBER(train, cooldown_to, 0.1, 0, 1,
           "share of the rate that is left at the last step: of a cooldown, of schedule cosine"),
    WORD(train, freeze, "", NULL,
         "weights that stay as they are: names with *, separated by commas, as *.attn.*,*.ffn.*"),
    NUMBER(train, beta1, 0.9, 0, 0.999999, "adamw: decay of the mean gradient"),
    NUMBER(train, beta2, 0.99, 0, 0.999999999, "decay of the mean squared gradient"),
    NUMBER(train, weight_decay, 0, 0, 1e3, "adamw: decoupled, times the rate; of matrices and tables"),
    NUMBER(train, clip_norm, 0, 0, 1e30, "largest global gradient norm; 0: any"),
    NUMBER(train, dropout, 0, 0, 0.9,
           "share of the embedding, and of what each half of a layer adds to the stream, that training sets to 0"),
    SEED(train, seed, 1, 0, BIG, "seed of initial weights, data order and sampling"),
    WORD(train, compute, "fp32", ch_compute_names, "what inputs of matrix products are rounded to"),
    LONG(train, eval_every, 500, 0, BIG, "steps between evaluations; 0: only at the end"),
    LONG(train, eval_sequences, 256, 0, BIG, "held-out sequences per evaluation; 0: all"),
    LONG(train, checkpoint_every, 1000, 0, BIG, "steps between checkpoints; 0: only at the end"),
    INTEGER(train, keep_checkpoints, 2, 0, 1 << 30, "number of newest checkpoints to keep; 0: all"),
    FLAG(train, expert_copies, 1,
         "bf16 keeps rounded copies of experts' weights; without, products round them: 2 bytes a weight less"),
    LONG(train, file_bytes, 5e9, 0, BIG,
         "bytes of tensors in one file of a checkpoint; more are split into several files with an index; 0: no limit"),
    WORD(parallel, wire, "fp32", ch_compute_names,
         "what rows between tokens and experts, and their gradients, are rounded to; on one process, too"),
};
_Static_assert(sizeof ch_fields / sizeof *ch_fields == CH_FIELDS, "config.h counts the fields");

int64_t ch_config_steps(double steps, int64_t of) { return llround(steps < 1 ? steps * (double)of : steps); }

static double number_of(const choir_config *config, const ch_field *f) {
  const void *from = (const char *)config + f->offset;
  switch (f->kind) {
    case CH_FIELD_LONG:
      return (double)*(const int64_t *)from;
    case CH_FIELD_SEED:
      return (double)*(const uint64_t *)from;
    case CH_FIELD_NUMBER:
    case CH_FIELD_STEPS:
      return *(const double *)from;
    default:
      return *(const int *)from;
  }
}

static const char *word_of(const choir_config *config, const ch_field *f) {
  const char *word = (const char *)config + f->offset;
  return !*word && f->bytes < CHOIR_NAME_BYTES ? f->words[0] : word;
}

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
    case CH_FIELD_STEPS:
      *(double *)to = value;
      break;
    default:
      *(int *)to = (int)value;
  }
}

static void set_word(choir_config *config, const ch_field *f, const char *word) {
  char *to = (char *)config + f->offset;
  memset(to, 0, f->bytes);
  memcpy(to, word, strlen(word));
}

const char *ch_field_wanted(const ch_field *f, char *text, size_t size) {
  char list[256];
  if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "true or false");
  else if (f->kind == CH_FIELD_NUMBER)
    ch_format(text, size, f->open ? "a number above %.10g, at most %.10g" : "a number from %.10g to %.10g", f->low,
              f->high);
  else if (f->kind == CH_FIELD_STEPS)
    snprintf(text, size, "a share below 1, or an integer to 2^53 - 1");
  else if (f->kind != CH_FIELD_WORD && f->high == BIG)
    ch_format(text, size, "an integer from %.0f to 2^53 - 1", f->low);
  else if (f->kind != CH_FIELD_WORD)
    ch_format(text, size, "an integer from %.0f to %.0f", f->low, f->high);
  else if (f->words)
    snprintf(text, size, "one of: %s", ch_word_list(list, sizeof list, f->words));
  else
    snprintf(text, size, "text of at most %d bytes", (int)f->bytes - 1);
  return text;
}

static int refuse_value(const ch_field *f, const char *value, const char *suggestion) {
  char text[400];
  return ch_error(CHOIR_ERROR_ARGUMENT, "%s is %s: must be %s%s", f->path, value, ch_field_wanted(f, text, sizeof text),
                  suggestion);
}

static int number_fits(const ch_field *f, double value) {
  if (!(value >= f->low && value <= f->high) || (f->open && value <= f->low)) return 0;
  return f->kind == CH_FIELD_NUMBER || (f->kind == CH_FIELD_STEPS && value < 1) || value == floor(value);
}

static int check_word(const ch_field *f, const char *word) {
  char value[64], suggestion[160];
  snprintf(value, sizeof value, "\"%.40s\"", word);
  if (strlen(word) >= (f->words ? CHOIR_NAME_BYTES : f->bytes)) return refuse_value(f, value, "");
  if (!f->words) return CHOIR_OK;
  for (const char *const *w = f->words; *w; w++)
    if (!strcmp(word, *w)) return CHOIR_OK;
  ch_did_you_mean(suggestion, 100, word, f->words);
  if (f->words == ch_router_names) strcat(suggestion, " (one of your own comes with --plugin FILE)");
  return refuse_value(f, value, suggestion);
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
  if (!right || !number_fits(f, number)) return refuse_value(f, ch_json_show(value, text, sizeof text), "");
  set_number(config, f, number);
  return CHOIR_OK;
}

int ch_field_check(const choir_config *config, const ch_field *f) {
  char text[100];
  if (f->kind == CH_FIELD_WORD) {
    if (!memchr((const char *)config + f->offset, 0, f->bytes)) return refuse_value(f, "text without an end", "");
    return check_word(f, word_of(config, f));
  }
  double value = number_of(config, f);
  if (number_fits(f, value)) return CHOIR_OK;
  if (value == 0 && f->value == 0)
    return ch_error(CHOIR_ERROR_ARGUMENT, "%s is missing: %s (%s)", f->path, ch_field_wanted(f, text, sizeof text),
                    f->help);
  ch_format(text, sizeof text, "%.17g", value);
  return refuse_value(f, text, "");
}

const char *ch_field_text(const choir_config *config, const ch_field *f, char *text, size_t size) {
  if (f->kind == CH_FIELD_WORD)
    snprintf(text, size, "%.*s", (int)f->bytes, word_of(config, f));
  else if (f->kind == CH_FIELD_FLAG)
    snprintf(text, size, "%s", number_of(config, f) != 0 ? "true" : "false");
  else
    ch_format(text, size, "%.10g", number_of(config, f));
  return text;
}

int ch_field_same(const choir_config *a, const choir_config *b, const ch_field *f) {
  if (f->kind == CH_FIELD_WORD) return !strncmp(word_of(a, f), word_of(b, f), f->bytes);
  return number_of(a, f) == number_of(b, f);
}

json_t *ch_field_json(const choir_config *config, const ch_field *f) {
  double number = f->kind == CH_FIELD_WORD ? 0 : number_of(config, f);
  switch (f->kind) {
    case CH_FIELD_WORD:
      return json_string(word_of(config, f));
    case CH_FIELD_FLAG:
      return json_boolean(number != 0);
    case CH_FIELD_NUMBER:
      return json_real(number);
    default: /* shares are below 1 */
      return number == floor(number) ? json_integer((json_int_t)number) : json_real(number);
  }
}
