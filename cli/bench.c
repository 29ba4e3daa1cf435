/* choir bench: what this machine can do, and how much of it choir uses. */
#include "cli.h"

static struct {
  int threads, json;
  double seconds;
} o;

static int run(int count, const char *const *operands) {
  (void)count, (void)operands;
  choir_machine_peak p;
  if (choir_machine_measure(o.threads, o.seconds, &p)) return cli_fail();
  if (o.json)
    return cli_json_print(json_pack("{s:i, s:f, s:f, s:f, s:f, s:s, s:s}", "threads", p.threads, "fp32_gflops",
                                    p.fp32_gflops, "bf16_gflops", p.bf16_gflops, "read_gbs", p.read_gbs, "triad_gbs",
                                    p.triad_gbs, "isa", p.isa, "bf16_unit", p.bf16_unit));
  printf("peak, %d threads: %s GFLOP/s fp32 (%s), %s GFLOP/s bf16 (%s), %.1f GB/s reading, %.1f GB/s triad\n",
         p.threads, cli_count(p.fp32_gflops), p.isa, cli_count(p.bf16_gflops), p.bf16_unit, p.read_gbs, p.triad_gbs);
  return 0;
}

static const cli_option options[] = {{"seconds", "S", CLI_REAL, &o.seconds, "1", "time to spend on the peaks", 0},
                                     {"threads", "N", CLI_INT, &o.threads, "0", "threads; 0 means all CPUs", 0},
                                     {"json", NULL, CLI_FLAG, &o.json, NULL, "print JSON", 0},
                                     {0}};

const cli_verb cli_bench = {"bench", "", 0, 0, "measure this machine", NULL, options, run};
