/* src/device/opencl.c on a driver of OpenCL: a run and what it serves are the CPU's, with products by CLBlast and by
 * the own kernel; what is missing or does not compile is named. The kernels themselves: test_devices and the tests of
 * ops. */
#include <jansson.h>

#include "program.h"

#define SMALL "--set train.steps=4 --set train.eval_every=2 --set train.batch_sequences=2 "
#define NEW "choir train --config config.json --data data " SMALL

static void runs_as_the_cpu_does(void **state) {
  program_needs_opencl();
  static const char *const libraries[] = {"", "CHOIR_OPENCL=libOpenCL.so.1 "}; /* without CLBlast */
  program_must(NEW "--out cpu");
  for (int i = 0; i < 2; i++) {
    program_must("rm -rf one && %s" NEW "--out one --backend opencl", libraries[i]);
    program_close_losses("opencl", "one", "cpu", 4, 1e-5);
    program_must("%schoir devices", libraries[i]);
    const char *products = i ? "products by own kernel" : "products by CLBlast";
    if (!strstr(program_output, products))
      fail_msg("not \"%s\" (apt-get install libclblast1): %s", products, program_output);
  }
}

static void serves(void **state) {
  char *text[2];
  program_needs_opencl();
  for (int i = 0; i < 2; i++) {
    program_must(
        "choir generate cpu --prompt 'kalo miten' --max-tokens 20 --temperature 0 --json --backend %s 2>/dev/null",
        i ? "opencl" : "cpu");
    json_t *said = program_json();
    text[i] = strdup(json_string_value(json_object_get(said, "text")));
    json_decref(said);
  }
  assert_string_equal(text[0], text[1]);
  free(text[0]), free(text[1]);
}

static void refuses_by_name(void **state) {
  program_needs_opencl();
  program_refuses(1, "parameter", /* the compiler's words */
                  "POCL_EXTRA_BUILD_FLAGS=-Dvoid=7 choir bench gelu count=100 --backend opencl");
  program_refuses(1, "no bf16 products", NEW "--out no --backend opencl --set train.compute=bf16");
  program_refuses(1, "libOpenCL.so.1",
                  "OCL_ICD_VENDORS=/nowhere CHOIR_OPENCL=/nowhere/libOpenCL.so.1 " NEW "--out no --backend opencl");
}

TEST_MAIN(program_setup, program_directory_remove, runs_as_the_cpu_does, serves, refuses_by_name)
