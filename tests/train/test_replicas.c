/* Replicas and hidden shards of experts in a whole run: all of them have the same bits, two runs of one layout leave
 * the same bytes, a checkpoint of one layout resumes in any other, and layouts that do not fit are refused.
 * grad_replicas.c compares gradients with one process. */
#include "base/hash.h"
#include "choir/choir.h"
#include "comm/collective.h"
#include "forked_comm.h"
#include "handle/ranks.h"
#include "model/config.h"
#include "model_testing.h"
#include "program.h"

enum { STEPS = 4 };

typedef struct {
  int ranks, replicas, hidden;
  int dense_sharded;
} layout;

/* ---- the same bits everywhere ---- */

enum { B = 24, T = 12, BIT_STEPS = 3 };

typedef struct {
  uint64_t bits; /* of all that the rank has in the end */
  double norm;   /* of the first step's gradients */
} trace;

typedef struct {
  choir_config config;
  layout layout;
  trace *of; /* the first rank's, shared */
} bits_job;

/* Hashes this rank's weights and its state of the optimizer. */
static uint64_t hash_trainer(const ch_trainer *t) {
  const ch_params *params = &t->model->net.params;
  uint64_t h = 1;
  for (int i = 0; i < params->count + params->buffers; i++)
    if (!params->p[i].remote) h = XXH64(params->p[i].w, params->p[i].count * (int64_t)sizeof(real), h);
  for (int i = 0; i < params->count; i++)
    for (int s = 0; s < CH_OPTIM_STATES && !params->p[i].remote; s++)
      h = XXH64(t->optimizer.tensor[i].state[s], t->optimizer.tensor[i].state_count[s] * (int64_t)sizeof(real), h);
  return h;
}

/* Nonzero: a rank with the same experts has other bits. */
static int train_bits(const ch_comm *comm, void *context) {
  const bits_job *j = context;
  const choir_ranks ranks = {.comm = comm,
                             .replicas = j->layout.replicas,
                             .hidden = j->layout.hidden,
                             .dense_sharded = j->layout.dense_sharded};
  choir_model_options run = {.size = sizeof run, .backend = "cpu", .threads = 1, .emulate_bf16 = 1, .ranks = &ranks};
  static int32_t token[2 * B * T];
  choir_model *model;
  ch_trainer t;
  choir_trainer_result r;
  test_ok(choir_model_create(&j->config, 5, &run, &model));
  model_trainer(model, &t);
  for (int i = 0; i < BIT_STEPS; i++) {
    model_tokens(token, 2 * B * T, (uint32_t)i);
    test_ok(ch_trainer_step(&t, token, token, &r));
    if (!comm->rank && !i) j->of->norm = r.gradient_norm;
  }
  int64_t mine = (int64_t)(hash_trainer(&t) >> 1);
  int differ = ch_comm_max(&model->x.grid.dp_group, mine) != mine;
  mine = (int64_t)(XXH64(&r.loss, sizeof r.loss, 1) >> 1);
  differ |= ch_comm_max(comm, mine) != mine; /* the loss is that of all */
  if (comm->size > 1) { /* all have counted the same exchanges: they tell one from another by that number */
    mine = comm->traffic->exchanges;
    differ |= ch_comm_max(comm, mine) != mine;
  }
  if (!comm->rank) j->of->bits = hash_trainer(&t);
  ch_trainer_free(&t);
  return differ;
}

static void clip_sums(choir_config *c) { c->train.accumulate = 2, c->train.clip_norm = 0.05; }
static void adamw_in_bf16(choir_config *c) {
  c->train.optimizer = CH_ADAMW;
  c->train.compute = CH_COMPUTE_BF16;
}
static void nothing(choir_config *c) { (void)c; }

/* Layers are updated within backward, or at the end. */
static void replicas_have_the_same_bits(void **state) {
  void (*const set[])(choir_config *) = {nothing, clip_sums, adamw_in_bf16};
  const layout layouts[] = {{4, 2, 1, 0}, {4, 4, 1, 0}, {4, 1, 2, 0}, {6, 2, 1, 0},
                            {8, 4, 1, 1}, {8, 2, 2, 0}, {8, 1, 4, 1}, {4, 2, 1, 1}};
  enum { LAYOUTS = sizeof layouts / sizeof *layouts };
  trace *of = mmap(NULL, sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; ch_router_names[i]; i++) {
    layout l = layouts[i % LAYOUTS];
    bits_job j = {.config = model_config(ch_router_names[i]), .layout = {1, 1, 1, 0}, .of = of};
    if (l.hidden > 1 && j.config.model.experts == 1) l.replicas = l.ranks / l.hidden; /* of one expert one group */
    uint64_t first = 0;
    j.config.train.batch_sequences = j.config.train.grad_chunks = B;
    j.config.train.sequence_length = T;
    set[i % 3](&j.config);
    assert_int_equal(forked_run(1, 0, train_bits, &j), 0);
    double norm = of->norm;
    j.layout = l;
    for (int time = 0; time < 2; time++) {
      if (forked_run(l.ranks, 0, train_bits, &j))
        fail_msg("%s: %d replicas of %d shards on %d ranks differ", ch_router_names[i], l.replicas, l.hidden, l.ranks);
      if (time && of->bits != first) fail_msg("%s: another run, other bits", ch_router_names[i]);
      first = of->bits;
      if (!(fabs(of->norm - norm) <= (i % 3 == 2 ? 1e-2 : 1e-5) * norm)) /* bf16 has 8 bits */
        fail_msg("%s: a gradient norm of %.9g, on one process %.9g", ch_router_names[i], of->norm, norm);
    }
  }
  munmap(of, sizeof *of);
}

/* ---- runs, and what they leave ---- */

typedef struct {
  choir_config config;
  const char *out;
  layout layout;
  int resume, stops; /* stops: after two steps */
  int odd_rank;      /* has one replica; -1: none */
  int code;
  const char *message;
} job;

static int stop_after_two(void *context, const choir_event *e) {
  return *(const int *)context && e->kind == CHOIR_EVENT_STEP && e->step == 2;
}

static int train(const ch_comm *comm, void *context) {
  job *j = context;
  const choir_ranks ranks = {.comm = comm,
                             .replicas = comm->rank == j->odd_rank ? 1 : j->layout.replicas,
                             .hidden = j->layout.hidden,
                             .dense_sharded = j->layout.dense_sharded};
  choir_train_options o = CHOIR_TRAIN_OPTIONS_INIT;
  choir_model_options model = {.size = sizeof model, .threads = 1, .emulate_bf16 = 1, .ranks = &ranks};
  o.config = j->resume ? NULL : &j->config, o.data = j->resume ? NULL : "data", o.out = j->out, o.resume = j->resume;
  o.model = &model;
  o.event = stop_after_two, o.context = &j->stops;
  int code = choir_train(&o);
  if (code == j->code && (!j->message || strstr(choir_error_message(), j->message))) return 0;
  fprintf(stderr, "rank %d of %d: code %d: %s\n", comm->rank, comm->size, code, choir_error_message());
  return 1;
}

static void go(job j) {
  if (forked_run(j.layout.ranks, 0, train, &j)) fail_msg("%s: %d ranks", j.out, j.layout.ranks);
}

static job job_of(const char *out, layout l) {
  job j = {.out = out, .layout = l, .odd_rank = -1};
  test_ok(ch_config_load("config.json", &j.config));
  j.config.train.steps = STEPS;
  j.config.train.batch_sequences = j.config.train.grad_chunks = 24;
  j.config.train.sequence_length = 16;
  j.config.train.eval_every = 2;
  j.config.train.eval_sequences = 11; /* the last batch is not full */
  j.config.train.checkpoint_every = 2;
  program_must("rm -rf %s", out);
  return j;
}

/* Stopped on one layout after two steps, gone on with by another. */
static void stop_and_resume(const char *out, layout first, layout second, const char *compute) {
  job j = job_of(out, first);
  test_ok(choir_config_set(&j.config, "train.compute", compute));
  j.stops = 1;
  j.code = CHOIR_ERROR_INTERRUPTED;
  go(j);
  j = (job){.out = out, .layout = second, .resume = 1, .odd_rank = -1};
  go(j);
}

/* The largest difference between tensors of two files, over the largest number in each; all must be there in both. */
static double difference(const char *a, const char *b) {
  choir_tensors *first, *second;
  double worst = 0;
  test_ok(choir_tensors_load(a, 1, &first));
  test_ok(choir_tensors_load(b, 1, &second));
  assert_int_equal(choir_tensors_count(first), choir_tensors_count(second));
  for (int i = 0; i < choir_tensors_count(first); i++) {
    const choir_tensor *x = choir_tensors_at(first, i), *y = choir_tensors_find(second, x->name);
    assert_true(y && y->bytes == x->bytes);
    if (x->dtype == CHOIR_F32)
      worst = fmax(worst, test_error(x->data, y->data, (int64_t)(x->bytes / sizeof(real))));
    else if (!strcmp(x->name, "run.best_loss")) { /* the bits of a double */
      double losses[2];
      memcpy(&losses[0], x->data, sizeof *losses), memcpy(&losses[1], y->data, sizeof *losses);
      worst = fmax(worst, fabs(losses[0] - losses[1]) / losses[0]);
    } else if (strcmp(x->name, "run.metrics_bytes")) /* digits of a rounded number */
      assert_memory_equal(x->data, y->data, x->bytes);
  }
  choir_tensors_free(first);
  choir_tensors_free(second);
  return worst;
}

/* Rounding of 2^-24 in sums of some hundred terms, through four steps of an optimizer that divides by what it measures;
 * an expert or a state in the wrong place would be off by the size of a step, some hundredths. */
static const double tolerance = 1e-5;

static void same_to_rounding(const char *one, const char *many) {
  static const char *const names[] = {"model", "state"};
  for (int i = 0; i < 2; i++) {
    char a[200], b[200];
    snprintf(a, sizeof a, "%s/checkpoints/%08d/%s.safetensors", one, STEPS, names[i]);
    snprintf(b, sizeof b, "%s/checkpoints/%08d/%s.safetensors", many, STEPS, names[i]);
    double d = difference(a, b);
    if (!(d <= tolerance)) fail_msg("%s: %s differs by %g", many, names[i], d);
  }
}

/* A run that was stopped is one that was not, byte for byte; and what config says nothing of leaves no trace. */
static void resumed_run_is_bit_identical(void **state) {
  const layout l = {8, 2, 2, 0};
  go(job_of("whole", l));
  stop_and_resume("parts", l, l, "fp32");
  assert_true(program_same_runs("whole", "parts", STEPS));
  program_must("rm -rf one");
  go(job_of("one", (layout){1, 1, 1, 0}));
  program_must("cmp one/checkpoints/%08d/config.json whole/checkpoints/%08d/config.json", STEPS, STEPS);
}

/* In bf16 a rank has rounded weights alone of what lives elsewhere: with one replica all is as on one process. */
static void sharded_in_bf16(void **state) {
  const layout one = {1, 1, 1, 0}, sharded = {4, 1, 1, 1}, more = {8, 1, 1, 1};
  stop_and_resume("one16", one, one, "bf16");
  stop_and_resume("many16", sharded, more, "bf16");
  assert_true(program_same_runs("one16", "many16", STEPS));
}

static void resumes_on_any_layout(void **state) {
  const layout layouts[] = {{1, 1, 1, 0}, {4, 1, 1, 1}, {4, 2, 1, 0}, {8, 1, 2, 1},
                            {3, 3, 1, 0}, {8, 2, 4, 0}, {12, 4, 1, 1}};
  enum { LAYOUTS = sizeof layouts / sizeof *layouts };
  go(job_of("one", (layout){1, 1, 1, 0}));
  for (int i = 0; i < LAYOUTS; i++)
    for (int further = 1; further <= 2; further++) {
      stop_and_resume("many", layouts[i], layouts[(i + further) % LAYOUTS], "fp32");
      same_to_rounding("one", "many");
    }
}

/* ---- what looks at a model ---- */

enum { MAX_LOOKED_AT = 1 << 16 };

typedef struct {
  layout layout;
  double loss[3]; /* evaluated, by thresholds, forward */
  int64_t gradients;
  float gradient[MAX_LOOKED_AT];
  uint64_t weights;
} sight;

static void look_at_parameters(choir_model *model, sight *s) {
  s->gradients = 0, s->weights = 1;
  for (int i = 0; i < choir_model_parameter_count(model); i++) {
    choir_parameter p;
    int64_t count = 1;
    test_ok(choir_model_parameter_at(model, i, &p));
    for (int d = 0; d < p.dims; d++) count *= p.shape[d];
    float *values = malloc((size_t)count * sizeof *values);
    test_ok(choir_model_get_parameter(model, i, 0, values));
    s->weights = XXH64(values, count * (int64_t)sizeof *values, s->weights);
    if (p.trained && (strstr(p.name, "experts") || strstr(p.name, "attn.")) && s->gradients + count <= MAX_LOOKED_AT) {
      test_ok(choir_model_get_parameter(model, i, 1, s->gradient + s->gradients));
      s->gradients += count;
    }
    free(values);
  }
}

static int look(const ch_comm *comm, void *context) {
  sight *s = context, own = {.layout = s->layout};
  const choir_ranks ranks = {.comm = comm,
                             .replicas = s->layout.replicas,
                             .hidden = s->layout.hidden,
                             .dense_sharded = s->layout.dense_sharded};
  choir_model_options o = {.size = sizeof o, .threads = 1, .ranks = &ranks};
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_eval_result e;
  choir_forward_result f;
  static int32_t token[24 * 16];
  test_ok(choir_model_load("one", &o, &model, &tokenizer));
  test_ok(choir_eval(model, tokenizer,
                     &(choir_eval_options){.size = sizeof(choir_eval_options), .data = "data", .sequences = 30}, &e));
  own.loss[0] = e.loss;
  choir_eval_result_clear(&e);
  test_ok(choir_model_set_routing(model, "threshold"));
  test_ok(choir_eval(model, tokenizer,
                     &(choir_eval_options){.size = sizeof(choir_eval_options), .data = "data", .sequences = 30}, &e));
  own.loss[1] = e.loss;
  choir_eval_result_clear(&e);
  test_ok(choir_model_set_routing(model, NULL));
  for (int i = 0; i < 24 * 16; i++) token[i] = i * i % 61;
  test_ok(choir_model_forward(model, 24, 16, token, NULL, 1, &f));
  own.loss[2] = f.loss;
  look_at_parameters(model, &own);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  if (!comm->rank) *s = own;
  return 0;
}

/* Evaluation, forward passes, gradients and weights that callers ask for. */
static void results_are_those_of_one_process(void **state) {
  const layout layouts[] = {{4, 2, 1, 0}, {6, 3, 1, 1}, {4, 4, 1, 0}, {4, 1, 2, 0}, {8, 2, 2, 1}};
  sight *one = mmap(NULL, 2 * sizeof *one, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *many = one + 1;
  go(job_of("one", (layout){1, 1, 1, 0}));
  one->layout = (layout){1, 1, 1, 0};
  assert_int_equal(forked_run(1, 0, look, one), 0);
  assert_true(one->gradients > 1000);
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    many->layout = layouts[i];
    assert_int_equal(forked_run(layouts[i].ranks, 0, look, many), 0);
    assert_true(many->weights == one->weights && many->gradients == one->gradients);
    for (int k = 0; k < 3; k++)
      if (!(fabs(many->loss[k] - one->loss[k]) <= 1e-6 * one->loss[k]))
        fail_msg("%d replicas, %d shards: loss number %d is %.9g, of one process %.9g", layouts[i].replicas,
                 layouts[i].hidden, k, many->loss[k], one->loss[k]);
    test_close(many->gradient, one->gradient, one->gradients, 1e-5);
  }
  munmap(one, 2 * sizeof *one);
}

static void refuses_by_name(void **state) {
  job j = job_of("refused", (layout){4, 3, 1, 0});
  j.code = CHOIR_ERROR_ARGUMENT;
  j.message = "3 replicas of the experts on 4 processes, which they must divide: take one of 1, 2, 4";
  go(j);
  j = job_of("refused", (layout){4, 2, 1, 0});
  j.code = CHOIR_ERROR_ARGUMENT;
  j.odd_rank = 2;
  j.message = "rank 2 of 4 has another number of replicas than rank 0";
  go(j);
  j = job_of("refused", (layout){6, 2, 2, 0});
  j.code = CHOIR_ERROR_ARGUMENT;
  j.message = "2 hidden shards of the experts on 3 processes of a replica, which they must divide: take one of 1, 3";
  go(j);
  j = job_of("refused", (layout){12, 1, 4, 0}); /* 3 groups of 8 experts */
  j.code = CHOIR_ERROR_ARGUMENT;
  j.message = "4 hidden shards leave 3 groups of ranks";
  go(j);
  choir_ranks alone = {.comm = &ch_comm_single};
  test_fails(choir_ranks_set_layout(&alone, 2, 0, 0), CHOIR_ERROR_ARGUMENT, "2 replicas of the experts on 1 process,");
  test_fails(choir_ranks_set_layout(&alone, 1, -1, 0), CHOIR_ERROR_ARGUMENT,
             "-1 hidden shards of the experts on 1 process,");
  test_ok(choir_ranks_set_layout(&alone, 1, 1, 0));
}

TEST_MAIN(program_setup, program_directory_remove, replicas_have_the_same_bits, resumed_run_is_bit_identical,
          sharded_in_bf16, resumes_on_any_layout, results_are_those_of_one_process, refuses_by_name)
