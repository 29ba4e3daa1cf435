/* Plug-ins in shared libraries: those of this version and of earlier ones, and files that change. */
#include <unistd.h>

#include "base/hash.h"
#include "moe/plugin.h"
#include "plugin_routers.h"

enum { N = 24, E = 4 };

/* examples/own_router.c as a shared library. */
static void from_a_file(void **state) {
  float scores[N * E], gates[N * E];
  ch_router_spec o;
  fill_scores(scores, N, E, 3);
  test_ok(choir_plugin_load(CHOIR_OWN_ROUTER));
  assert_int_equal(strlen(choir_router_version("even_share")), 16);
  assert_null(choir_router_version("topk"));
  o = test_router("even_share");
  o.plugin_options[0] = 3;
  choir_route_request r = {.config = test_config_of(&o), .n = N, .e = E, .scores = scores};
  test_ok(choir_route(&r, gates, NULL));
  int taken = 0;
  for (int i = 0; i < N * E; i++) taken += gates[i] != 0, assert_true(gates[i] == 0 || gates[i] >= 0.75f);
  assert_true(taken);
  assert_int_equal(choir_plugin_load("absent.so"), CHOIR_ERROR_IO);
}

/* A file of 0.4 or 0.5: its function choir_plugin, and the one struct for both kinds. */
static void from_an_earlier_file(void **state) {
  choir_router_info info;
  test_ok(choir_plugin_load(CHOIR_EARLIER_ROUTER));
  test_ok(choir_router_describe("earlier", &info));
  assert_true(info.choices == 0 && info.state == CHOIR_STATE_CUTOFFS && info.loss == CHOIR_LOSS_NONE);
  choir_plugin_router any = own_top2;
  any.name = "any_number", any.choices = 0, any.capacity_factor = 1, any.aux_loss_weight = 0;
  test_ok(choir_router_register(&any)); /* looks nowhere: no thresholds serve it */
  test_ok(choir_router_describe("any_number", &info));
  assert_true(info.choices == 0 && info.state == CHOIR_STATE_NONE);
}

/* dlopen gives the code that is there: a file that was built anew must not lend it its checksum. */
static void file_built_anew(void **state) {
  char path[] = "/tmp/test_plugin_XXXXXX", command[600], version[CHOIR_NAME_BYTES];
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  snprintf(command, sizeof command, "sed s/even_share/ever_share/g '%s' > %s", CHOIR_OWN_ROUTER, path);
  assert_int_equal(system(command), 0);
  test_ok(choir_plugin_load(path));
  snprintf(version, sizeof version, "%s", choir_router_version("ever_share"));
  test_ok(choir_plugin_load(path));
  assert_int_equal(lseek(fd, 0, SEEK_END) > 0 && write(fd, "x", 1) == 1, 1);
  test_fails(choir_plugin_load(path), CHOIR_ERROR_ARGUMENT, "has changed since this process loaded it");
  assert_string_equal(choir_router_version("ever_share"), version);
  close(fd);
  unlink(path);
}

/* A file that changes while it is loaded is refused; one that changes after that has the version of what was loaded. */
static void file_that_changes(void **state) {
  const char *const variables[] = {"CHANGES_WHEN_LOADED", "CHANGES_WHEN_CALLED"}, *const names[] = {"swifter",
                                                                                                    "shorter"};
  for (int i = 0; i < 2; i++) {
    char path[] = "/tmp/test_plugin_XXXXXX", command[600], version[CHOIR_NAME_BYTES];
    uint64_t checksum, after;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command, "sed s/earlier/%s/g '%s' > %s", names[i], CHOIR_EARLIER_ROUTER, path);
    assert_int_equal(system(command), 0);
    test_ok(ch_plugin_read(path, &checksum));
    setenv(variables[i], path, 1);
    if (i) test_ok(choir_plugin_load(path));
    if (!i) test_fails(choir_plugin_load(path), CHOIR_ERROR_BUSY, "changed while it was loaded");
    unsetenv(variables[i]);
    test_ok(ch_plugin_read(path, &after));
    assert_true(after != checksum);
    if (i) assert_string_equal(choir_router_version(names[i]), ch_hex(checksum, version));
    if (!i) assert_null(choir_router_version(names[i]));
    unlink(path);
  }
}

TEST_MAIN(NULL, NULL, from_a_file, from_an_earlier_file, file_built_anew, file_that_changes)
