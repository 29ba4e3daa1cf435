/* Weights of 8 bits: every verb that computes takes them, those that keep weights refuse them before they read
 * anything, and a Q8_0 file of llama.cpp's comes in and goes out with its own blocks. */
#include "choir/model.h"
#include "export/gguf_read.h"
#include "export_testing.h"

static int train(void **state) {
  return export_setup(state,
                      "choir train --config config.json --data bpe --out run " MODERN
                      "--set steps=12 --set layers=3 --set dense_layers=0 --set router.name=topk --set "
                      "router.score=softmax --set normalize_gates=true --set experts_per_token=2 --set d_expert=48;"
                      "printf '%s\\n' '{\"context\": \"The\", \"continuation\": \" people\"}' >requests.jsonl");
}

/* Of one command in both types. */
static void loss_is_close(const char *command, const char *key) {
  double loss[2];
  for (int i = 0; i < 2; i++) {
    program_must("%s --compute %s", command, i ? "q8_0" : "fp32");
    json_t *root = program_json();
    loss[i] = json_at(root, key);
    json_decref(root);
  }
  if (!(fabs(loss[1] - loss[0]) < 0.01 * fabs(loss[0]) && loss[0] != loss[1]))
    fail_msg("%s: %g in fp32, %g in q8_0", command, loss[0], loss[1]);
}

static void verbs_take_it(void **state) {
  loss_is_close("choir eval run --data bpe --json", "loss");
  loss_is_close("choir eval run --text corpus.txt --sequences 8 --json", "loss");
  loss_is_close("choir score run --requests requests.jsonl", "log_likelihood");
  program_must("choir stats run --text corpus.txt --compute q8_0");
  program_must("choir inspect run --text corpus.txt --compute q8_0 --out page.html && test -s page.html");
  program_must("choir generate run --prompt The --max-tokens 20 --compute q8_0 --threads 1 --seed 3 >one.txt");
  program_must("choir generate run --prompt The --max-tokens 20 --compute q8_0 --threads 3 --seed 3 >three.txt");
  assert_true(program_same("one.txt", "three.txt"));
}

/* None of these files is there: the refusal comes first. */
static void weights_are_not_kept(void **state) {
  program_refuses(2, "q8_0: its rounded weights are not for saving",
                  "choir calibrate absent --text corpus.txt --compute q8_0 --out x");
  program_refuses(1, "train.compute is \"q8_0\": must be one of: fp32, bf16",
                  "choir train --config config.json --data absent --set compute=q8_0 --out x");
  program_refuses(1, "train.compute is \"q8_0\": must be one of: fp32, bf16",
                  "choir finetune --init-from run --task sst2 --data absent --set compute=q8_0 --out x");
  program_refuses(2, "q8_0: its rounded weights are not for --gradients",
                  "choir forward absent t.npy --gradients g.safetensors --compute q8_0");
  assert_int_not_equal(access("x", F_OK), 0);
}

static void open_gguf(const char *path, ch_gguf_in *in) { test_ok(ch_gguf_open(path, in)); }

/* Sets a block of a tensor of Q8_0 in a file. */
static void set_block(const char *path, const char *tensor, int64_t block, uint16_t scale,
                      const int8_t q[CH_Q8_VALUES]) {
  ch_gguf_in in;
  open_gguf(path, &in);
  const choir_tensor *t = choir_tensors_find(in.tensors, tensor);
  assert_non_null(t);
  assert_int_equal(t->dtype, CHOIR_U8);
  long at = (long)((const char *)t->data - (const char *)in.tensors->map->at) + (long)block * CH_Q8_BYTES;
  ch_gguf_close_in(&in);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, at, SEEK_SET), 0);
  assert_true(fwrite(&scale, sizeof scale, 1, file) == 1 && (!q || fwrite(q, CH_Q8_VALUES, 1, file) == 1));
  assert_int_equal(fclose(file), 0);
}

/* Blocks of llama.cpp, whose largest byte is 127, and blocks of others. */
static void blocks_come_back(void **state) {
  ch_gguf_in in, out;
  int blocks = 0, whole = 0;
  program_must("choir export run --format gguf --dtype q8_0 --out in.gguf --sequences 0");
  for (int i = 0; i < 3; i++) {
    static const int max[] = {100, 128, 1};
    int8_t q[CH_Q8_VALUES] = {1};
    for (int k = 1; k < CH_Q8_VALUES; k++) q[k] = (int8_t)(k * 61 % (2 * max[i]) - max[i]);
    set_block("in.gguf", "blk.0.ffn_gate_exps.weight", i, (uint16_t)(0x2001 + i), q);
    set_block("in.gguf", "blk.1.attn_q.weight", i, (uint16_t)(3 + i), q);
  }
  program_must(
      "choir import in.gguf --out back && choir export back --format gguf --dtype q8_0 --out out.gguf --sequences 0");
  open_gguf("in.gguf", &in);
  open_gguf("out.gguf", &out);
  for (int i = 0; i < choir_tensors_count(in.tensors); i++) {
    const choir_tensor *t = choir_tensors_at(in.tensors, i), *u = choir_tensors_find(out.tensors, t->name);
    blocks += t->dtype == CHOIR_U8, whole += t->dtype == CHOIR_F32;
    if (!u || u->dtype != t->dtype || u->bytes != t->bytes || memcmp(u->data, t->data, t->bytes))
      fail_msg("%s: not what was imported", t->name);
  }
  assert_true(blocks > 10 && whole > 3); /* types are mixed: rows of 48 values are no blocks */
  ch_gguf_close_in(&in);
  ch_gguf_close_in(&out);
}

/* With compute q8_0 the matrices have the file's values, those that were F32 there are rounded. */
static void blocks_are_used(void **state) {
  choir_model *model[2];
  int exact = 0, rounded = 0;
  for (int i = 0; i < 2; i++) {
    choir_model_options o = CHOIR_MODEL_OPTIONS_INIT;
    o.compute = i ? "q8_0" : "fp32";
    test_ok(choir_model_load("back", &o, &model[i], NULL));
  }
  for (int i = 0; i < choir_model_parameter_count(model[0]); i++) {
    choir_parameter p;
    test_ok(choir_model_parameter_at(model[0], i, &p));
    int64_t count = p.shape[0] * (p.dims > 1 ? p.shape[1] : 1) * (p.dims > 2 ? p.shape[2] : 1);
    float *want = test_new(count), *got = test_new(count);
    test_ok(choir_model_get_parameter(model[0], i, 0, want));
    test_ok(choir_model_get_parameter(model[1], i, 0, got));
    int same = !memcmp(want, got, (size_t)count * sizeof *want);
    if (same != !strstr(p.name, "experts.w2")) fail_msg("%s: %s", p.name, same ? "exact" : "rounded");
    same ? exact++ : rounded++;
    free(want), free(got);
  }
  assert_true(exact > 10 && rounded == 3);
  choir_model_free(model[0]), choir_model_free(model[1]);
}

/* A GGUF file given as a checkpoint, and an imported model, which has no data to measure. */
static void next_steps_are_named(void **state) {
  program_refuses(1, "in.gguf: is a GGUF file; 'choir import in.gguf --out DIR' makes a checkpoint of it",
                  "choir generate in.gguf --prompt The --compute q8_0");
  program_refuses(2, "give --data DIR, or --sequences 0", "choir export back --format gguf --dtype q8_0 --out x");
  program_refuses(2, "give --data DIR or --text FILE", "choir eval back --compute q8_0");
}

static void odd_blocks_are_refused(void **state) {
  static const uint16_t odd[] = {0x7C00, 0xFC00, 0x7E00}; /* infinities, NaN */
  for (int i = 0; i < 3; i++) {
    program_must("cp in.gguf odd.gguf");
    set_block("odd.gguf", "blk.1.ffn_up_exps.weight", 5, odd[i], NULL);
    program_refuses(1, "odd.gguf: tensor 'blk.1.ffn_up_exps.weight' has a value that is not finite",
                    "choir import odd.gguf --out x");
  }
  assert_int_not_equal(access("x", F_OK), 0);
}

TEST_MAIN(train, program_directory_remove, verbs_take_it, weights_are_not_kept, blocks_come_back, blocks_are_used,
          next_steps_are_named, odd_blocks_are_refused)
