/* choir export and choir import: a model with experts by thresholds goes out as a stock router with null experts and
 * comes back as one, with the same logits; and refusals. */
#include <sys/stat.h>

#include "choir/tensors.h"
#include "export/gguf_read.h"
#include "export_testing.h"
#include "npy/npy.h"

static int train(void **state) {
  return export_setup(
      state, "choir train --config config.json --data bpe --out run " MODERN
             "--set steps=12 --set layers=3 --set model.name=voices --set qk_norm=true --set rope_fraction=0.5 --set "
             "head_scale=0.3;"
             "choir init config.json --vocab-size 320 --out old --tokenizer tokenizer.model;"
             "choir init config.json --out fresh --tokenizer bpe.model " MODERN
             "; choir init config.json --out dense --tokenizer tokenizer.model --set moe_every=0 "
             "--set position=rope --set activation=swiglu --set tied=false");
}

/* Logits of some tokens, [2,16,320]. */
static ch_npy logits_of(const char *checkpoint) {
  int32_t tokens[2 * 16];
  ch_npy found;
  for (int i = 0; i < 32; i++) tokens[i] = (i * 37 + 11) % 320;
  test_ok(ch_npy_write("t.npy", &(ch_npy){.type = CH_NPY_INT32, .dims = 2, .shape = {2, 16}, .data = tokens}));
  program_must("choir forward %s t.npy --routing threshold --logits l.npy", checkpoint);
  test_ok(ch_npy_read("l.npy", CH_NPY_FLOAT32, 3, &found));
  return found;
}

static void same_logits(const char *one, const char *other, double within) {
  ch_npy a = logits_of(one), b = logits_of(other);
  test_close((float *)a.data, (float *)b.data, (int64_t)2 * 16 * 320, within);
  ch_npy_free(&a);
  ch_npy_free(&b);
}

static void export_and_import_give_equal_weights(void **state) {
  program_must("choir export run --format hf --out folder --experts-per-token 4 --sequences 0");
  /* vLLM does not tie the head of this architecture, so the folder has a head; imported, the model is tied again. */
  program_must(
      "grep -q '\"tie_word_embeddings\": false' folder/config.json; grep -aq lm_head.weight folder/model.safetensors");
  program_must("choir import folder --out back --tokenizer bpe.model");
  assert_non_null(strstr(program_output, "Glm4MoeForCausalLM"));
  program_must("grep -q '\"tied\": true' back/config.json");
  ch_npy before = logits_of("run"), after = logits_of("back");
  test_close((float *)before.data, (float *)after.data, (int64_t)2 * 16 * 320, 1e-5);
  ch_npy_free(&after);
  program_must("choir export run --format hf --out one --experts-per-token 1 --sequences 0");
  program_must("choir import one --out other --tokenizer bpe.model");
  after = logits_of("other"); /* a limit changes something, so that the comparison above could fail */
  double max = 0;
  for (int i = 0; i < 2 * 16 * 320; i++) max = fmax(max, fabs(((float *)before.data)[i] - ((float *)after.data)[i]));
  assert_true(max > 1e-3);
  ch_npy_free(&before);
  ch_npy_free(&after);
}

/* Back from a file of llama.cpp's: what the folder gives, to the bytes of its weights, tokenizer and all; and from
 * fewer bits nearly that: 0.04 to 0.09 off, by the model, which another SentencePiece makes another one. A dense one
 * has its rotated rows interleaved there. */
static void import_of_gguf_gives_equal_weights(void **state) {
  static const struct {
    const char *dtype;
    double within;
    int file_type; /* what llama.cpp calls it: mostly F32, BF16, Q8_0 */
  } types[] = {{"f32", 1e-5, 0}, {"bf16", 0.2, 32}, {"q8_0", 0.2, 7}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    const char *type = types[i].dtype;
    program_must("choir export run --format gguf --dtype %s --out %s.gguf --experts-per-token 4 --sequences 0", type,
                 type);
    program_must("choir import %s.gguf --out from-%s", type, type);
    char name[32];
    ch_gguf_in in;
    snprintf(name, sizeof name, "%s.gguf", type);
    test_ok(ch_gguf_open(name, &in));
    assert_int_equal(json_at(in.keys, "general.file_type"), types[i].file_type);
    ch_gguf_close_in(&in);
    snprintf(name, sizeof name, "from-%s", type);
    same_logits("run", name, types[i].within);
  }
  program_must(
      "set -e; sed s/voices// from-f32/config.json | cmp - back/config.json; choir tokenizer encode --tokenizer "
      "from-f32 corpus.txt "
      ">there; choir tokenizer encode --tokenizer bpe.model corpus.txt >here; cmp here there");
  program_must(
      "choir init config.json --out flat --tokenizer bpe.model --set moe_every=0 --set position=rope --set "
      "activation=swiglu --set tied=false --set kv_heads=1; choir export flat --format gguf --out flat.gguf "
      "--sequences 0; choir import flat.gguf --out flat-back");
  program_must("choir train --config config.json --data bpe --out every2 " MODERN
               "--set steps=12 --set layers=4 --set qk_norm=true --set dense_layers=0 --set moe_every=2;"
               "choir export every2 --format hf --out every2-hf --experts-per-token 4 --sequences 0; choir import "
               "every2-hf --out every2-folder --tokenizer bpe.model; choir export every2 --format gguf --out "
               "every2.gguf --experts-per-token 4 --sequences 0; choir import every2.gguf --out every2-file");
  same_logits("every2", "every2-folder", 1e-5);
  same_logits("every2", "every2-file", 1e-5);
  same_logits("flat", "flat-back", 1e-5);
}

/* A model that was imported goes out and comes back as the same bytes: softmax, which stock routers have without a
 * bias, and sigmoids with one. Both formats. */
static void imported_models_can_be_exported(void **state) {
  static const struct {
    const char *architecture[2], *set;
  } kinds[] = {{{"MixtralForCausalLM", "llama"}, "router.name=topk --set score=softmax --set normalize_gates=true"},
               {{"Qwen3MoeForCausalLM", "qwen3moe"},
                "router.name=topk --set score=softmax --set normalize_gates=true --set qk_norm=true"},
               {{"Glm4MoeForCausalLM", "glm4moe"},
                "router.name=bias_balanced --set score=sigmoid --set qk_norm=true --set shared_experts=1"}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    program_must("rm -rf in; choir init config.json --out in --tokenizer bpe.model " MODERN
                 "--set %s --set dense_layers=0 --set experts_per_token=2 --set head_scale=1 --set batch_sequences=8",
                 kinds[i].set);
    for (int gguf = 0; gguf < 2; gguf++) {
      const char *format = gguf ? "gguf" : "hf";
      program_must(
          "set -e; rm -rf o1 o2 b1 b2; choir export in --format %s --out o1 --sequences 0; choir import o1 --out b1 "
          "--tokenizer bpe.model; choir export b1 --format %s --out o2 --sequences 0; choir import o2 --out "
          "b2 --tokenizer bpe.model; cmp b1/model.safetensors b2/model.safetensors; cmp b1/config.json "
          "b2/config.json",
          format, format);
      if (!strstr(program_output, kinds[i].architecture[gguf]))
        fail_msg("no %s: %s", kinds[i].architecture[gguf], program_output);
      same_logits("in", "b2", 1e-5);
    }
  }
}

/* A folder's tokenizer.json is read, and gives the tokens that the run's tokenizer does. */
static void reads_a_tokenizer(void **state) {
  static const struct {
    const char *edit, *says;
  } odd[] = {
      {"s/\"BPE\"/\"WordPiece\"/", "model.type is \"WordPiece\""},
      {"s/\"byte_fallback\": true/\"byte_fallback\": false/", "model.byte_fallback is false"},
      {"s/\"ignore_merges\": false/\"ignore_merges\": true/", "model.ignore_merges is true"},
      {"s/\"dropout\": null/\"dropout\": 0.1/", "model.dropout is 0.1"},
      {"s/\"pre_tokenizer\": null/\"pre_tokenizer\": {\"type\": \"Digits\"}/", "pre_tokenizer is {"},
      {"s/\"normalizer\": {/\"normalizer\": {\"odd\": 1,/; s/\"String\": \" \"/\"String\": \"  \"/", "normalizer is {"},
      {"s/\"special\": true/\"special\": false/", "added_tokens is {"},
      {"s/\"<0x41>\"/\"<0x411>\"/", "there are not 256 byte pieces"},
      {"s/\"fuse_unk\"/\"fuse_unl\"/", "unknown key 'fuse_unl'"},
      {"/\"merges\"/,/]/{/\"merges\"/n;N;N;N;d}", "which SentencePiece would merge"}};
  program_must(
      "set -e; choir import folder --out own; choir tokenizer encode --tokenizer own corpus.txt >there; "
      "choir tokenizer encode --tokenizer bpe.model corpus.txt >here; cmp here there; "
      "choir tokenizer import folder/tokenizer.json --out t.model; cmp t.model own/tokenizer.model");
  /* of two tokenizer files import takes the one with the model's number of tokens */
  program_must(
      "set -e; cp -r folder both; choir tokenizer train corpus.txt --type char --vocab-size 270 --out "
      "both/tokenizer.model; choir import both --out both-back; cmp both-back/tokenizer.model own/tokenizer.model");
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    program_refuses(1, odd[i].says, "sed '%s' folder/tokenizer.json >odd.json; choir tokenizer import odd.json --out x",
                    odd[i].edit);
}

/* The same model is the same bytes; fewer bits are fewer bytes. */
static void writes_one_file(void **state) {
  struct stat whole, eighth;
  program_must("choir export run --format gguf --out a.gguf --experts-per-token 2 --sequences 0");
  program_must("choir export run --format gguf --out b.gguf --experts-per-token 2 --sequences 8 --threads 1");
  assert_true(program_same("a.gguf", "b.gguf"));
  program_must("choir export run --format gguf --dtype q8_0 --out c.gguf --experts-per-token 2 --sequences 0");
  assert_int_equal(stat("a.gguf", &whole) | stat("c.gguf", &eighth), 0);
  assert_true(eighth.st_size < whole.st_size / 2);
}

/* By default a token has as many experts as in choir, here all four; --cut 0.05 takes the least K that cuts one token
 * in twenty, and what it costs is measured. */
static void chooses_how_many_experts(void **state) {
  program_must("choir export run --format gguf --out all.gguf --json");
  json_t *root = program_json();
  assert_int_equal((int)json_at(root, "experts_per_token"), 4);
  assert_true(json_at(root, "tokens_cut") == 0 && json_at(root, "loss_cut") == json_at(root, "loss"));
  json_decref(root);
  program_must("choir export run --format gguf --out k.gguf --json --cut 0.05");
  root = program_json();
  int K = (int)json_at(root, "experts_per_token");
  assert_true(K >= 1 && K <= 4);
  assert_true(json_at(root, "tokens_cut") <= 0.05);
  assert_true(json_at(root, "tokens") > 100);
  assert_true(json_is_null(json_object_get(root, "loss_written"))); /* f32: nothing is rounded */
  json_decref(root);
  if (K == 1) return;
  program_must("choir export run --format gguf --out k.gguf --json --experts-per-token %d", K - 1);
  root = program_json();
  assert_true(json_at(root, "tokens_cut") > 0.05);
  assert_true(json_at(root, "loss_cut") != json_at(root, "loss"));
  json_decref(root);
}

static void refuses_by_name(void **state) {
  program_refuses(1, "model.position is \"relative\"", "choir export old --format hf --out x --sequences 0");
  program_refuses(1, "no training has set them", "choir export fresh --format hf --out x --sequences 0");
  program_refuses(1, "of type unigram", "choir export dense --format gguf --out x --sequences 0");
  program_refuses(1, "q8_0 is GGUF's", "choir export run --format hf --dtype q8_0 --out x --sequences 0");
  program_refuses(2, "--sequences must not be 0", "choir export run --format hf --out x --sequences 0 --cut 0.1");
  program_refuses(2, "give one of --cut", "choir export run --format hf --out x --experts-per-token 2 --cut 0.1");
  program_refuses(1, "cut is 1:", "choir export run --format hf --out x --cut 1");
  program_refuses(1, "4 at most (model.experts), not 5",
                  "choir export run --format hf --out x --sequences 0 --experts-per-token 5");
  program_refuses(1, "model.router.score is \"softmax\"",
                  "choir init config.json --out soft --tokenizer bpe.model " MODERN
                  "--set router.score=softmax; choir export soft --format hf --out x --sequences 0");
  program_refuses(
      1, "model.router.normalize_gates is false",
      "choir init config.json --out top --tokenizer bpe.model " MODERN
      "--set dense_layers=0 --set router.name=switch_top1 --set score=softmax; choir export top --format hf --out x "
      "--sequences 0");
  program_refuses(1, "model.dense_layers is 1",
                  "choir init config.json --out late --tokenizer bpe.model " MODERN
                  "--set router.name=switch_top1 --set score=softmax --set normalize_gates=true; choir export late "
                  "--format hf --out x "
                  "--sequences 0");
  program_refuses(1, "has prices of experts, and MixtralForCausalLM none",
                  "choir train --config config.json --data bpe --out priced " MODERN
                  "--set dense_layers=0 --set steps=2 --set router.name=bias_balanced --set score=softmax --set "
                  "normalize_gates=true; choir export priced --format hf --out x --sequences 0");
  program_refuses(1, "router 'bias_balanced' gives every token 2, not 3",
                  "choir init config.json --out two --tokenizer bpe.model " MODERN
                  "--set router.name=bias_balanced --set experts_per_token=2; choir export two --format hf --out x "
                  "--sequences 0 --experts-per-token 3");
  program_refuses(1, "config.json: is not the file",
                  "cp -r run/checkpoints/00000012 mixed; sed -i s/voices/others/ mixed/config.json; choir export mixed "
                  "--format hf --out x --sequences 0 --experts-per-token 2");
  program_refuses(1, "the tokenizer has 320 pieces, model.vocab_size is 330",
                  "choir init config.json --vocab-size 330 --out bare " MODERN
                  "--set moe_every=0; cp bpe.model bare/tokenizer.model; choir export bare --format hf --out x "
                  "--sequences 0");
  program_refuses(1, "model.qk_norm is false",
                  "choir init config.json --out every --tokenizer bpe.model " MODERN
                  "--set dense_layers=0 --set moe_every=2 --set layers=3; choir export every --format hf --out x "
                  "--sequences 0");
  program_refuses(1, "is not known",
                  "mkdir odd; sed '1s/{/{\"odd\": 1,/' folder/config.json > odd/config.json; "
                  "cp folder/model.safetensors odd; choir import odd --out x");
  program_refuses(1, "\"hidden_act\" is \"relu\"",
                  "mkdir relu; sed 's/silu/relu/' folder/config.json > relu/config.json; "
                  "cp folder/model.safetensors relu; choir import relu --out x");
  program_refuses(1, "truncated", "head -c 60000 f32.gguf >cut.gguf; choir import cut.gguf --out x");
  program_refuses(1, "\"general.architecture\" is \"gpt2xyz\"",
                  "sed s/glm4moe/gpt2xyz/g f32.gguf >odd.gguf; choir import odd.gguf --out x");
  program_refuses(1, "one of 3 files of a model",
                  "sed 's/\\x13\\(\\x00*\\)glm4moe.block_count/\\x0b\\1split.count/' f32.gguf >odd.gguf; head -c 8 "
                  "/dev/zero >>odd.gguf; "
                  "choir import odd.gguf --out x");
  program_refuses(
      1, "is not known here",
      "sed s/glm4moe.context_length/glm4moe.context_lengtk/ f32.gguf >odd.gguf; choir import odd.gguf --out x");
#define U32 "\\x04\\x00\\x00\\x00"
  program_refuses(1, "'glm4moe.expert_gating_func' is 1: choir takes 2",
                  "sed 's/expert_gating_func" U32 "\\x02/expert_gating_func" U32
                  "\\x01/' f32.gguf >odd.gguf; choir import odd.gguf --out x");
  program_refuses(1, "heads' values are 8 wide and their keys 16",
                  "sed 's/value_length" U32 "\\x10/value_length" U32
                  "\\x08/' f32.gguf >odd.gguf; choir import odd.gguf --out x");
#undef U32
  program_refuses(1, "\"rope_parameters\": unknown key 'type'",
                  "sed 's/\"rope_type\": \"default\"/\"type\": \"linear\"/' folder/config.json > odd/config.json; "
                  "choir import odd --out x");
  program_refuses(1, "\"rope_parameters\" is [1]",
                  "sed 's/\"rope_parameters\": {/\"rope_parameters\": [1], \"use_cache\": {/' folder/config.json > "
                  "odd/config.json; choir import odd --out x");
  program_refuses(
      1, "odd/config.json: model.layers is 0",
      "sed 's/\"num_hidden_layers\": 3/\"num_hidden_layers\": 0/' folder/config.json > odd/config.json; choir "
      "import odd --out x");
  choir_tensor scalar = {.name = "model.embed_tokens.weight", .dtype = CHOIR_F32, .bytes = 4, .data = "abcd"};
  test_ok(choir_tensors_write("odd/model.safetensors", &scalar, 1, NULL));
  program_refuses(1, "'model.embed_tokens.weight' is a single number",
                  "cp folder/config.json odd; choir import odd --out x");
  assert_int_not_equal(access("x", F_OK), 0);
}

/* What a config.json leaves out is what transformers then takes. */
/* An untouched model goes out as it came in, field by field and file by file; its tokens are then its makers'. */
static void export_keeps_the_imported_fields(void **state) {
  static const char *const fields[] = {"bos_token_id",         "pad_token_id",        "eos_token_id",
                                       "router_aux_loss_coef", "router_jitter_noise", "tie_word_embeddings",
                                       "rms_norm_eps",         "num_experts_per_tok"};
  program_must("set -e; rm -rf mk mk-ck mk-out; choir init config.json --out mk-own --tokenizer bpe.model " MODERN
               "--set router.name=topk --set dense_layers=0 --set experts_per_token=2 --set score=softmax --set "
               "normalize_gates=true; choir export mk-own --format hf --out mk --sequences 0;"
               "sed -i 's/\"eos_token_id\": [0-9]*/\"eos_token_id\": [1, 5], \"router_aux_loss_coef\": 0.02/; "
               "s/\"bos_token_id\": null/\"bos_token_id\": 2, \"router_jitter_noise\": 0.0/; "
               "s/\"pad_token_id\": null/\"pad_token_id\": 3/' mk/config.json;"
               "echo '{\"eos_token_id\": [1, 5], \"top_k\": 7}' >mk/generation_config.json;"
               "echo '{\"add_bos_token\": true, \"mine\": 1}' >mk/tokenizer_config.json; echo '{%% for %%}' "
               ">mk/chat_template.jinja");
  program_must(
      "choir import mk --out mk-ck 2>said && grep -q '\"router_aux_loss_coef\" is 0.02: training here' said && "
      "choir export mk-ck --format hf --out mk-out --sequences 0 && cd mk && for f in *; do case $f in config.json);; "
      "*) "
      "cmp $f ../mk-out/$f;; esac; done");
  json_t *there = json_load_file("mk/config.json", 0, NULL), *here = json_load_file("mk-out/config.json", 0, NULL);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (!json_equal(json_object_get(there, fields[i]), json_object_get(here, fields[i]))) fail_msg("%s", fields[i]);
  json_decref(there), json_decref(here);
  /* Without a tokenizer, too, and as one file. */
  program_must(
      "rm -r mk/tokenizer* mk/generation_config.json mk-out; choir import mk --out mk-bare && choir export mk-bare "
      "--format "
      "hf --out mk-out --sequences 0 && tr -d ' \n' <mk-out/generation_config.json | grep -x "
      "'{\"eos_token_id\":\\[1,5\\]}'");
  program_must("choir export mk-ck --format gguf --out mk.gguf --sequences 0 && choir import mk.gguf --out mk-file");
  for (int i = 0; i < 2; i++) {
    ch_gguf_in in;
    test_ok(ch_gguf_open("mk.gguf", &in));
    assert_int_equal(json_at(in.keys, "tokenizer.ggml.bos_token_id"), 2);
    assert_int_equal(json_at(in.keys, "tokenizer.ggml.eos_token_id"), 1);
    assert_true(json_is_true(json_object_get(in.keys, "tokenizer.ggml.add_bos_token")));
    ch_gguf_close_in(&in);
    program_must(
        "choir export mk-file --format gguf --out mk.gguf --sequences 0"); /* what came from such a file, too */
  }
  /* A checkpoint of somebody else's leads nowhere. */
  program_must("rm mk-ck/imported.tokenizer.json && ln -s /etc/passwd mk-ck/imported.tokenizer.json");
  program_refuses(1, "symbolic link", "choir export mk-ck --format hf --out mk-link --sequences 0");
}

static void knows_defaults_of_others(void **state) {
  program_must(
      "set -e; choir init config.json --out long --tokenizer bpe.model " MODERN
      "--set moe_every=0 --set sequence_length=8192; choir export long --format hf --out long-hf --sequences 0;"
      "sed -i 's/\"llama\"/\"mistral\"/' long-hf/config.json");
  program_refuses(1, "\"sliding_window\" is 4096", "choir import long-hf --out x");
  program_refuses(
      1, "\"sliding_window\" is 4096",
      "sed '1s/{/{\"use_sliding_window\": false,/' long-hf/config.json >odd/config.json; choir import odd --out x");
  program_must(
      "sed -i '1s/{/{\"sliding_window\": null,/' long-hf/config.json; choir import long-hf --out long-back 2>said; "
      "grep -q '\"max_position_embeddings\" is 8192' said");
  program_must(
      "set -e; cp -r long-hf ends; sed -i 's/\"eos_token_id\": [0-9]*/\"eos_token_id\": [1, 2]/' ends/config.json; "
      "choir "
      "import ends --out ends-back 2>said; grep -q 'names 2 tokens; the first, 1, ends texts' said");
  program_must("set -e; choir init config.json --out mix --tokenizer bpe.model " MODERN
               "--set router.name=topk --set dense_layers=0 --set experts_per_token=2 --set score=softmax --set "
               "normalize_gates=true; choir export mix --format hf --out mix-hf --sequences 0;"
               "sed -i '/\"rope_theta\"/d' mix-hf/config.json; choir import mix-hf --out mix-back;"
               "grep '\"rope_theta\": 1e6' mix-back/config.json");
}

/* In fp64, 88 times the share 60/88 is 59.99: import must still find 60 columns. */
static void keeps_how_many_columns_rotate(void **state) {
  program_must("set -e; choir init config.json --out wide --tokenizer bpe.model " MODERN
               "--set router.name=bias_balanced --set experts_per_token=2 --set d_head=88 --set rope_fraction=0.69;"
               "choir export wide --format gguf --out wide.gguf --sequences 0; choir import wide.gguf --out wide-back");
  same_logits("wide", "wide-back", 1e-5);
}

TEST_MAIN(train, program_directory_remove, export_and_import_give_equal_weights, import_of_gguf_gives_equal_weights,
          imported_models_can_be_exported, export_keeps_the_imported_fields, reads_a_tokenizer, writes_one_file,
          chooses_how_many_experts, refuses_by_name, knows_defaults_of_others, keeps_how_many_columns_rotate)
