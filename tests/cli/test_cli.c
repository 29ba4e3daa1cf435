/* The program's verbs that need no training: options, help, info, init, forward. */
#include "choir/choir.h"
#include "model/config.h"
#include "moe/router.h"
#include "npy/npy.h"
#include "program.h"

static void usage_errors(void **state) {
  program_refuses(2, "did you mean 'train'", "choir trian");
  program_refuses(2, "did you mean 'data build'", "choir data biuld");
  program_refuses(2, "did you mean --config", "choir train --confg x");
  program_refuses(2, "--out RUN is missing", "choir train --config x --data y");
  program_refuses(2, "--config FILE is missing", "choir train --out r");
  program_refuses(2, "--data DIR is missing", "choir train --out r --config x");
  program_refuses(2, "whole number", "choir init c --out o --seed -1");
  program_refuses(2, "whole number", "choir init c --out o --seed 12x");
  program_refuses(2, "must be 9223372036854775807 at most", "choir init c --out o --seed 9223372036854775808");
  program_refuses(2, "must be 2147483647 at most", "choir forward a b --threads 2147483648");
  program_refuses(2, "did you mean --out run?", "choir train --resume run");
  program_refuses(1, "neither a checkpoint", "mkdir -p plain; choir eval plain");
  program_refuses(2, "must be a number", "choir generate r --prompt a --temperature nan");
  program_refuses(2, "given more than 64 times", "choir info c $(for i in $(seq 65); do echo --set steps=1; done)");
  program_refuses(2, "needs a value", "choir init c --out");
  program_refuses(2, "takes no value", "choir route s --router hash --json=1");
  program_refuses(2, "must be fp32|bf16", "choir forward a b --compute fp3");
  program_refuses(2, "missing operand", "choir forward a");
  program_refuses(2, "unexpected operand 'b'", "choir info a b");
  program_refuses(2, "--prompt is given twice", "choir generate run --prompt a --prompt=b");
  program_refuses(2, "--init-from is given twice", "choir train --init-from a --from b");
  program_refuses(2, "give one of --data", "choir eval r --data d --text t");
  program_refuses(1, "r: cannot open checkpoint: No such file", "choir eval r");
  program_must("mkdir -p kept/checkpoints/00000300 kept/checkpoints/00000400");
  program_refuses(1, "00000100: cannot open checkpoint (the run keeps steps 300, 400): No such file",
                  "choir eval kept/checkpoints/00000100");
  program_refuses(1, "(the run keeps steps 300, 400)", "choir generate kept/checkpoints/00000100 --prompt a");
  program_must("mkdir -p texts && cp c.json texts/page.txt 2>/dev/null || touch texts/page.txt");
  program_refuses(1, "texts/data.json: no data is there (choir data build --out DIR --tokenizer FILE ",
                  "choir train --config pico --data texts --out r");
  program_refuses(1, "nowhere: cannot open data (choir data build", "choir train --config pico --data nowhere --out r");
  program_must("mkdir -p odd/data.path");
  program_refuses(1, "odd/data.path: is a directory", "choir eval odd");
  program_refuses(2, "--in-order has no effect", "choir eval r --text t --in-order");
  program_refuses(2, "--data has no effect", "choir export r --format hf --out x --data d --sequences 0");
  program_refuses(2, "--disk-minutes -1", "choir train --config c --data d --out r --disk-minutes -1");
  program_refuses(2, "give one of --prompt", "choir generate r --prompt a --prompts b");
  program_refuses(2, "unknown escape; use \\f", "choir generate r --prompt a --stop '\\q'");
  program_refuses(2, "belongs to none", "choir data build --out d --tokenizer t a --source x=1:b");
  program_refuses(2, "weight must be a positive", "choir data build --out d --tokenizer t --source x=-1:b");
  program_refuses(2, "names no file", "choir data build --out d --tokenizer t --source x=1:");
  program_refuses(2, "unknown escape; use \\f", "choir data build --out d --tokenizer t --separator '\\q' a");
  program_refuses(1, "nowhere", "choir info nowhere.json");
}

static void help(void **state) {
  static const char *const verbs[] = {"tokenizer train", "data build", "generate", "info",  "init",  "forward",
                                      "route",           "train",      "eval",     "bench", "report"};
  program_must("choir --version");
  assert_string_equal(program_output, "choir " CHOIR_VERSION "\n");
  program_must("choir help pico && choir help expert_choice | grep -q capacity_factor");
  program_must(
      "test -z \"$({ choir help; choir help stats; choir help inspect; choir help base; choir help pico; } | grep "
      "'.\\{81\\}')\"");
  program_must("choir help");
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) assert_non_null(strstr(program_output, verbs[i]));
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    program_must("choir help %s", verbs[i]);
    assert_non_null(strstr(program_output, "Usage: choir "));
    for (char *line = strtok(program_output, "\n"); line; line = strtok(NULL, "\n"))
      if (strncmp(line, "Usage", 5) && strlen(line) > 80)
        fail_msg("choir help %s: line of %zu: %s", verbs[i], strlen(line), line);
    program_must("choir %s --help", verbs[i]);
  }
  program_must("choir help --man .");
  assert_int_equal(access("choir-data-build.1", R_OK), 0);
  program_must("grep -q '^0 success, .*, 4 another' choir.1");
  program_must("choir help help >again; choir help >once; cmp once again; choir help --help | cmp - once");
}

/* All seven sizes of the paper, within the rounding of its figures; the 0.1B ones count their embedding differently. */
static void info_paper(void **state) {
  static const char *const names[] = {"0.1b-dense", "0.1b-16e", "0.1b-32e", "0.1b-64e",
                                      "0.1b-128e",  "8b-dense", "8b-64e"};
  for (int i = 0; i < 7; i++) {
    program_must("choir info %s/configs/%s.json --json", CHOIR_SOURCE_DIR, names[i]);
    json_t *root = program_json(), *paper = json_object_get(root, "paper");
    assert_non_null(paper);
    double ratio = json_at(root, "parameters") / json_at(paper, "parameters");
    double active = json_at(root, "active_parameters") / json_at(paper, "active_parameters");
    if (!(fabs(ratio - 1) < 0.07) || !(fabs(active - 1) < 0.07)) fail_msg("%s: ratios %g, %g", names[i], ratio, active);
    json_decref(root);
  }
  program_must("choir info %s/configs/nano.json", CHOIR_SOURCE_DIR);
  assert_int_equal(strncmp(program_output, "nano: L=4 d=128 h=512 H=4 e=16", 30), 0);
  assert_null(strstr(program_output, "paper"));
}

/* Three digits or two and a unit, the nearest, and never a thousand of one; thousands are parted; MiB are of 1024. */
static void short_numbers(void **state) {
  static const struct {
    int vocabulary; /* 64 parameters each */
    const char *count, *grouped;
  } of[] = {{15, "960", "960"},       {16, "1.0k", "1,024"},      {1561, "99.9k", "99,904"},
            {1562, "100k", "99,968"}, {15617, "999k", "999,488"}, {15618, "1.0M", "999,552"}};
  char count[32], grouped[32], memory[80];
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    program_must("choir info pico --vocab-size %d", of[i].vocabulary);
    const char *row = strstr(program_output, "in the embedding");
    assert_true(row && sscanf(row, "in the embedding %31s %31s", count, grouped) == 2);
    assert_string_equal(count, of[i].count);
    assert_string_equal(grouped, of[i].grouped);
  }
  program_must("choir info pico --json");
  json_t *root = program_json();
  program_must("choir info pico");
  ch_format(memory, sizeof memory, "memory to serve      %.1f MiB, with --compute q8_0 %.1f MiB\n",
            json_at(root, "serve_bytes") / (1 << 20), json_at(root, "serve_q8_0_bytes") / (1 << 20));
  assert_non_null(strstr(program_output, memory));
  ch_format(memory, sizeof memory, "  weights %.1f MiB, gradients",
            json_at(json_object_get(root, "train_memory"), "weights") / (1 << 20));
  assert_non_null(strstr(program_output, memory));
  json_decref(root);
}

/* Names stand for the configs of the source, but where a file has that name. */
static void configs_by_name(void **state) {
  program_must("choir configs");
  for (const char *const *name = choir_config_names(); *name; name++) assert_non_null(strstr(program_output, *name));
  program_must(
      "for name in nano pico small 0.1b-16e; do choir info $name --json >by-name;"
      " choir info %s/configs/$name.json --json | cmp - by-name || exit 1; done",
      CHOIR_SOURCE_DIR);
  program_refuses(1, "nanoo: No such file", "choir info nanoo");
  program_must("choir info --json -- nano | grep -q '\"name\": \"nano\"'");
  program_refuses(1, "--json: No such file", "choir info -- --json");
  program_must("echo '{' >pico");
  program_refuses(1, "pico: line 2", "choir info pico");
  program_must("rm pico");
}

/* What looks like a mistake gets its remedy. */
static void hints(void **state) {
  program_refuses(2, "--steps; it is a field of the config: --set steps=VALUE", "choir train --steps 4");
  program_refuses(2, "did you mean 'train.learning_rate'?", "choir train --lr 0.1");
  program_refuses(1, "there is no built-in config 'picco', did you mean 'pico'?", "choir info picco");
  program_refuses(1, "made: is token data, not a config; try: choir data info made",
                  "mkdir made; echo {} >made/data.json; choir info made");
  program_refuses(1, "text: is a file, and data is a directory", "echo ka >text; choir data info text");
}

/* Thousands of layers are found by name without walking through all of them for each: in seconds of the processor's
 * time that a machine under any load, and a sanitizer, have to spare. */
static void deep_models(void **state) {
  program_must(
      "echo '{\"model\": {\"vocab_size\": 300, \"layers\": 4096, \"d_model\": 8, \"d_hidden\": 8, \"heads\": 2, "
      "\"experts\": 4}, "
      "\"train\": {\"sequence_length\": 32, \"batch_sequences\": 4}}' >deep.json");
  int32_t few[8] = {1, 2, 3};
  test_ok(ch_npy_write("few.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {1, 8}, .data = few}));
  program_must("ulimit -t 6; choir info deep.json");
  program_must("ulimit -t 12; choir init deep.json --out deep && choir forward deep few.npy");
}

/* A directory stands for the files below it, in the order of their names, without those that begin with a dot. */
static void directories_are_inputs(void **state) {
  program_must(
      "mkdir -p tree/b/c tree/.hidden && echo 'one two three' >tree/b/c/y.txt && echo 'four five' >tree/a.txt && "
      "echo 'six' >tree/z.md && echo 'seven' >tree/.hidden/h.txt && echo 'eight' >tree/.d.txt && ln -s ../a.txt "
      "tree/b/l.txt");
  program_must(
      "mkdir -p tree/e && ln -s ../b tree/e/b && ln -s ../../tree tree/e/up && ln -s nowhere tree/e/dead && mkfifo "
      "tree/e/pipe");
  program_must(
      "choir tokenizer train tree --type char --vocab-size 300 --out tree.model 2>left; "
      "grep -qF 'tree: left out: 2 links to directories, the first tree/e/b; name each to have it read' left && "
      "grep -qF 'tree: left out: 1 link that cannot be followed, tree/e/dead' left && "
      "grep -qF 'tree: left out: 2 names that begin with a dot, the first tree/.d.txt' left && "
      "grep -qF \"tree: left out: 1 name that is no file's, tree/e/pipe\" left");
  program_must(
      "choir data build tree tree/z.md --tokenizer tree.model --out tree-twice 2>said && grep -qF "
      "'is an input for the second time, 2 such in all' said"); /* l.txt is a.txt */
  program_must("choir data build tree --tokenizer tree.model --out tree-all");
  program_must(
      "tr -d ' \\n' <tree-all/data.json | "
      "grep -qF '\"inputs\":[\"tree/a.txt\",\"tree/b/c/y.txt\",\"tree/b/l.txt\",\"tree/z.md\"]'");
  program_must(
      "choir data build --source s:tree/b tree/a.txt --pattern 'y*' --tokenizer tree.model --out tree-some 2>left; ! "
      "test -s left");
  program_must("tr -d ' \\n' <tree-some/data.json | grep -qF '\"inputs\":[\"tree/b/c/y.txt\",\"tree/a.txt\"]'");
  program_refuses(1, "tree: no file in it has a name like *.rst",
                  "choir data build tree --pattern '*.rst' --tokenizer tree.model --out tree-none");
}

/* A field that is set stays set, whether before or after the router that takes it. */
static void settings_in_any_order(void **state) {
  program_must("choir info %s/configs/nano.json --set router.capacity_factor=1.5 --set router.name=switch_top1",
               CHOIR_SOURCE_DIR);
  assert_non_null(strstr(program_output, "switch_top1 c=1.5"));
  program_refuses(1, "'hash' does not take",
                  "choir info %s/configs/nano.json --set router.cap=3 --set router.name=hash", CHOIR_SOURCE_DIR);
  program_refuses(1, "'adafactor' does not take", "choir info %s/configs/nano.json --set beta1=0.5", CHOIR_SOURCE_DIR);
  program_refuses(1, "'train.lr', did you mean 'train.learning_rate'",
                  "choir info %s/configs/nano.json --set train.lr=0.5", CHOIR_SOURCE_DIR);
  program_refuses(1, "model.n_layer', did you mean 'model.layers'",
                  "echo '{\"model\": {\"n_layer\": 3}}' | choir info -");
  program_must(/* other programs' names of fields lead to a hint */
               "for key in lr max_steps batch_size grad_accum seq_len warmup grad_clip dtype eval_interval eval_iters "
               "save_every n_layer n_embd ffn_dim moe_intermediate_size n_head head_dim n_kv_heads use_qk_norm "
               "partial_rotary_factor tie_word_embeddings scoring_func num_experts top_k; do "
               "choir info nano --set $key=1 2>said && exit 1; name=$(sed -n \"s/.*did you mean '\\(.*\\)'.*/\\1/p\" "
               "said);"
               "test -n \"$name\"; choir info nano --set $name=@ 2>said && exit 1;"
               "if grep 'unknown key' said; then exit 1; fi; done");
}

/* The table of routers: every router with what it does, and every option of each with its default. */
static void help_routers(void **state) {
  program_must("choir help routers");
  for (int i = 0; ch_routers[i]; i++) {
    choir_field option;
    const char *at = strstr(program_output, ch_routers[i]->name);
    int count = 0;
    assert_non_null(at);
    assert_string_equal(choir_router_summary(ch_routers[i]->name), ch_routers[i]->summary);
    for (; count < choir_router_option_count(ch_routers[i]->name); count++) {
      char text[CHOIR_KEY_BYTES + CHOIR_VALUE_BYTES];
      test_ok(choir_router_option_at(ch_routers[i]->name, count, &option));
      snprintf(text, sizeof text, "%s=%s", strrchr(option.key, '.') + 1, option.value);
      at = strstr(at, text);
      assert_non_null(at);
    }
    assert_int_equal(choir_router_option_at(ch_routers[i]->name, count, &option), CHOIR_ERROR_ARGUMENT);
    if (!count) assert_non_null(strstr(at, "(no options)"));
  }
  for (int i = 0; i < CH_FIELDS; i++) {
    char line[64];
    if (strncmp(ch_fields[i].path, "model.router.", 13) || ch_fields[i].kind == CH_FIELD_ROUTER) continue;
    snprintf(line, sizeof line, "\n  %s ", ch_fields[i].path + 13);
    assert_non_null(strstr(program_output, line));
  }
}

/* Same seed, same bytes; logits give the loss that is printed; every weight has a gradient. */
static void init_and_forward(void **state) {
  enum { B = 2, T = 16, V = 300 };
  int32_t tokens[B * T];
  for (int i = 0; i < B * T; i++) tokens[i] = (int32_t)ch_rng_below(ch_rng_make(5, CH_STREAM_TEST, 3), (uint64_t)i, V);
  test_ok(ch_npy_write("t.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {B, T}, .data = tokens}));
  program_must("choir init %s/configs/pico.json --vocab-size %d --seed 7 --out a", CHOIR_SOURCE_DIR, V);
  program_must("choir init %s/configs/pico.json --vocab-size %d --seed 7 --out b", CHOIR_SOURCE_DIR, V);
  program_must("cmp a/model.safetensors b/model.safetensors");
  program_must("choir info a --json");
  program_must("choir forward a t.npy --logits l.npy --gradients g.safetensors --json");
  json_t *root = program_json();
  ch_npy logits;
  test_ok(ch_npy_read("l.npy", CH_NPY_FLOAT32, 3, &logits));
  double loss = 0;
  for (int i = 0; i < B * T; i++) {
    const float *row = (const float *)logits.data + (size_t)i * V;
    double sum = 0;
    if (i % T == T - 1) continue;
    for (int v = 0; v < V; v++) sum += exp((double)row[v]);
    loss += (log(sum) - (double)row[tokens[i + 1]]) / (B * (T - 1));
  }
  if (!(fabs(loss - json_at(root, "loss")) < 1e-5 * loss))
    fail_msg("loss %g, from logits %g", json_at(root, "loss"), loss);
  choir_tensors *weights, *gradients;
  test_ok(choir_tensors_load("a/model.safetensors", 1, &weights));
  test_ok(choir_tensors_load("g.safetensors", 1, &gradients));
  for (int i = 0; i < choir_tensors_count(weights); i++) {
    const char *name = choir_tensors_at(weights, i)->name;
    const choir_tensor *g = choir_tensors_find(gradients, name);
    double size = 0;
    if (strstr(name, "thresholds")) continue; /* the router's own: no gradient */
    assert_non_null(g);
    for (size_t j = 0; j < g->bytes / sizeof(float); j++) size += fabs((double)((const float *)g->data)[j]);
    if (!(size > 0 && isfinite(size))) fail_msg("%s: gradient of size %g", name, size);
  }
  choir_tensors_free(weights);
  choir_tensors_free(gradients);
  ch_npy_free(&logits);
  json_decref(root);
  /* a routing that is saved can be replayed, and then gives the same */
  program_must("choir forward a t.npy --save-routes r.npy --logits l.npy");
  program_must("choir forward a t.npy --routes r.npy --logits again.npy --save-routes s.npy --json");
  root = program_json();
  assert_string_equal(json_string_value(json_object_get(root, "routing")), "forced");
  json_decref(root);
  program_must("cmp l.npy again.npy && cmp r.npy s.npy");
  program_refuses(2, "--routing has no effect with --routes", "choir forward a t.npy --routes r.npy --routing batch");
  test_ok(ch_npy_write("few.npy", &(ch_npy){.type = CH_NPY_UINT8, .dims = 3, .shape = {1, 2, 4}, .data = tokens}));
  program_refuses(1, "few.npy: has shape [1,2,4]; this needs [", "choir forward a t.npy --routes few.npy");
  program_refuses(1, "threads is 100000", "choir forward a t.npy --threads 100000");
  tokens[3] = V;
  test_ok(ch_npy_write("t.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {B, T}, .data = tokens}));
  program_refuses(1, "t.npy: token 300 at sequence 0, position 3 is outside the vocabulary of 300",
                  "choir forward a t.npy");
}

TEST_MAIN(program_directory_make, program_directory_remove, usage_errors, help, info_paper, short_numbers, hints,
          help_routers, settings_in_any_order, deep_models, configs_by_name, directories_are_inputs, init_and_forward)
