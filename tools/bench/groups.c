/* The problems that `choir bench` runs by default, and the groups of problems that answer one question together. */
#include <stddef.h>

#include "bench/bench.h"

static const char *const defaults[] = {
    "moe n=4096 d=768 h=3072 e=16 c=2 router=expert_choice compute=fp32",
    "moe n=4096 d=768 h=3072 e=64 c=2 router=expert_choice compute=fp32",
    "moe n=4096 d=768 h=3072 e=128 c=2 router=expert_choice compute=fp32",
    "moe n=4096 d=768 h=3072 e=16 c=2 router=expert_choice compute=bf16",
    "moe n=4096 d=768 h=3072 e=64 c=2 router=expert_choice compute=bf16",
    "moe n=4096 d=768 h=3072 e=128 c=2 router=expert_choice compute=bf16",
    "moe n=4096 d=128 h=512 e=16 c=2 router=expert_choice compute=fp32",
    "route n=65536 e=128 c=2 d=768 h=3072 router=expert_choice compute=fp32",
    "assign n=4096 e=64 c=2 b=2 d=768 h=3072 solver=exact compute=fp32",
    "assign n=4096 e=64 c=2 b=3 d=768 h=3072 solver=exact compute=fp32",
    "assign n=4096 e=64 c=2 b=2 d=768 h=3072 solver=dykstra compute=fp32",
    "assign n=4096 e=64 c=2 b=3 d=768 h=3072 solver=dykstra compute=fp32",
    "assign n=4096 e=64 c=2 b=2 d=768 h=3072 solver=base compute=fp32",
    "gemm m=4096 n=768 k=768 tb=1 compute=fp32",
    "gemm m=4096 n=768 k=768 tb=1 compute=bf16",
    "attention B=8 T=512 H=12 dh=64 compute=fp32",
    "head n=4096 d=768 V=32000 compute=fp32",
    "gelu count=25165824",
    "rmsnorm n=4096 d=768",
    "select n=4096 e=64 k=128",
    "gather n=4096 d=768 e=64 k=128",
    "adafactor batch=16 rows=768 cols=3072",
    "tokenize MB=4 V=4096",
    NULL,
};

static const char *const flat[] = {"moe e=16", "moe e=64", "moe e=128", NULL};

static const char *const linear[] = {
    "moe d=128 h=512 n=1024",  "moe d=128 h=512 n=2048",  "moe d=128 h=512 n=4096",  "moe d=128 h=512 n=8192",
    "moe d=128 h=512 n=16384", "moe d=128 h=512 n=32768", "moe d=128 h=512 n=65536", NULL};

/* Two experts per token, or a capacity of 2 n / e tokens for every expert: top-2 requests 2 n / e times its factor;
 * top-1 requests n / e, so half of its capacity stays empty. */
static const char *const routers[] = {"moe c=2 router=expert_choice", "moe c=2 router=topk",
                                      "moe c=2 router=bias_balanced", "moe c=2 router=quantile_balanced",
                                      "moe c=2 router=global_topk",   "moe c=1 router=gshard_top2",
                                      "moe c=2 router=switch_top1",   NULL};
/* The same number of experts per token for all routers; random routing has the most even loads possible without
 * balancing, skewed routing those of an unbalanced router. */
static const char *const dropless[] = {"moe e=64 c=2 router=expert_choice",
                                       "moe e=64 c=2 router=topk",
                                       "moe e=64 c=2 router=random",
                                       "moe e=64 c=4 router=expert_choice",
                                       "moe e=64 c=4 router=topk",
                                       "moe e=64 c=8 router=expert_choice",
                                       "moe e=64 c=8 router=topk",
                                       "moe e=64 c=2 skew=1 router=topk",
                                       "moe e=64 c=4 skew=1 router=topk",
                                       "moe e=64 c=8 skew=1 router=topk",
                                       NULL};
static const char *const router_steps[] = {"step config=configs/0.1b-16e.json c=2 router=expert_choice",
                                           "step config=configs/0.1b-16e.json c=2 router=topk",
                                           "step config=configs/0.1b-16e.json c=2 router=bias_balanced",
                                           "step config=configs/0.1b-16e.json c=2 router=quantile_balanced",
                                           "step config=configs/0.1b-16e.json c=2 router=global_topk",
                                           "step config=configs/0.1b-16e.json c=1 router=gshard_top2",
                                           "step config=configs/0.1b-16e.json c=2 router=switch_top1",
                                           NULL};

static const char *const scaling[] = {"step", NULL};

static const ch_bench_group groups[] = {
    {.name = "flat", .what = "what more experts cost a layer, tokens and c being the same", .problems = flat},
    {.name = "linear", .what = "what a token costs a layer, from few tokens to many", .problems = linear},
    {.name = "routers",
     .what = "a layer of each router, with two experts a token or as much room in every expert",
     .problems = routers},
    {.name = "dropless",
     .what = "a layer where tokens choose without drops beside one where experts do: c experts a token of 64, at last "
             "with uneven loads",
     .problems = dropless},
    {.name = "router-steps",
     .what = "a training step with each router, with two experts a token or as much room",
     .problems = router_steps},
    {.name = "scaling",
     .what = "a training step by 1, 2, 4, ... threads; shares are of the peak of as many",
     .problems = scaling,
     .by_threads = 1},
    {0},
};

const char *const *ch_bench_defaults(void) { return defaults; }
const ch_bench_group *ch_bench_groups(void) { return groups; }
