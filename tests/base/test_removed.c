/* Words of earlier versions are refused by name, wherever they are given. */
#include "choir/choir.h"
#include "program.h"
#include "testing.h"

static void a_removed_routing_is_named(void **state) {
  choir_routing_properties p;
  test_fails(choir_router_get_properties("expert_choice", "adaptive", &p), CHOIR_ERROR_ARGUMENT,
             "routing 'adaptive' was removed in 0.6; 0.5 has it: take 'threshold'");
  test_fails(choir_router_get_properties("expert_choice", "adaptiv", &p), CHOIR_ERROR_ARGUMENT,
             "has no routing 'adaptiv'");
}

static void a_removed_backend_is_named(void **state) {
  test_fails(choir_backend_check("opencl"), CHOIR_ERROR_ARGUMENT,
             "backend 'opencl' was removed in 0.6; 0.5 has it: take 'cpu' or 'cuda'");
  test_fails(choir_backend_check("opencl:1"), CHOIR_ERROR_ARGUMENT, "backend 'opencl' was removed in 0.6");
  test_fails(choir_backend_check("openc"), CHOIR_ERROR_ARGUMENT, "backend 'openc' is not in this build");
}

TEST_MAIN(NULL, NULL, a_removed_routing_is_named, a_removed_backend_is_named)
