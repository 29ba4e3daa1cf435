/* One MoE layer of expert choice, forward and backward, on a program's own arrays: it learns to double its input.
 *
 *     cc examples/layer.c $(pkg-config --cflags --libs choir) -o layer && ./layer
 *
 * or, with libchoir inside the program (docs/embedding.md names the libraries that stay shared):
 *
 *     cc examples/layer.c $(pkg-config --cflags choir) -l:libchoir.a $(pkg-config --static --libs choir) -o layer
 *
 * n tokens of width d; e experts of hidden width h. It prints the mean squared error, which falls. */
#include <choir/choir.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 64, D = 16, H = 32, E = 4, STEPS = 300, WEIGHTS = D * E + 2 * E * D * H };

static float random_number(void) { return 2.0f * (float)rand() / (float)RAND_MAX - 1; }

/* The router's weights, then those of the experts' two products, in one array. */
static choir_layer_weights in(float *all) {
  return (choir_layer_weights){.router = all, .w1 = all + D * E, .w2 = all + D * E + E * D * H};
}

int main(void) {
  static float x[N * D], out[N * D], dout[N * D], dx[N * D], weights[WEIGHTS], gradients[WEIGHTS];
  for (int i = 0; i < N * D; i++) x[i] = random_number();
  for (int i = 0; i < WEIGHTS; i++) weights[i] = 0.2f * random_number();
  const choir_layer_weights w = in(weights), g = in(gradients);

  choir_config *config = NULL;
  choir_layer *layer = NULL;
  choir_layer_options options = CHOIR_LAYER_OPTIONS_INIT;
  options.tokens = N, options.d_model = D, options.d_hidden = H, options.experts = E;
  if (choir_config_create(&config)) goto failed;
  options.config = config; /* whose router is expert_choice, unless choir_config_set says another */
  if (choir_layer_create(&options, &layer)) goto failed;
  for (int step = 0; step <= STEPS; step++) {
    double error = 0;
    if (choir_layer_forward(layer, &w, N, x, NULL, NULL, 1, out)) goto failed;
    for (int i = 0; i < N * D; i++) {
      dout[i] = out[i] - 2 * x[i];
      error += (double)dout[i] * dout[i] / (N * D);
    }
    memset(gradients, 0, sizeof gradients); /* backward adds to them */
    if (choir_layer_backward(layer, &w, x, dout, dx, &g)) goto failed;
    for (int i = 0; i < WEIGHTS; i++) weights[i] -= 0.003f * gradients[i];
    if (step % 100 == 0) printf("step %d: %.4f\n", step, error);
  }
  choir_layer_free(layer);
  choir_config_free(config);
  return 0;
failed:
  fprintf(stderr, "%s\n", choir_error_message());
  choir_layer_free(layer);
  choir_config_free(config);
  return 1;
}
