/* choir's side of lab/peers/run: one case, run once for every line "run" on standard input, so that it can take turns
 * with another program. Answers are JSON, one line each.
 *
 *   choir_worker peak  THREADS
 *   choir_worker layer INPUTS.safetensors CAPACITY COMPUTE THREADS     x, dout [n,d], router [d,e], w1, w2 [e,d,h]
 *   choir_worker step  CHECKPOINT TOKENS.npy COMPUTE THREADS           int32 [2,B*T]: tokens, targets
 *
 * "save FILE" writes what is there then: outputs and gradients, which each run sets, or the weights. Of a large tensor
 * it writes every s-th element, s = count / SAMPLE rounded up to odd. It links the library's objects, since a step by
 * itself is not public. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/machine.h"
#include "moe/layer.h"
#include "npy/npy.h"
#include "op/backend.h"
#include "train/step.h"

enum { SAMPLE = 1 << 18 };

typedef struct {
  const char *name;
  const float *data;
  int64_t count;
} output;

typedef struct worker {
  void (*run)(struct worker *w, double *loss);
  int outputs;
  output *output;
  double flops;
  /* layer */
  ch_exec x;
  ch_router_spec options;
  ch_moe_args args;
  /* step */
  ch_trainer trainer;
  ch_npy tokens;
} worker;

static void fail(void) {
  fprintf(stderr, "choir_worker: %s\n", choir_error_message());
  exit(1);
}

static void check(int code) {
  if (code) fail();
}

/* As a model's: aligned and in huge pages. It stays until the process ends. */
static void *memory(int64_t bytes) {
  ch_arena arena;
  ch_arena_init(&arena, "worker", &ch_memory_host);
  ch_arena_alloc(&arena, (size_t)bytes);
  check(ch_arena_commit(&arena));
  return memset(ch_arena_alloc(&arena, (size_t)bytes), 0, (size_t)bytes); /* pages are there before anything is timed */
}

/* A copy of a tensor in memory like any other's; the file may go then. */
static real *copy_of(const choir_tensors *file, const char *name, const choir_tensor **tensor) {
  *tensor = choir_tensors_find(file, name);
  if (!*tensor || (*tensor)->dtype != CHOIR_F32)
    check(ch_error(CHOIR_ERROR_FORMAT, "the inputs have no float tensor '%s'", name));
  return memcpy(memory((int64_t)(*tensor)->bytes), (*tensor)->data, (*tensor)->bytes);
}

static void run_layer(worker *w, double *loss) {
  ch_moe_saved saved;
  (void)loss;
  ch_moe_forward(&w->x, &w->args, &saved);
  ch_moe_backward(&w->x, &w->args, &saved);
  if (!ch_counting(&w->x))
    w->flops = 12.0 * saved.routing.record.expert_begin[w->args.route.e] * w->args.route.d * w->args.h +
               6.0 * w->args.route.n * w->args.route.d * w->args.route.e;
  ch_arena_release(&w->x.tape, 0);
}

static void read_inputs(ch_moe_args *a, const ch_router_spec *options, const char *path) {
  choir_tensors *file;
  const choir_tensor *x, *w;
  check(choir_tensors_load(path, 0, &file));
  a->route.x = copy_of(file, "x", &x);
  a->dout = copy_of(file, "dout", &x);
  a->route.weight = copy_of(file, "router", &w);
  a->weights.w2 = copy_of(file, "w2", &w);
  a->weights.w1 = copy_of(file, "w1", &w);
  a->route.d = (int)x->shape[1];
  ch_route_args_set(&a->route, ch_router_find("expert_choice"), options, (int)x->shape[0], (int)w->shape[0], 0);
  a->h = (int)w->shape[2];
  choir_tensors_free(file);
}

static output *add(worker *w, const char *name, float *data, int64_t count) {
  w->output = realloc(w->output, (size_t)(w->outputs + 1) * sizeof *w->output);
  w->output[w->outputs] = (output){.name = name, .data = data, .count = count};
  return &w->output[w->outputs++];
}

/* In training the optimizer writes the experts' rounded copies; so they are made before anything is timed. */
static const ch_bf16 *rounded(ch_exec *x, const real *weights, int64_t count) {
  if (x->compute != CH_COMPUTE_BF16) return NULL;
  ch_bf16 *copy = memory(count * (int64_t)sizeof *copy);
  x->ops->round_bf16(x, &(ch_round_args){.count = count, .x = weights, .y = copy});
  return copy;
}

static void open_layer(worker *w, char **argv) {
  ch_moe_args *a = &w->args;
  ch_compute compute;
  w->options = ch_router_default(ch_router_find("expert_choice"));
  w->options.capacity_factor = atof(argv[3]);
  read_inputs(a, &w->options, argv[2]);
  check(a->route.router->check(&w->options, a->route.n, a->route.e, 0));
  a->route.training = a->keep = a->grad_chunks = 1;
  int64_t nd = (int64_t)a->route.n * a->route.d, de = (int64_t)a->route.d * a->route.e,
          weights = (int64_t)a->route.e * a->route.d * a->h;
  add(w, "out", a->out = memory(nd * 4), nd);
  add(w, "dx", a->dx = memory(nd * 4), nd);
  add(w, "router", a->gradients.router = memory(de * 4), de);
  add(w, "w1", a->gradients.w1 = memory(weights * 4), weights);
  add(w, "w2", a->gradients.w2 = memory(weights * 4), weights);
  check(ch_compute_find(argv[4], &compute));
  check(ch_exec_init(&w->x, "cpu", compute, 0, atoi(argv[5])));
  run_layer(w, NULL);
  check(ch_exec_commit(&w->x));
  a->weights.w1_16 = rounded(&w->x, a->weights.w1, weights);
  a->weights.w2_16 = rounded(&w->x, a->weights.w2, weights);
  w->run = run_layer;
}

static void run_step(worker *w, double *loss) {
  const int32_t *token = w->tokens.data;
  choir_trainer_result result;
  check(ch_trainer_step(&w->trainer, token, token + w->tokens.shape[1], &result));
  *loss = result.loss;
}

static void open_step(worker *w, char **argv) {
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  choir_config_costs costs;
  choir_model *model;
  run.compute = argv[4];
  run.threads = atoi(argv[5]);
  check(ch_npy_read(argv[3], CH_NPY_INT32, 2, &w->tokens));
  check(choir_model_load(argv[2], &run, &model, NULL));
  check(ch_trainer_plan(model, &w->trainer));
  check(ch_trainer_commit(&w->trainer));
  int64_t n = ch_step_tokens(&model->config.train);
  if (w->tokens.shape[0] != 2 || w->tokens.shape[1] != n)
    check(ch_error(CHOIR_ERROR_FORMAT, "%s must hold 2 rows of %" PRId64 " tokens", argv[3], n));
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    check(choir_model_parameter_at(model, i, &p));
    output *o = add(w, p.name, p.data, 1);
    for (int k = 0; k < p.dims; k++) o->count *= p.shape[k];
  }
  check(choir_config_get_costs(&model->config, &costs));
  w->flops = costs.train_flops_per_token * (double)n;
  w->run = run_step;
}

static void save(const worker *w, const char *path) {
  choir_tensor *tensor = calloc((size_t)w->outputs, sizeof *tensor);
  for (int i = 0; i < w->outputs; i++) {
    const output *o = &w->output[i];
    int64_t stride = (o->count / SAMPLE) | 1, count = (o->count + stride - 1) / stride;
    float *sample = malloc((size_t)count * sizeof *sample);
    if (!sample) check(ch_error(CHOIR_ERROR_MEMORY, "no memory for a sample of '%s'", o->name));
    for (int64_t k = 0; k < count; k++) sample[k] = o->data[k * stride];
    tensor[i] =
        (choir_tensor){.dtype = CHOIR_F32, .dims = 1, .shape = {count}, .data = sample, .bytes = (size_t)count * 4};
    snprintf(tensor[i].name, sizeof tensor[i].name, "%s", o->name);
  }
  check(choir_tensors_write(path, tensor, w->outputs, NULL));
  for (int i = 0; i < w->outputs; i++) free((void *)tensor[i].data);
  free(tensor);
}

static void serve(worker *w) {
  char line[4096];
  printf("{\"ready\": true}\n");
  while (fflush(stdout), fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    double loss = 0;
    if (!strcmp(line, "run")) {
      double begin = ch_machine_seconds();
      w->run(w, &loss);
      printf("{\"seconds\": %.9f, \"loss\": %.9g, \"flops\": %.9g}\n", ch_machine_seconds() - begin, loss, w->flops);
    } else if (!strncmp(line, "save ", 5)) {
      save(w, line + 5);
      printf("{\"saved\": true}\n");
    } else {
      check(ch_error(CHOIR_ERROR_ARGUMENT, "'%s' is neither run nor save", line));
    }
  }
}

static void print_peak(int threads) {
  ch_peak p;
  check(ch_backend_peak("cpu", threads, 0.5, 1, &p));
  printf(
      "{\"threads\": %d, \"fp32\": %.6g, \"bf16\": %.6g, \"isa\": \"%s\", \"bf16_unit\": \"%s\", \"read_gbs\": %.6g}\n",
      p.threads, p.fp32_gflops, p.bf16_gflops, p.isa, p.bf16_unit, p.read_gbs);
}

int main(int argc, char **argv) {
  static worker w;
  if (argc == 3 && !strcmp(argv[1], "peak")) return print_peak(atoi(argv[2])), 0;
  if (argc != 6) return fprintf(stderr, "choir_worker: see the head of choir_worker.c\n"), 2;
  if (!strcmp(argv[1], "layer"))
    open_layer(&w, argv);
  else
    open_step(&w, argv);
  serve(&w);
  return 0;
}
