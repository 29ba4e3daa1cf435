/* Routers defined in a Python file. Python runs in a separate process, to which the program sends requests over a
 * socket: so the program does not need Python's library, works with MPI, and reports a crash of Python as an error. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli.h"

/* Requests: CHOICE, followed by scores [n,e] float, valid [n] and state [e]; STATE, followed by demand [e] and
 * state; LOSS, followed by scores, valid and chosen [n,e]; RANKING, followed by scores and valid.
 * python/choir/_serve.py reads them. The response is an int: 0, and chosen [n,e], state [e], the loss and its gradient
 * [n,e] float, or the ranking [n,e] float; or nonzero, and an error message. */
enum { CHOICE, STATE, LOSS, RANKING };
typedef struct {
  int32_t router, n, e, sequence_length, capacity, training, layer, asks, choices;
  uint64_t seed, first;
  double options[CHOIR_PLUGIN_OPTIONS];
} question;

typedef struct {
  int socket, number; /* number: index of the router in its file */
} python_router;

static int move(int socket, void *bytes, size_t count, int sends) {
  for (char *at = bytes; count;) {
    ssize_t n = sends ? send(socket, at, count, MSG_NOSIGNAL) : recv(socket, at, count, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    at += n, count -= (size_t)n;
  }
  return 0;
}

typedef struct {
  const void *bytes;
  size_t count;
} sent_array;

/* Sends a request with three arrays and reads `bytes` of response, or an error message. */
static int request(const python_router *r, const choir_plugin_call *call, int asks, const sent_array parts[3],
                   void *answer, size_t bytes) {
  int32_t code = 0;
  question q = {.router = r->number,
                .n = call->n,
                .e = call->e,
                .sequence_length = call->sequence_length,
                .capacity = call->capacity,
                .training = call->training,
                .layer = call->layer,
                .asks = asks,
                .choices = call->choices,
                .seed = call->seed,
                .first = call->first};
  memcpy(q.options, call->options, sizeof q.options);
  int lost = move(r->socket, &q, sizeof q, 1);
  for (int i = 0; i < 3 && !lost; i++) lost = move(r->socket, (void *)parts[i].bytes, parts[i].count, 1);
  if (!lost) lost = move(r->socket, &code, sizeof code, 0);
  if (!lost && !code) lost = move(r->socket, answer, bytes, 0);
  if (!lost && code) lost = move(r->socket, call->message, CHOIR_PLUGIN_MESSAGE_BYTES, 0);
  if (lost) strcpy(call->message, "the Python process of the plug-in has ended");
  return lost || code;
}

static int request_choice(void *context, const choir_plugin_call *call, uint8_t *chosen) {
  size_t n = (size_t)call->n, e = (size_t)call->e;
  const sent_array parts[] = {
      {call->scores, n * e * sizeof(float)}, {call->valid, n}, {call->state, e * sizeof(double)}};
  return request(context, call, CHOICE, parts, chosen, n * e);
}

static int request_state(void *context, const choir_plugin_call *call, const int64_t *demand, double *state) {
  size_t e = (size_t)call->e;
  const sent_array parts[] = {{demand, e * sizeof *demand}, {state, e * sizeof *state}, {NULL, 0}};
  return request(context, call, STATE, parts, state, e * sizeof *state);
}

static int request_loss(void *context, const choir_plugin_call *call, const uint8_t *chosen, double *loss,
                        float *gradient) {
  size_t n = (size_t)call->n, e = (size_t)call->e;
  const sent_array parts[] = {{call->scores, n * e * sizeof(float)}, {call->valid, n}, {chosen, n * e}};
  if (request(context, call, LOSS, parts, loss, sizeof *loss)) return 1;
  return move(((python_router *)context)->socket, gradient, n * e * sizeof *gradient, 0);
}

static int ask_for_ranking(void *context, const choir_plugin_call *call, float *ranking) {
  size_t n = (size_t)call->n, e = (size_t)call->e;
  const sent_array parts[] = {{call->scores, n * e * sizeof(float)}, {call->valid, n}, {NULL, 0}};
  return request(context, call, RANKING, parts, ranking, n * e * sizeof *ranking);
}

static double json_number(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}

static int register_router(const json_t *json, choir_router_common *common) {
  choir_depends_on depends_on = (choir_depends_on)json_number(json, "depends_on");
  double capacity_factor = json_number(json, "capacity_factor");
  if (json_is_true(json_object_get(json, "experts_choose"))) {
    common->size = sizeof(choir_experts_choose);
    return choir_router_register_experts(&(choir_experts_choose){*common, depends_on, capacity_factor});
  }
  common->size = sizeof(choir_tokens_choose);
  return choir_router_register_tokens(
      &(choir_tokens_choose){.common = *common,
                             .depends_on = depends_on,
                             .experts_per_token = (int)json_number(json, "experts_per_token"),
                             .experts_per_token_option = (int)json_number(json, "experts_per_token_option"),
                             .capacity_factor = capacity_factor,
                             .observe = json_is_true(json_object_get(json, "has_observe")) ? request_state : NULL});
}

/* Registers a router. The socket, the definition and its context stay for the lifetime of the program. */
static int add_router(int socket, int number, const json_t *json) {
  python_router *context = malloc(sizeof *context);
  if (!context) return cli_fail_with("no memory for a router");
  *context = (python_router){socket, number};
  choir_router_common common = {.name = json_string_value(json_object_get(json, "name")),
                                .summary = json_string_value(json_object_get(json, "summary")),
                                .file = json_string_value(json_object_get(json, "file")),
                                .version = json_string_value(json_object_get(json, "version")),
                                .draws = (int)json_number(json, "draws"),
                                .normalize_gates = (int)json_number(json, "normalize_gates"),
                                .aux_loss_weight = json_number(json, "aux_loss_weight"),
                                .choose = request_choice,
                                .loss = json_is_true(json_object_get(json, "has_loss")) ? request_loss : NULL,
                                .rank = json_is_true(json_object_get(json, "ranks")) ? ask_for_ranking : NULL,
                                .context = context};
  json_t *options = json_object_get(json, "options");
  for (size_t i = 0; i < json_array_size(options) && i < CHOIR_PLUGIN_OPTIONS; i++) {
    const json_t *o = json_array_get(options, i);
    common.options[i] = (choir_plugin_option){.name = json_string_value(json_object_get(o, "name")),
                                              .help = json_string_value(json_object_get(o, "help")),
                                              .value = json_number(o, "value"),
                                              .low = json_number(o, "low"),
                                              .high = json_number(o, "high")};
  }
  return register_router(json, &common) ? cli_fail() : 0;
}

/* Reads the list of routers in the file: its length, then JSON. */
static int read_routers(int socket, const char *file) {
  int32_t size;
  enum { MAX = 1 << 20 };
  char *text = NULL;
  json_t *json = NULL;
  if (!move(socket, &size, sizeof size, 0) && size > 0 && size < MAX && (text = malloc((size_t)size)) &&
      !move(socket, text, (size_t)size, 0))
    json = json_loadb(text, (size_t)size, 0, NULL);
  free(text);
  int status = json ? 0 : cli_fail_with("plug-in %s: Python ended before it returned a router", file);
  if (json && !json_array_size(json))
    status = cli_fail_with(
        "plug-in %s: has no router: no function in it is decorated with @choir.experts_choose(...) or "
        "@choir.tokens_choose(...)",
        file);
  for (size_t i = 0; i < json_array_size(json) && !status; i++)
    status = add_router(socket, (int)i, json_array_get(json, i));
  json_decref(json);
  return status;
}

/* The child process: Python, which reads requests from its end of the socket until the program ends. */
static void become_python(int socket, const char *file) {
  char number[16];
  snprintf(number, sizeof number, "%d", socket);
  dup2(STDERR_FILENO, STDOUT_FILENO); /* output of a router is not a result of the program */
  cli_python("--plugin", "choir._serve", "cffi,numpy,choir", 2, (const char *const[]){number, file});
  _exit(CLI_FAILED);
}

int cli_load_python(const char *file) {
  int pair[2];
  if (access(file, R_OK)) return cli_fail_with("plug-in %s: %s", file, strerror(errno));
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return cli_fail_with("plug-in %s: %s", file, strerror(errno));
  pid_t child = fork();
  if (child < 0) return cli_fail_with("plug-in %s: %s", file, strerror(errno));
  close(pair[child ? 1 : 0]);
  if (!child) become_python(pair[1], file);
  fcntl(pair[0], F_SETFD, FD_CLOEXEC); /* otherwise a program started by this one would keep Python alive */
  return read_routers(pair[0], file);
}
