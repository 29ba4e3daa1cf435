/* choir plan: estimates training on a cluster for every possible layout. */
#include "plan/plan.h"

#include <string.h>

#include "cli.h"
#include "pages/page.h"

static struct {
  ch_plan_options plan;
  const char *layout, *out;
  int vocab_size, json;
  cli_list set;
} o;

static const char *dense(const ch_plan_layout *l) { return l->dense_sharded ? "sharded" : "whole"; }

/* Reports that no layout is possible; returns an exit status. */
static int none(const ch_plan *plan) {
  return *plan->layout[0].refused ? cli_fail_with("no layout of %d ranks is possible", plan->ranks) : 0;
}

static int print_plan_json(const ch_plan *plan) {
  int status = cli_json_line(ch_plan_about_json(plan));
  for (int i = 0; !status && i < plan->count; i++) status = cli_json_line(ch_plan_layout_json(plan, &plan->layout[i]));
  return status ? status : none(plan);
}

/* ---- text ---- */

static void print_head(const ch_plan *plan, int assumed) {
  const char *config = plan->config.model.name;
  cli_print(2, "%s on %s: %d ranks, %s tokens per step; %s", *config ? cli_shown(config) : "model",
            cli_shown(plan->cluster.name), plan->ranks, cli_grouped(plan->tokens), ch_plan_basis);
  cli_print(4, "  %s parameters, %s active, %s FLOPs per token; peak of a rank %s GFLOP/s, memory %s",
            cli_count((double)plan->costs.parameters), cli_count((double)plan->costs.active_parameters),
            cli_count(plan->costs.train_flops_per_token), cli_grouped((int64_t)(plan->peak / 1e9)),
            cli_bytes(plan->cluster.memory));
  if (assumed)
    cli_print(4, "  assumed: a vocabulary of 32,000, since the config takes the size of the data's tokenizer");
  if (*plan->assumed) cli_print(4, "  assumed: %s", cli_shown(plan->assumed));
  if (*plan->cluster.notes) cli_print(4, "  notes of the cluster: %s", cli_shown(plan->cluster.notes));
  if (plan->shards_set)
    cli_print(4, "  train.grad_chunks is planned as %d; training on this number of ranks needs it",
              plan->config.train.grad_chunks);
}

/* "8 x 8 x 1 s*" */
static const char *name_of(const ch_plan_layout *l) {
  static char name[64];
  snprintf(name, sizeof name, "%dx%dx%d%s%s%s", l->replicas, l->experts, l->hidden,
           l->dense_sharded || l->chosen ? " " : "", l->dense_sharded ? "s" : "", l->chosen ? "*" : "");
  return name;
}

static void add_row(cli_table *table, const ch_plan *plan, const ch_plan_layout *l) {
  cli_cell(table, "%s", name_of(l));
  cli_cell(table, "%s", cli_bytes((double)l->bytes));
  cli_cell(table, "%.3g s", l->seconds);
  cli_cell(table, "%s", cli_count(l->tokens_per_second));
  cli_cell(table, "%.1f %%", 100 * l->share);
  if (l->cost > 0)
    cli_cell(table, "%.3g %s", l->cost, cli_shown(plan->cluster.currency));
  else
    cli_cell(table, "-");
  cli_cell(table, "%s", l->bound);
}

enum { SHOWN = 12 }; /* maximum rows of a list; JSON and the page have all */

static int print_table(const ch_plan *plan) {
  cli_table table;
  int i = 0;
  putchar('\n');
  cli_print(
      2,
      "layout: replicas x experts x hidden, the fastest first (s: dense matrices sharded; *: the default of choir "
      "train for this number of ranks); cost: of 10^9 tokens");
  cli_table_begin(&table, 2, "layout|memory>|step>|tokens/s>|peak>|cost>|bound by");
  for (; i < plan->count && !*plan->layout[i].refused; i++)
    if (i < SHOWN) add_row(&table, plan, &plan->layout[i]);
  int status = cli_table_end(&table);
  if (i > SHOWN) printf("  and %d more\n", i - SHOWN);
  return status;
}

static int print_refused(const ch_plan *plan) {
  int some = 0;
  cli_table table;
  cli_table_begin(&table, 2, "|");
  for (const ch_plan_layout *l = plan->layout; l < plan->layout + plan->count; l++) {
    if (!*l->refused || some++ >= SHOWN) continue;
    cli_cell(&table, "%s", name_of(l));
    cli_cell(&table, "%s", cli_shown(l->refused));
  }
  if (some) puts("\nrefused");
  int status = cli_table_end(&table);
  if (some > SHOWN) printf("  and %d more\n", some - SHOWN);
  return status;
}

static void add_part(cli_table *table, const ch_plan *plan, const ch_plan_layout *l, const ch_plan_part *p) {
  char traffic[512];
  size_t used;
  if (p->seconds <= 0 && p->bytes <= 0) return;
  cli_cell(table, "%s", p->name);
  cli_cell(table, "%.3g s", p->seconds);
  cli_cell(table, "%.1f %%", 100 * p->seconds / l->seconds);
  if (!p->sent) {
    cli_cell(table, "bound by %s", cli_shown(p->limit));
    return;
  }
  used = (size_t)snprintf(traffic, sizeof traffic, "%s per rank", cli_bytes(p->bytes / plan->ranks));
  for (int i = 0; i < plan->cluster.levels && used < sizeof traffic; i++)
    used += (size_t)snprintf(traffic + used, sizeof traffic - used, ", %s on %.64s", cli_bytes(p->level_bytes[i]),
                             cli_shown(plan->cluster.level[i].name));
  cli_cell(table, "%s", traffic);
}

static int print_details(const ch_plan *plan, const ch_plan_layout *l) {
  cli_table memory, parts;
  putchar('\n');
  cli_print(2, "%d x %d x %d, dense matrices %s: %s%s", l->replicas, l->experts, l->hidden, dense(l),
            ch_plan_command(l), l->chosen ? " (its default)" : "");
  printf("  memory of a rank: %s\n", cli_bytes((double)l->bytes));
  cli_table_begin(&memory, 4, "|>");
  for (int i = 0; i < l->purposes; i++) {
    if (!l->memory[i].bytes) continue;
    cli_cell(&memory, "%s", l->memory[i].name);
    cli_cell(&memory, "%s", cli_bytes((double)l->memory[i].bytes));
  }
  int status = cli_table_end(&memory);
  cli_print(4, "  a step: %.3g s, or %.3g s with communication hidden behind products; bytes by level are of all ranks",
            l->seconds, l->overlapped);
  cli_table_begin(&parts, 4, "|>|>|");
  for (int i = 0; i < l->parts; i++) add_part(&parts, plan, l, &l->part[i]);
  if (!status) status = cli_table_end(&parts);
  cli_print(4, "  the longest part: %s", cli_shown(l->bound));
  return status;
}

/* The layout named by --layout, or the fastest; NULL: none. */
static const ch_plan_layout *chosen(const ch_plan *plan) {
  char name[64];
  for (const ch_plan_layout *l = plan->layout; l < plan->layout + plan->count && !*l->refused; l++) {
    snprintf(name, sizeof name, "%dx%dx%d", l->replicas, l->experts, l->hidden);
    if (!o.layout || !strcmp(name, o.layout)) return l;
  }
  return NULL;
}

static int print_plan(const ch_plan *plan, const ch_plan_layout *l, int assumed) {
  int status = 0;
  print_head(plan, assumed);
  if (l) status = print_table(plan);
  if (l && !status) status = print_details(plan, l);
  if (!status) status = print_refused(plan);
  return status ? status : none(plan);
}

static int run_plan(int count, const char *const *operands) {
  choir_config *config = NULL;
  ch_plan *plan;
  if (o.json && o.layout) return cli_usage("--layout has no effect with --json, which prints all layouts in detail");
  int status = cli_load_config(operands[0], &o.set, &config);
  if (status) return choir_config_free(config), status;
  int assumed = cli_vocabulary(config, o.vocab_size);
  if (ch_plan_create(config, &o.plan, &plan)) return choir_config_free(config), cli_fail();
  const ch_plan_layout *l = chosen(plan);
  if (!l && o.layout)
    status = cli_usage("--layout %s: no possible layout has this name", o.layout);
  else if (o.out && ch_plan_page(plan, o.out))
    status = cli_fail();
  else
    status = o.json ? print_plan_json(plan) : print_plan(plan, l, assumed);
  ch_plan_free(plan);
  choir_config_free(config);
  return status;
}

static const cli_option options[] = {
    {"cluster", "FILE", CLI_SMALL, &o.plan.cluster, NULL, "JSON file that describes the cluster (docs/formats.md)", 1},
    {"ranks", "N", CLI_INT, &o.plan.ranks, "0", "number of ranks; 0: all of the cluster", 0},
    {"layout", "RxExH", CLI_TEXT, &o.layout, NULL, "layout to show in detail; default: the fastest", 0},
    CLI_VOCABULARY(&o.vocab_size),
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "set a field of the config, as in choir train", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL,
     "print JSON lines: what all layouts have in common, then one line for each layout", 0},
    {"out", "FILE.html", CLI_OUTPUT, &o.out, NULL, "also write the plan as a web page", 0},
    {0}};

CLI_VERB(
    plan, "plan", "CONFIG|CHECKPOINT|RUN", 1, 1, "estimate time, memory and cost of training on a cluster",
    "A layout distributes a model over R x E x H ranks: R replicas of the experts, E groups among which the experts of "
    "a replica are divided, and H shards of each expert's hidden width. choir train --replicas R --hidden H selects a "
    "layout; those marked s also need --shard-dense. * marks the default.\n\n"
    "For each layout, the output has the memory of a rank by purpose, the time of a step by part, the bytes sent by "
    "level of the network, tokens per second, share of the peak, cost, and the bottleneck. Layouts that are impossible "
    "are listed with the reason.\n\n"
    "Nothing is run or measured. Memory is computed as training itself does, traffic by formulas; speeds come from the "
    "cluster file.\n\n"
    "Example: choir plan configs/0.1b-64e.json --cluster examples/clusters/ethernet-8.json --set batch_sequences=64");
