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

/* MATRIX.WHAT of a file of vectors/ as PATH; `logits`, of which softmax makes these scores. */
static void write_npy(const char *path, const choir_tensors *file, const char *matrix, const char *what, int type,
                      int logits) {
  char name[64];
  snprintf(name, sizeof name, "%s.%s", matrix, what);
  const choir_tensor *t = choir_tensors_find(file, name);
  void *data = malloc(t->bytes);
  memcpy(data, t->data, t->bytes);
  for (size_t j = 0; logits && j < t->bytes / sizeof(float); j++) ((float *)data)[j] = logf(((float *)data)[j]);
  ch_npy array = {.type = type, .dims = t->dims, .shape = {t->shape[0], t->dims > 1 ? t->shape[1] : 0}, .data = data};
  test_ok(ch_npy_write(path, &array));
  free(data);
}

static void route(void **state) {
  static const struct {
    const char *router, *matrix, *name, *options;
  } cases[] = {{"expert_choice", "padded", "c2", "--capacity-factor 2 --valid valid.npy"},
               {"expert_choice", "random", "sequence", "--capacity-factor 2 --logits --pool sequence --length 8"},
               {"gshard_top2", "random", "c1", "--capacity-factor 1"},
               {"switch_top1", "tied", "c1.25", ""},
               {"hash", "padded", "ids", "--tokens ids.npy --valid valid.npy"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    choir_tensors *file;
    char text[256];
    snprintf(text, sizeof text, CHOIR_SOURCE_DIR "/vectors/%s.safetensors", cases[i].router);
    test_ok(choir_tensors_load(text, 1, &file));
    int logits = strstr(cases[i].options, "--logits") != NULL;
    write_npy("scores.npy", file, cases[i].matrix, "scores", CH_NPY_FLOAT32, logits);
    write_npy("ids.npy", file, cases[i].matrix, "tokens", CH_NPY_INT32, 0);
    write_npy("valid.npy", file, cases[i].matrix, "valid", CH_NPY_UINT8, 0);
    snprintf(text, sizeof text, "choir route scores.npy --out gates.npy --json --router %s %s", cases[i].router,
             cases[i].options);
    program_must("%s", text);
    snprintf(text, sizeof text, "%s.%s.gates", cases[i].matrix, cases[i].name);
    close_npy("gates.npy", choir_tensors_find(file, text), 1e-6);
    choir_tensors_free(file);
  }
}

TEST_MAIN(program_directory_make, program_directory_remove, forward, route)
