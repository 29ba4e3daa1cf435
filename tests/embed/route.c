/* The smallest program on libchoir: routes five tokens to two experts. */
#include <choir/choir.h>
#include <stdio.h>

int main(void) {
  const float scores[5][2] = {{.9f, .1f}, {.8f, .2f}, {.3f, .7f}, {.4f, .6f}, {.5f, .5f}};
  float gates[5][2];
  choir_config *config = NULL;
  if (choir_config_create(&config)) goto failed;
  if (choir_config_set(config, "router.name", "expert_choice")) goto failed;
  if (choir_config_set(config, "router.capacity_factor", "0.8")) goto failed; /* k = 5 * 0.8 / 2 = 2 */
  choir_route_request request = {.config = config, .n = 5, .e = 2, .scores = &scores[0][0]};
  if (choir_route(&request, &gates[0][0], NULL)) goto failed;
  for (int t = 0; t < 5; t++) printf("token %d: %.1f %.1f\n", t, gates[t][0], gates[t][1]);
  choir_config_free(config);
  return !(gates[0][0] == .9f && gates[1][0] == .8f && gates[2][1] == .7f && gates[3][1] == .6f && gates[4][0] == 0);
failed:
  fprintf(stderr, "%s\n", choir_error_message());
  choir_config_free(config);
  return 1;
}
