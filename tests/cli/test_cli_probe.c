/* choir probe and choir forward --routing on a model that was trained for some steps. */
#include "choir/choir.h"
#include "npy/npy.h"
#include "program.h"

static int train(void **state) {
  if (program_setup(state)) return -1;
  int status = program_run("choir train --config config.json --data data --out run --set steps=12 --set eval_every=0");
  if (status) fprintf(stderr, "training, status %d:\n%s\n", status, program_output);
  return status;
}

static const json_t *routing_of(const json_t *root, const char *name) {
  const json_t *rows = json_object_get(root, "routings"), *row;
  size_t i;
  json_array_foreach(rows, i, row) if (!strcmp(json_string_value(json_object_get(row, "routing")), name)) return row;
  fail_msg("no routing %s in: %s", name, program_output);
  return NULL;
}

static const char *verdict(const json_t *row, const char *what) {
  return json_string_value(json_object_get(json_object_get(row, what), "verdict"));
}

static void probes_every_routing(void **state) {
  program_must("choir probe run --text corpus.txt --json");
  json_t *root = program_json();
  assert_string_equal(json_string_value(json_object_get(root, "router")), "expert_choice");
  assert_int_equal((int)json_at(root, "leaks"), 0);
  assert_int_equal((int)json_at(routing_of(root, "batch"), "sequence_length"), 32);
  assert_string_equal(verdict(routing_of(root, "batch"), "looks_ahead"), "changed");
  assert_string_equal(verdict(routing_of(root, "batch"), "depends_on_batch"), "changed");
  assert_string_equal(verdict(routing_of(root, "sequence"), "looks_ahead"), "changed");
  assert_string_equal(verdict(routing_of(root, "sequence"), "depends_on_batch"), "equal");
  assert_string_not_equal(verdict(routing_of(root, "threshold"), "looks_ahead"), "changed");
  assert_string_not_equal(verdict(routing_of(root, "threshold"), "depends_on_batch"), "changed");
  assert_string_not_equal(verdict(routing_of(root, "threshold"), "alone"), "changed");
  json_decref(root);
  program_must("choir probe run --backend reference --routing threshold --batch 2 --length 12");
  assert_non_null(strstr(program_output, "random tokens"));
  assert_non_null(strstr(program_output, "looks ahead:           no (bit-equal"));
  assert_non_null(strstr(program_output, "depends on the batch:  no (bit-equal"));
  assert_null(strstr(program_output, "routing 'batch'"));
}

static void refusals(void **state) {
  int32_t tokens[2 * 6] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 400};
  test_ok(ch_npy_write("t.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {2, 6}, .data = tokens}));
  program_refuses(2, "give one of", "choir probe run --text corpus.txt --tokens t.npy");
  program_refuses(2, "--length has no effect", "choir probe run --tokens t.npy --length 3");
  program_refuses(1, "token 400", "choir probe run --tokens t.npy");
  program_refuses(1, "it has batch, sequence", "choir probe run --routing treshold");
  program_refuses(1, "nowhere", "choir probe run --text nowhere");
  program_refuses(2, "positions", "choir probe run --positions 0");
  program_must("choir init config.json --vocab-size 320 --out fresh");
  program_must("timeout 60 \"$CHOIR\" probe fresh --length 2 --positions 2147483647"); /* one place is all there is */
  program_must("choir probe fresh --length 8");
  assert_non_null(strstr(program_output, "routing 'threshold' skipped: layers.1.moe.thresholds"));
  program_refuses(1, "train the model first", "choir probe fresh --routing threshold");
  program_must("choir probe fresh --batch 3 --length 16"); /* fewer sequences than experts */
  assert_non_null(strstr(program_output, "routing 'position' skipped: router 'expert_choice'"));
  assert_non_null(strstr(program_output, "routing 'batch', loss"));
}

/* The loss says how it came about, and thresholds make it that of causal use. */
static void forward_takes_a_routing(void **state) {
  int32_t tokens[2 * 6] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  test_ok(ch_npy_write("f.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {2, 6}, .data = tokens}));
  program_must("choir forward run f.npy");
  assert_non_null(strstr(program_output, "routing batch (not causal"));
  program_must("choir forward run f.npy --routing threshold --logits two.npy --json");
  json_t *root = program_json();
  assert_string_equal(json_string_value(json_object_get(root, "routing")), "threshold");
  assert_true(json_is_false(json_object_get(root, "looks_across_tokens")));
  json_decref(root);
  test_ok(ch_npy_write("f.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {1, 6}, .data = tokens}));
  program_must("choir forward run f.npy --routing threshold --logits one.npy");
  assert_null(strstr(program_output, "looks across"));
  ch_npy one, two;
  test_ok(ch_npy_read("one.npy", CH_NPY_FLOAT32, 3, &one));
  test_ok(ch_npy_read("two.npy", CH_NPY_FLOAT32, 3, &two));
  test_close((float *)one.data, (float *)two.data, (int64_t)6 * 320, 1e-5);
  ch_npy_free(&one);
  ch_npy_free(&two);
  program_refuses(1, "has no routing 'thresholds'", "choir forward run f.npy --routing thresholds");
  program_refuses(1, "gradients", "choir forward run f.npy --routing threshold --gradients g.safetensors");
}

TEST_MAIN(train, program_directory_remove, probes_every_routing, refusals, forward_takes_a_routing)
