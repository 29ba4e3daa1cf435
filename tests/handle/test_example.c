/* examples/expert_choice.c gives what libchoir's layer gives, forward and backward. */
#include "choir/layer.h"
#include "testing.h"

#define main example_main
#include "../../examples/expert_choice.c"  // NOLINT
#undef main

enum { N = 37, D = 12, H = 20, E = 5 };

static float *some(int64_t count, uint32_t sub) {
  float *numbers = test_new(count);
  test_normal(numbers, count, sub);
  return numbers;
}

static void gives_what_the_library_gives(void **state) {
  float *x = some(N * D, 1), *Wg = some(D * E, 2), *W1 = some(E * D * H, 3), *W2 = some(E * D * H, 4),
        *dout = some(N * D, 5), *out = test_new(N * D), *dx = test_new(N * D);
  choir_layer_weights weights = {.router = Wg, .w1 = W1, .w2 = W2},
                      gradients = {.router = test_new(D * E), .w1 = test_new(E * D * H), .w2 = test_new(E * D * H)};
  choir_layer_options options = CHOIR_LAYER_OPTIONS_INIT;
  options.tokens = N, options.d_model = D, options.d_hidden = H, options.experts = E;
  const ch_router_spec router = test_router("expert_choice");
  options.config = test_config_of(&router);
  choir_layer *layer;
  test_ok(choir_layer_create(&options, &layer));
  test_ok(choir_layer_forward(layer, &weights, N, x, NULL, NULL, 1, out));
  test_ok(choir_layer_backward(layer, &weights, x, dout, dx, &gradients));

  sizes m = {.n = N, .d = D, .h = H, .e = E, .k = (int)(N * router.capacity_factor / E + 0.5)};
  int token[E * N];
  kept c = {.S = test_new(N * E), .token = token, .A = test_new(E * N * H), .Y = test_new(E * N * D)};
  float *ours = test_new(N * D), *dours = test_new(N * D), *dWg = test_new(D * E), *dW1 = test_new(E * D * H),
        *dW2 = test_new(E * D * H);
  forward(m, x, Wg, W1, W2, &c, ours);
  backward(m, x, Wg, W1, W2, &c, dout, dours, dWg, dW1, dW2);
  test_close(ours, out, N * D, 1e-5);
  test_close(dours, dx, N * D, 1e-5);
  test_close(dWg, gradients.router, D * E, 1e-5);
  test_close(dW1, gradients.w1, E * D * H, 1e-5);
  test_close(dW2, gradients.w2, E * D * H, 1e-5);

  choir_layer_free(layer);
  float *all[] = {x,   Wg,  W1,   W2,    dout, out, dx, gradients.router, gradients.w1, gradients.w2, c.S,
                  c.A, c.Y, ours, dours, dWg,  dW1, dW2};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

TEST_MAIN(NULL, NULL, gives_what_the_library_gives)
