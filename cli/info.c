/* choir info: the cost of a model, compared with the paper's figures. */
#include <string.h>

#include "cli.h"

static struct {
  int vocab_size, json;
  cli_list set;
} o;

/* The table of model sizes in Zhou et al. 2022; experts 0: dense. */
typedef struct paper_size {
  const char *name;
  int layers, d_model, d_hidden, heads, experts;
  double parameters, active;
} paper_size;
static const paper_size paper_sizes[] = {
    {"0.1B dense", 12, 768, 3072, 12, 0, 130e6, 130e6},  {"0.1B/16E", 12, 768, 3072, 12, 16, 548e6, 145e6},
    {"0.1B/32E", 12, 768, 3072, 12, 32, 1.0e9, 145e6},   {"0.1B/64E", 12, 768, 3072, 12, 64, 1.9e9, 145e6},
    {"0.1B/128E", 12, 768, 3072, 12, 128, 3.7e9, 145e6}, {"8B dense", 32, 4096, 16384, 32, 0, 8.7e9, 8.7e9},
    {"8B/64E", 32, 4096, 16384, 32, 64, 143e9, 9.8e9},
};

/* Whether a field of the model has this value; the second function also accepts 0. */
static int is(const choir_config *config, const char *key, int value) { return cli_count_of(config, key) == value; }
static int is_or_0(const choir_config *config, const char *key, int value) {
  return is(config, key, 0) || is(config, key, value);
}

/* Whether the fields that the paper's table does not list have the paper's values. */
static int is_the_papers(const choir_config *c) {
  return is_or_0(c, "d_expert", cli_count_of(c, "d_hidden")) && is(c, "shared_experts", 0) &&
         is(c, "dense_layers", 0) && !strcmp(cli_field(c, "activation"), "geglu") &&
         !strcmp(cli_field(c, "expert_activation"), "gelu") && is(c, "tied", 1) &&
         is_or_0(c, "kv_heads", cli_count_of(c, "heads"));
}

static const paper_size *find_paper_size(const choir_config *c) {
  int dense = is(c, "moe_every", 0) || cli_count_of(c, "experts") <= 1 || !strcmp(cli_field(c, "router.name"), "dense");
  for (size_t i = 0; i < sizeof paper_sizes / sizeof *paper_sizes && is_the_papers(c); i++) {
    const paper_size *p = &paper_sizes[i];
    if (is(c, "layers", p->layers) && is(c, "d_model", p->d_model) && is(c, "d_hidden", p->d_hidden) &&
        is(c, "heads", p->heads) && (dense ? !p->experts : is(c, "moe_every", 2) && is(c, "experts", p->experts)))
      return p;
  }
  return NULL;
}

static int print_info_json(const choir_config *config, const choir_config_costs *c, const paper_size *paper) {
  json_t *root = json_pack(
      "{s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:o, s:I, s:I}", "name", cli_field(config, "model.name"),
      "vocab_size", cli_count_of(config, "vocab_size"), "parameters", (json_int_t)c->parameters, "active_parameters",
      (json_int_t)c->active_parameters, "embedding_parameters", (json_int_t)c->embedding_parameters,
      "expert_parameters", (json_int_t)c->expert_parameters, "forward_flops_per_token", c->forward_flops_per_token,
      "train_flops_per_token", c->train_flops_per_token, "train_bytes", (json_int_t)c->train_bytes, "train_memory",
      cli_json_memory(&c->train_memory), "serve_bytes", (json_int_t)c->serve_bytes, "serve_q8_0_bytes",
      (json_int_t)c->serve_q8_0_bytes);
  if (root && paper)
    json_object_set_new(root, "paper",
                        json_pack("{s:s, s:f, s:f}", "name", paper->name, "parameters", paper->parameters,
                                  "active_parameters", paper->active));
  return cli_json_print(root);
}

static void print_row(const char *label, int64_t number, double paper) {
  printf("  %-20s %7s  %18s", label, cli_count((double)number), cli_grouped(number));
  if (paper > 0) printf("    paper %s", cli_count(paper));
  putchar('\n');
}

static void print_info(const choir_config *config, const choir_config_costs *c, const paper_size *paper, int assumed) {
  const char *name = cli_field(config, "model.name");
  int experts = cli_count_of(config, "d_expert"), moe_every = cli_count_of(config, "moe_every");
  char text[1024];
  size_t used = 0;
#define ADD(...) used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)
  ADD("%.256s: L=%s d=%s h=%s H=%s", *name ? cli_shown(name) : "model", cli_field(config, "layers"),
      cli_field(config, "d_model"), cli_field(config, "d_hidden"), cli_field(config, "heads"));
  if (!is(config, "kv_heads", 0)) ADD(" kv_heads=%s", cli_field(config, "kv_heads"));
  if (strcmp(cli_field(config, "position"), "relative")) ADD(" %s", cli_field(config, "position"));
  if (moe_every)
    ADD(" e=%s of h=%s every %d layers, %s c=%g", cli_field(config, "experts"),
        cli_field(config, experts ? "d_expert" : "d_hidden"), moe_every, cli_field(config, "router.name"),
        choir_config_number(config, "router.capacity_factor"));
  if (moe_every && !is(config, "dense_layers", 0)) ADD(", after %s dense", cli_field(config, "dense_layers"));
  if (moe_every && !is(config, "shared_experts", 0)) ADD(", %s shared", cli_field(config, "shared_experts"));
#undef ADD
  cli_print(2, "%s, V=%s%s", text, cli_grouped(cli_count_of(config, "vocab_size")),
            assumed ? " (assumed: the config takes the size of the data's tokenizer)" : "");
  print_row("parameters", c->parameters, paper ? paper->parameters : 0);
  print_row("  active per token", c->active_parameters, paper ? paper->active : 0);
  print_row("  in the experts", c->expert_parameters, 0);
  print_row("  in the embedding", c->embedding_parameters, 0);
  printf("  %-20s %7s  (forward), %s (training)\n", "FLOPs per token", cli_count(c->forward_flops_per_token),
         cli_count(c->train_flops_per_token));
  printf("  %-20s %s with %s x %s tokens, %s, %s\n", "memory to train", cli_bytes((double)c->train_bytes),
         cli_field(config, "batch_sequences"), cli_field(config, "sequence_length"), cli_field(config, "compute"),
         cli_field(config, "optimizer"));
  cli_print(4, "    %s", cli_memory(&c->train_memory));
  printf("  %-20s %s, with --compute q8_0 %s\n", "memory to serve", cli_bytes((double)c->serve_bytes),
         cli_bytes((double)c->serve_q8_0_bytes));
}

static int run_info(int count, const char *const *operands) {
  choir_config *config = NULL;
  choir_config_costs costs;
  int status = cli_load_config(operands[0], &o.set, &config);
  if (status) return choir_config_free(config), status;
  int assumed = cli_vocabulary(config, o.vocab_size);
  if (choir_config_check(config) || choir_config_get_costs(config, &costs))
    return choir_config_free(config), cli_fail();
  const paper_size *paper = find_paper_size(config);
  if (o.json)
    status = print_info_json(config, &costs, paper);
  else
    print_info(config, &costs, paper, assumed);
  choir_config_free(config);
  return status;
}

static const cli_option options[] = {
    CLI_VOCABULARY(&o.vocab_size),
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "set a field of the config, as in choir train", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
    {0}};

CLI_VERB(
    info, "info", "CONFIG|CHECKPOINT|RUN", 1, 1, "show the parameters, FLOPs and memory of a model",
    "Active parameters are those that a token uses on average. FLOPs count the multiplications and additions of matrix "
    "products. If the sizes are one of the seven of Zhou et al. 2022, the paper's figures are printed as well.");
