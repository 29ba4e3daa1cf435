/* choir plan: what training on a cluster would take, for every way to lay it out. */
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

/* An exit status: whether no layout can be. */
static int none(const ch_plan *plan) {
  return *plan->layout[0].refused ? cli_fail_with("no layout of %d ranks can be", plan->ranks) : 0;
}

static int print_plan_json(const ch_plan *plan) {
  int status = cli_json_line(ch_plan_about_json(plan));
  for (int i = 0; !status && i < plan->count; i++) status = cli_json_line(ch_plan_layout_json(plan, &plan->layout[i]));
  return status ? status : none(plan);
}

/* ---- text ---- */

static void print_head(const ch_plan *plan, int assumed) {
  const char *config = plan->config.model.name;
  printf("%s on %s: %d ranks, %s tokens a step; %s\n", *config ? cli_shown(config) : "model",
         cli_shown(plan->cluster.name), plan->ranks, cli_grouped(plan->tokens), ch_plan_basis);
  printf("  %s parameters, %s active, %s FLOPs a token; peak of a rank %s GFLOP/s, memory %s\n",
         cli_count((double)plan->costs.parameters), cli_count((double)plan->costs.active_parameters),
         cli_count(plan->costs.train_flops_per_token), cli_grouped((int64_t)(plan->peak / 1e9)),
         cli_bytes(plan->cluster.memory));
  if (assumed) printf("  assumed: a vocabulary of 32,000: the config leaves it to the data\n");
  if (*plan->assumed) printf("  assumed: %s\n", cli_shown(plan->assumed));
  if (*plan->cluster.notes) printf("  notes of the cluster: %s\n", cli_shown(plan->cluster.notes));
  if (plan->shards_set)
    printf("  train.grad_chunks is planned as %d; training on this number of ranks needs it\n",
           plan->config.train.grad_chunks);
}

static void print_name(const ch_plan_layout *l) {
  printf("%4d x %4d x %2d %c%c", l->replicas, l->experts, l->hidden, l->dense_sharded ? 's' : ' ',
         l->chosen ? '*' : ' ');
}

static void print_row(const ch_plan *plan, const ch_plan_layout *l) {
  char cost[32] = "-";
  if (l->cost > 0) snprintf(cost, sizeof cost, "%.3g %s", l->cost, cli_shown(plan->cluster.currency));
  print_name(l);
  printf(" %10s %10.3g s %10.3g s %9s %6.1f %%  %14s  %s\n", cli_bytes((double)l->bytes), l->seconds, l->overlapped,
         cli_count(l->tokens_per_second), 100 * l->share, cost, l->bound);
}

enum { SHOWN = 12 }; /* rows of either list; JSON and the page have all */

static void print_table(const ch_plan *plan) {
  printf(
      "\nreplicas x experts x hidden, the fastest first (s: dense matrices sharded; *: what choir train takes on "
      "so many ranks unless told otherwise)\n");
  printf("%16s    %10s %12s %12s %9s %8s  %14s\n", "R x E x H", "memory", "step", "overlapped", "tokens/s", "of peak",
         "10^9 tokens");
  int i = 0;
  for (; i < plan->count && !*plan->layout[i].refused; i++)
    if (i < SHOWN) print_row(plan, &plan->layout[i]);
  if (i > SHOWN) printf("  and %d more\n", i - SHOWN);
}

static void print_refused(const ch_plan *plan) {
  int some = 0;
  for (const ch_plan_layout *l = plan->layout; l < plan->layout + plan->count; l++) {
    if (!*l->refused) continue;
    if (!some++) printf("\nrefused\n");
    if (some > SHOWN) continue;
    print_name(l);
    printf("  %s\n", cli_shown(l->refused));
  }
  if (some > SHOWN) printf("  and %d more\n", some - SHOWN);
}

static void print_part(const ch_plan *plan, const ch_plan_layout *l, const ch_plan_part *p) {
  if (p->seconds <= 0 && p->bytes <= 0) return;
  printf("    %-20s %10.3g s %5.1f %%  ", p->name, p->seconds, 100 * p->seconds / l->seconds);
  if (!p->sent) {
    printf("by %s\n", cli_shown(p->limit));
    return;
  }
  printf("%9s a rank", cli_bytes(p->bytes / plan->ranks));
  for (int i = 0; i < plan->cluster.levels; i++)
    printf(", %s on %s", cli_bytes(p->level_bytes[i]), cli_shown(plan->cluster.level[i].name));
  putchar('\n');
}

static void print_details(const ch_plan *plan, const ch_plan_layout *l) {
  printf("\n%d x %d x %d, dense matrices %s: %s%s\n  memory of a rank: %s\n", l->replicas, l->experts, l->hidden,
         dense(l), ch_plan_command(l), l->chosen ? ", which takes it unless told otherwise" : "",
         cli_bytes((double)l->bytes));
  for (int i = 0; i < l->purposes; i++)
    if (l->memory[i].bytes) printf("    %-20s %10s\n", l->memory[i].name, cli_bytes((double)l->memory[i].bytes));
  printf("  a step: %.3g s, %.3g s with traffic hidden by products; bytes by level are of all ranks\n", l->seconds,
         l->overlapped);
  for (int i = 0; i < l->parts; i++) print_part(plan, l, &l->part[i]);
  printf("  the longest part: %s\n", cli_shown(l->bound));
}

/* The layout that --layout names, or the fastest; NULL: there is none. */
static const ch_plan_layout *chosen(const ch_plan *plan) {
  char name[64];
  for (const ch_plan_layout *l = plan->layout; l < plan->layout + plan->count && !*l->refused; l++) {
    snprintf(name, sizeof name, "%dx%dx%d", l->replicas, l->experts, l->hidden);
    if (!o.layout || !strcmp(name, o.layout)) return l;
  }
  return NULL;
}

static int print_plan(const ch_plan *plan, const ch_plan_layout *l, int assumed) {
  print_head(plan, assumed);
  if (l) print_table(plan);
  if (l) print_details(plan, l);
  print_refused(plan);
  return none(plan);
}

static int run_plan(int count, const char *const *operands) {
  choir_config *config = NULL;
  ch_plan *plan;
  if (o.json && o.layout) return cli_usage("--layout has no effect with --json, which prints all of them in detail");
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
    {"cluster", "FILE", CLI_SMALL, &o.plan.cluster, NULL, "what describes the cluster (JSON; docs/formats.md)", 1},
    {"ranks", "N", CLI_INT, &o.plan.ranks, "0", "number of ranks to plan for; 0: all of the cluster's", 0},
    {"layout", "RxExH", CLI_TEXT, &o.layout, NULL, "the layout to show in detail; the fastest otherwise", 0},
    CLI_VOCABULARY(&o.vocab_size),
    {"set", "KEY=VALUE", CLI_LIST, &o.set, NULL, "change one field of the config, as train --set does", 0},
    {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON lines: what all have in common, then a layout each", 0},
    {"out", "FILE.html", CLI_OUTPUT, &o.out, NULL, "write the plan as a page, too", 0},
    {0}};

CLI_VERB(plan, "plan", "CONFIG|CHECKPOINT|RUN", 1, 1,
         "estimate what training on a cluster would take, layout by layout",
         "A layout shares a model over R x E x H ranks: R copies of the experts, E groups that share the experts of a "
         "copy, and H parts of the hidden width of an expert. For each the memory of a rank by purpose, the time of a "
         "step by part, bytes by level of links, tokens a second, share of the peak, cost, and what bounds it; and the "
         "layouts that cannot be, and why. choir train --replicas R --hidden H runs them, with --shard-dense those "
         "marked s; * is the default.\n\n"
         "Nothing is run and nothing measured: memory is what training itself plans, traffic is counted by formula, "
         "rates are the file's. Example: choir plan configs/0.1b-64e.json --cluster examples/clusters/ethernet-8.json "
         "--set batch_sequences=64");
