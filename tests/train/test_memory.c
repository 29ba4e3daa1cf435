/* The plan of a run's memory: that of the arenas, and what the system says of a training process. */
#include <sys/resource.h>

#include "model/config.h"
#include "program.h"
#include "train/step.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1 /* shadow memory is no part of the plan */
#else
#define SANITIZED 0
#endif

/* The arenas have what a config costs: with pairs and micro-batches, in any compute type. */
static void plan_is_that_of_the_arenas(void **state) {
  const char *const computes[] = {"fp32", "bf16"};
  for (int i = 0; ch_optim_names[i / 4]; i++) {
    choir_config c;
    choir_model *model;
    choir_config_costs costs;
    ch_trainer t;
    choir_model_options run = {.size = sizeof run, .emulate_bf16 = 1, .threads = 2};
    test_ok(ch_config_load(CHOIR_SOURCE_DIR "/configs/pico.json", &c));
    c.train.compute = ch_word_number(ch_compute_names, computes[i % 2]);
    c.train.optimizer = i / 4;
    c.model.vocab_size = 4096;
    c.train.batch_sequences = 3;
    if (i / 2 % 2) {
      test_ok(choir_config_set(&c, "router.name", "random"));
      c.model.router.consistency_weight = 1;
      c.train.accumulate = 2;
    }
    test_ok(choir_config_get_costs(&c, &costs));
    test_ok(choir_model_create(&c, 1, &run, &model));
    test_ok(ch_trainer_plan(model, &t));
    test_ok(ch_trainer_commit(&t));
    const choir_memory *m = &costs.train_memory;
    assert_int_equal(m->weights, model->weights.size);
    assert_int_equal(m->gradients, model->gradients.size);
    assert_int_equal(m->optimizer, t.state.size);
    assert_int_equal(m->activations, model->x.tape.size);
    assert_int_equal(m->scratch, model->x.scratch.size);
    assert_int_equal(m->total, m->weights + m->gradients + m->optimizer + m->activations + m->scratch + m->process);
    assert_int_equal(m->total, costs.train_bytes);
    ch_trainer_free(&t);
  }
}

/* The largest process among those that have ended: the training, by far. */
static double peak_of_children(void) {
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  return (double)usage.ru_maxrss * 1024;
}

/* docs/training.md promises 3 % of nano's memory. Libraries of other versions take more or less,
 * and some kernels take back those pages of programs and libraries, 13 MiB in all, that nobody has used for a while. */
static void plan_is_what_training_takes(void **state) {
  program_must("choir train --config %s/configs/nano.json --set train.steps=2 --data data --out run", CHOIR_SOURCE_DIR);
  assert_ptr_equal(strstr(program_output, "memory "), program_output); /* before anything else */
  assert_non_null(strstr(program_output, "MiB: weights "));
  double peak = peak_of_children(), planned;
  program_must("choir info --json run");
  json_t *info = program_json(), *parts = json_object_get(info, "train_memory"), *part;
  const char *name;
  double sum = 0;
  json_object_foreach(parts, name, part) sum += json_number_value(part);
  planned = json_at(info, "train_bytes");
  assert_true(sum == planned && planned > 1e8);
  double pages = 13 << 20;
  if (!SANITIZED && !(planned > 0.97 * peak && planned - pages < 1.03 * peak))
    fail_msg("planned %g, taken %g", planned, peak);
  json_decref(info);
}

TEST_MAIN(program_setup, program_directory_remove, plan_is_that_of_the_arenas, plan_is_what_training_takes)
