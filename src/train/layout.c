#include "train/layout.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/format.h"
#include "base/hash.h"
#include "base/machine.h"
#include "comm/collective.h"
#include "model/config.h"
#include "train/step.h"

/* ---- enumeration of layouts ---- */

int ch_layout_next(ch_layout *l) {
  const int P = l->ranks;
  if (l->replicas && !l->dense_sharded && l->replicas < P) { /* a replica of one rank has nothing to shard */
    l->dense_sharded = 1;
    return 1;
  }
  l->dense_sharded = 0;
  if (!l->replicas) l->hidden = 1;
  do {
    if (++l->replicas > P) l->replicas = 1, l->hidden++;
  } while (l->hidden <= P && P % (l->replicas * l->hidden));
  l->experts = P / (l->replicas * l->hidden);
  return l->hidden <= P;
}

static int has_experts(const choir_config *config) { return ch_config_moe_layers(&config->model) > 0; }

int ch_layout_refused(const choir_config *config, const ch_layout *l, char *text, size_t size) {
  int e = config->model.experts, h = ch_config_d_expert(&config->model);
  *text = 0;
  if (l->experts == l->ranks) return 0; /* without experts, ranks only split the batch */
  if (!has_experts(config))
    snprintf(text, size, "the model has no experts to lay out");
  else if (l->experts > e)
    snprintf(text, size, "%d experts do not make %d groups", e, l->experts);
  else if (h % l->hidden)
    snprintf(text, size, "the hidden width %d does not go into %d parts", h, l->hidden);
  else if (l->hidden > 1 && e % l->experts)
    snprintf(text, size, "hidden shards want groups of as many experts, and %d do not make %d", e, l->experts);
  return *text != 0;
}

int ch_layout_idles(const choir_config *config, const ch_layout *l) {
  return has_experts(config) && l->experts > config->model.experts;
}

/* ---- memory: needed and available ---- */

/* The memory of one rank. */
typedef struct {
  uint64_t machine;      /* identifies the machine; its ranks share its memory */
  int64_t needs;         /* bytes, by a dry run */
  int64_t allowed, left; /* bytes allowed by the process's limits, and free on the machine; 0: unknown */
} rank_memory;

/* A lack of memory: on one rank, or on a machine for all of its ranks. */
typedef struct {
  int rank, ranks;
  int64_t needs, has;
} want;

static uint64_t machine_number(void) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return XXH64(host, strlen(host), 0);
}

static int dry_run(const choir_config *config, const choir_model_options *options, const choir_ranks *ranks,
                   rank_memory *r) {
  choir_model_options with = *options;
  choir_memory memory;
  choir_model *model;
  ch_trainer trainer;
  with.ranks = ranks;
  CH_TRY(ch_model_prepare(config, &with, &model));
  int code = ch_trainer_plan(model, &trainer);
  ch_trainer_memory(&trainer, &memory);
  r->needs = memory.total;
  if (!model->x.memory->host) r->allowed = (int64_t)model->x.memory->available(), r->left = 0;
  ch_trainer_free(&trainer);
  return code;
}

/* Finds the first rank that needs more memory than it is allowed, or the first machine whose ranks together need
 * more than it has left. */
static want find_want(const rank_memory *all, int ranks) {
  want w = {0};
  for (int r = 0; r < ranks && !w.needs; r++) {
    int64_t needs = 0, left = all[r].left;
    int there = 0;
    for (int o = 0; o < ranks; o++) {
      if (all[o].machine != all[r].machine) continue;
      there++;
      needs += all[o].needs;
      if (all[o].left < left) left = all[o].left;
    }
    if (all[r].allowed && all[r].needs > all[r].allowed)
      w = (want){r, 1, all[r].needs, all[r].allowed};
    else if (left && needs > left)
      w = (want){r, there, needs, left};
  }
  return w;
}

/* Computes how much memory the layout lacks; the same result on all ranks. */
static int try_layout(const choir_config *config, const choir_model_options *options, const choir_ranks *ranks,
                      const rank_memory *local, want *w) {
  const ch_comm *comm = ranks->comm;
  rank_memory mine = *local, all[CH_RANKS];
  CH_TRY(ch_comm_agree(comm, dry_run(config, options, ranks, &mine)));
  ch_comm_gather(comm, "memory of a layout", &mine, all, sizeof mine);
  *w = find_want(all, comm->size);
  return CHOIR_OK;
}

/* ---- choice of a layout ---- */

static const double gib = 0x1p30;

static void say_want(const want *w, char *text, size_t size) {
  if (w->ranks > 1)
    ch_format(text, size, "the %d processes on the machine of rank %d would need %.2f GiB, and it has %.2f", w->ranks,
              w->rank, (double)w->needs / gib, (double)w->has / gib);
  else
    ch_format(text, size, "rank %d would need %.2f GiB, and has %.2f", w->rank, (double)w->needs / gib,
              (double)w->has / gib);
}

static void say_chosen(const choir_config *config, const ch_layout *l, const char *before, char *why, size_t size) {
  char reason[64] = "";
  const ch_layout first = {.ranks = l->ranks, .replicas = 1, .experts = l->ranks, .hidden = 1};
  if (!*before && ch_layout_idles(config, &first))
    snprintf(reason, sizeof reason, "%d experts are too few for %d groups", config->model.experts, l->ranks);
  snprintf(why, size, "%d replica%s x %d group%s of experts x %d hidden shard%s, dense matrices %s: %s%s%s",
           l->replicas, l->replicas > 1 ? "s" : "", l->experts, l->experts > 1 ? "s" : "", l->hidden,
           l->hidden > 1 ? "s" : "", l->dense_sharded ? "sharded" : "whole", reason, before,
           *reason || *before ? "" : "as one process computes, bit for bit");
}

/* Finds the first layout that fits into memory. idles: searches among layouts where some ranks have no expert; 0: among
 * the others. found: 0 if no layout fits. If the first layout did not fit, `before` says how much memory it lacks. */
static int search(const choir_config *config, const choir_model_options *options, choir_ranks *ranks,
                  const rank_memory *local, int idles, ch_layout *l, int *found, char *before, size_t size) {
  char text[256];
  *found = 0;
  *l = (ch_layout){.ranks = ranks->comm->size};
  while (!*found && ch_layout_next(l)) {
    want w;
    if (ch_layout_refused(config, l, text, sizeof text) || ch_layout_idles(config, l) != idles) continue;
    ranks->replicas = l->replicas, ranks->hidden = l->hidden, ranks->dense_sharded = l->dense_sharded;
    CH_TRY(try_layout(config, options, ranks, local, &w));
    *found = !w.needs;
    if (!*found && !*before) say_want(&w, before, size);
  }
  return CHOIR_OK;
}

/* Checks that all ranks have the same config and settings of the layout. */
static int check_same(const choir_config *config, const choir_ranks *ranks) {
  const ch_fact facts[] = {{"config", ch_config_hash(config)},
                           {"number of replicas", (uint64_t)ranks->replicas},
                           {"number of hidden shards", (uint64_t)ranks->hidden},
                           {"sharding of dense matrices", (uint64_t)ranks->dense_sharded}};
  return CH_SAME(ranks->comm, facts);
}

int ch_layout_choose(const choir_config *config, const choir_model_options *options, choir_ranks *ranks, char *why,
                     size_t size) {
  char before[256] = "";
  ch_layout l;
  int found;
  *why = 0;
  CH_TRY(check_same(config, ranks));
  if (ranks->comm->size == 1 || ranks->replicas || ranks->hidden || ranks->dense_sharded) return CHOIR_OK;
  const rank_memory local = {.machine = machine_number(),
                             .allowed = (int64_t)ch_machine_available_memory(),
                             .left = (int64_t)ch_machine_available_memory_at("")};
  CH_TRY(search(config, options, ranks, &local, 0, &l, &found, before, sizeof before));
  if (!found) CH_TRY(search(config, options, ranks, &local, 1, &l, &found, before, sizeof before));
  if (!found)
    return ch_error(CHOIR_ERROR_MEMORY,
                    "no layout of %d processes has room (choir plan shows them all); with the first, %s; use more "
                    "processes, or a smaller model, batch_sequences or sequence_length",
                    l.ranks, before);
  say_chosen(config, &l, before, why, size);
  return CHOIR_OK;
}
