/* `choir forward` and `choir route` on files, against the reference vectors: what a user compares with an
 * implementation of their own. */
#include "choir/choir.h"
#include "npy/npy.h"
#include "program.h"

#define VECTORS CHOIR_SOURCE_DIR "/tests/vectors/"

static void close_npy(const char *path, const choir_tensor *want, double tolerance) {
  ch_npy got;
  int64_t count = 1;
  test_ok(ch_npy_read(path, CH_NPY_FLOAT32, want->dims, &got));
  for (int i = 0; i < want->dims; i++) assert_int_equal(got.shape[i], want->shape[i]), count *= want->shape[i];
  test_close((const float *)got.data, (const float *)want->data, count, tolerance);
  ch_npy_free(&got);
}

static void forward(void **state) {
  for (const char *const *router = choir_router_names(); *router; router++) {
    char command[512];
    choir_tensors *want, *got;
    snprintf(command, sizeof command,
             "choir forward " VECTORS "model/%s " VECTORS
             "tokens.npy --logits logits.npy --gradients gradients.safetensors "
             "--compute fp32 --json",
             *router);
    program_must("%s", command);
    snprintf(command, sizeof command, VECTORS "model/%s/expected.safetensors", *router);
    test_ok(choir_tensors_load(command, 1, &want));
    test_ok(choir_tensors_load("gradients.safetensors", 1, &got));
    const double *losses = choir_tensors_find(want, "losses")->data;
    double loss = NAN;
    const char *at = strstr(program_output, "\"loss\":");
    if (at) loss = ch_number(at + strlen("\"loss\":"), NULL);
    assert_true(fabs(loss - losses[0]) <= 1e-5);
    close_npy("logits.npy", choir_tensors_find(want, "logits"), 4e-6);
    assert_int_equal(choir_tensors_count(got), choir_tensors_count(want) - 3);
    for (int i = 0; i < choir_tensors_count(got); i++) {
      const choir_tensor *g = choir_tensors_at(got, i), *w = choir_tensors_find(want, g->name);
      assert_true(w && w->bytes == g->bytes);
      test_close((const float *)g->data, (const float *)w->data, (int64_t)(g->bytes / sizeof(float)), 2e-5);
    }
    choir_tensors_free(want);
    choir_tensors_free(got);
  }
}

static void route(void **state) {
  static const struct {
    const char *matrix, *name, *options;
  } cases[] = {
      {"masked", "masked.expert_choice.b2", "--router expert_choice --capacity-factor 2 --logits --valid valid.npy"},
      {"random", "random.expert_choice.s2",
       "--router expert_choice --capacity-factor 2 --logits --pool sequence --length 10"},
      {"affinity", "affinity.gshard_top2.b1", "--router gshard_top2 --capacity-factor 1"},
      {"ties", "ties.switch_top1.b0.5", "--router switch_top1 --capacity-factor 0.5"},
      {"masked", "masked.hash.b1", "--router hash --tokens ids.npy --valid valid.npy"},
      {"one", "one.dense.b1", "--router dense"}};
  choir_tensors *file;
  test_ok(choir_tensors_load(VECTORS "routers.safetensors", 1, &file));
  const choir_tensor *ids = choir_tensors_find(file, "ids"), *valid = choir_tensors_find(file, "masked.valid");
  test_ok(ch_npy_write(
      "ids.npy",
      &(ch_npy){.type = CH_NPY_INT32, .dims = 1, .shape = {ids->shape[0]}, .data = (void *)(uintptr_t)ids->data}));
  test_ok(ch_npy_write(
      "valid.npy",
      &(ch_npy){.type = CH_NPY_UINT8, .dims = 1, .shape = {valid->shape[0]}, .data = (void *)(uintptr_t)valid->data}));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    snprintf(text, sizeof text, "%s.scores", cases[i].matrix);
    const choir_tensor *scores = choir_tensors_find(file, text);
    test_ok(ch_npy_write("scores.npy", &(ch_npy){.type = CH_NPY_FLOAT32,
                                                 .dims = 2,
                                                 .shape = {scores->shape[0], scores->shape[1]},
                                                 .data = (void *)(uintptr_t)scores->data}));
    snprintf(text, sizeof text, "choir route scores.npy --out gates.npy --json %s", cases[i].options);
    program_must("%s", text);
    snprintf(text, sizeof text, "%s.gates", cases[i].name);
    close_npy("gates.npy", choir_tensors_find(file, text), 1e-6);
  }
  choir_tensors_free(file);
}

TEST_MAIN(program_directory_make, program_directory_remove, forward, route)
