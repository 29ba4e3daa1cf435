/* What an export says and writes beside the weights, and exports and imports that are given up. */
#include "choir/tensors.h"
#include "export/export.h"
#include "export/gguf_read.h"
#include "export/import.h"
#include "export/spm_write.h"
#include "export_testing.h"
#include "model/config.h"

static int train(void **state) {
  return export_setup(state,
                      "choir train --config config.json --data bpe --out run " MODERN
                      "--set steps=12 --set layers=3 --set qk_norm=true --set rope_fraction=0.5 --set head_scale=0.3;"
                      "choir export run --format hf --out folder --experts-per-token 4 --sequences 0;"
                      "choir export run --format gguf --out f32.gguf --experts-per-token 4 --sequences 0");
}

static int64_t bytes_of(const choir_tensors *tensors) {
  int64_t sum = 0;
  for (int i = 0; i < choir_tensors_count(tensors); i++) sum += (int64_t)choir_tensors_at(tensors, i)->bytes;
  return sum;
}

/* The share of tokens, in the JSON of an evaluation, that have more than so many experts. */
static double share_over(const json_t *evaluation, size_t experts) {
  double above = 0, tokens = 0;
  const json_t *layer;
  size_t i;
  json_array_foreach(json_object_get(evaluation, "layers"), i, layer) {
    const json_t *histogram = json_object_get(layer, "histogram");
    for (size_t k = 0; k < json_array_size(histogram); k++) {
      double count = json_number_value(json_array_get(histogram, k));
      tokens += count, above += k > experts ? count : 0;
    }
  }
  return above / tokens;
}

/* What an export says of itself is what choir finds: the loss and the cut tokens in an evaluation of the run, the loss
 * with rounded weights in one of what comes back. */
static void measures_what_it_writes(void **state) {
  static const char *const kinds[][2] = {{"gguf", "q8_0"}, {"hf", "bf16"}};
  program_must("choir eval run --data bpe --routing threshold --sequences 20 --compute fp32 --json");
  json_t *own = program_json();
  for (int i = 0; i < 2; i++) {
    program_must(
        "choir export run --format %s --dtype %s --out %s-m --experts-per-token 3 --sequences 20 --json; choir import "
        "%s-m --out %s-b --tokenizer bpe.model >back.txt",
        kinds[i][0], kinds[i][1], kinds[i][0], kinds[i][0], kinds[i][0]);
    json_t *said = program_json();
    program_must("choir eval %s-b --data bpe --length 32 --batch 4 --sequences 20 --compute fp32 --json", kinds[i][0]);
    json_t *back = program_json();
    assert_true(json_at(said, "loss") == json_at(own, "loss") && json_at(said, "tokens") == json_at(own, "tokens"));
    assert_true(fabs(json_at(said, "tokens_cut") - share_over(own, 3)) < 1e-6 && share_over(own, 3) > 0);
    assert_true(json_at(said, "loss_written") != json_at(said, "loss_cut"));
    if (!(fabs(json_at(said, "loss_written") - json_at(back, "loss")) < 1e-6))
      fail_msg("%s: %.9g, %.9g comes back", kinds[i][1], json_at(said, "loss_written"), json_at(back, "loss"));
    json_decref(said), json_decref(back);
  }
  json_decref(own);
}

/* The keys and types of dtype that stock programs go by, and no tensor of choir's reads back. */
static void says_how_to_read_it(void **state) {
  ch_gguf_in in;
  choir_tensors *t;
  choir_tokenizer *tokenizer;
  program_must(
      "choir export run --format gguf --dtype q8_0 --out keys.gguf --experts-per-token 3 --sequences 0 --json; choir "
      "export run --format hf --dtype bf16 --out keys-hf --experts-per-token 3 --sequences 0 --json >hf.json");
  json_t *said = program_json();
  test_ok(choir_tokenizer_load("bpe.model", &tokenizer));
  test_ok(ch_gguf_open("keys.gguf", &in));
  assert_int_equal(json_at(said, "bytes"), bytes_of(in.tensors));
  assert_int_equal(choir_tensors_find(in.tensors, "blk.1.ffn_gate_inp.weight")->dtype, CHOIR_F32); /* the router */
  assert_int_equal(choir_tensors_find(in.tensors, "output_norm.weight")->dtype, CHOIR_F32);
  assert_int_equal(choir_tensors_find(in.tensors, "blk.1.ffn_up_exps.weight")->dtype, CHOIR_U8);
  static const char *const never[] = {"add_space_prefix", "add_bos_token", "add_eos_token"};
  for (int i = 0; i < 3; i++) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", never[i]);
    assert_true(json_is_false(json_object_get(in.keys, key)));
  }
  assert_int_equal(json_at(in.keys, "tokenizer.ggml.eos_token_id"), choir_tokenizer_eos(tokenizer));
  const ch_gguf_array *kinds = ch_gguf_find_array(&in, "tokenizer.ggml.token_type", CH_GGUF_I32);
  assert_int_equal(kinds->at[4 * choir_tokenizer_eos(tokenizer)], 3); /* control */
  ch_gguf_close_in(&in);
  json_decref(said);

  test_ok(choir_tensors_load("keys-hf/model.safetensors", 1, &t));
  said = json_load_file("hf.json", 0, NULL);
  assert_int_equal(json_at(said, "bytes"), bytes_of(t));
  assert_int_equal(choir_tensors_find(t, "model.layers.1.mlp.gate.weight")->dtype, CHOIR_F32);
  assert_int_equal(choir_tensors_find(t, "model.norm.weight")->dtype, CHOIR_BF16);
  choir_tensors_free(t);
  json_decref(said);
  json_t *config = json_load_file("keys-hf/config.json", 0, NULL),
         *generation = json_load_file("keys-hf/generation_config.json", 0, NULL);
  assert_string_equal(json_string_value(json_object_get(config, "dtype")), "bfloat16");
  assert_true(json_at(config, "partial_rotary_factor") == 0.5);
  assert_true(json_at(json_object_get(config, "rope_parameters"), "partial_rotary_factor") == 0.5);
  assert_int_equal(json_at(config, "eos_token_id"), choir_tokenizer_eos(tokenizer));
  assert_int_equal(json_at(generation, "eos_token_id"), choir_tokenizer_eos(tokenizer));
  json_decref(config), json_decref(generation);
  json_t *words = json_load_file("keys-hf/tokenizer_config.json", 0, NULL);
  assert_string_equal(json_string_value(json_object_get(words, "eos_token")),
                      choir_tokenizer_piece(tokenizer, choir_tokenizer_eos(tokenizer)));
  assert_string_equal(json_string_value(json_object_get(words, "pad_token")),
                      json_string_value(json_object_get(words, "eos_token")));
  json_decref(words);
  choir_tokenizer_free(tokenizer);
}

/* The folder with other numbers in a tensor, and one tensor more where that has a name, at OUT. */
static void save_otherwise(const char *changed, float value, const char *more, const char *out) {
  choir_tensors *t;
  char path[64];
  float values[32] = {value};
  test_ok(choir_tensors_load("folder/model.safetensors", 1, &t));
  int count = choir_tensors_count(t);
  choir_tensor *tensor = calloc((size_t)count + 1, sizeof *tensor);
  for (int i = 0; i < count; i++) {
    tensor[i] = *choir_tensors_at(t, i);
    if (!strcmp(tensor[i].name, changed)) tensor[i].data = values, assert_int_equal(tensor[i].bytes, sizeof values);
  }
  tensor[count] = (choir_tensor){.dtype = CHOIR_F32, .dims = 1, .shape = {32}, .bytes = sizeof values, .data = values};
  snprintf(tensor[count].name, sizeof tensor->name, "%s", more ? more : "");
  program_must("mkdir %s && cp folder/config.json %s", out, out);
  snprintf(path, sizeof path, "%s/model.safetensors", out);
  test_ok(choir_tensors_write(path, tensor, count + (more != NULL), NULL));
  free(tensor);
  choir_tensors_free(t);
}

/* folder/ with the frequencies of a layer's rotation among the weights, as transformers once wrote them, times a
 * factor. */
static void save_frequencies(double factor) {
  choir_tensors *t;
  choir_config c;
  float values[64];
  test_ok(ch_config_load("fine-back/config.json", &c));
  int columns = (int)(c.model.rope_fraction * (c.model.d_head ? c.model.d_head : c.model.d_model / c.model.heads));
  for (int i = 0; i < columns / 2; i++) values[i] = (float)(factor * pow(c.model.rope_theta, -2.0 * i / columns));
  test_ok(choir_tensors_load("folder/model.safetensors", 1, &t));
  int count = choir_tensors_count(t);
  choir_tensor *tensor = calloc((size_t)count + 1, sizeof *tensor);
  for (int i = 0; i < count; i++) tensor[i] = *choir_tensors_at(t, i);
  tensor[count] = (choir_tensor){.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                 .dtype = CHOIR_F32,
                                 .dims = 1,
                                 .shape = {columns / 2},
                                 .bytes = (size_t)columns / 2 * sizeof(float),
                                 .data = values};
  program_must("rm -rf rotates; mkdir rotates && cp folder/config.json rotates");
  test_ok(choir_tensors_write("rotates/model.safetensors", tensor, count + 1, NULL));
  free(tensor);
  choir_tensors_free(t);
}

static void refuses_odd_tensors(void **state) {
  save_otherwise("model.norm.weight", 1, NULL, "fine"); /* the file without an oddity is taken */
  program_must("choir import fine --out fine-back --tokenizer bpe.model");
  save_otherwise("model.norm.weight", NAN, NULL, "nan");
  program_refuses(1, "tensor 'model.norm.weight' has a value that is not finite", "choir import nan --out x");
  save_otherwise("", 1, "model.more.weight", "more");
  save_frequencies(1);
  program_must("choir import rotates --out rotates-back --tokenizer bpe.model");
  save_frequencies(1.1);
  program_refuses(1, "rotary_emb.inv_freq' has no counterpart", "choir import rotates --out x");
  program_refuses(1, "tensor 'model.more.weight' has no counterpart", "choir import more --out x");
  assert_int_not_equal(access("x", F_OK), 0);
}

/* A file as other programs write it: without checksums, the data at an odd byte, tensors at first..count - 1. */
static void save_foreign(const char *path, const choir_tensor *tensor, int first, int count, int spaces) {
  json_t *header = json_object();
  uint64_t length;
  size_t at = 0;
  for (int i = first; i < count; i++) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor[i].dims; d++) json_array_append_new(shape, json_integer(tensor[i].shape[d]));
    json_object_set_new(header, tensor[i].name,
                        json_pack("{s:s, s:o, s:[I,I]}", "dtype", tensor[i].dtype == CHOIR_F64 ? "F64" : "F32", "shape",
                                  shape, "data_offsets", (json_int_t)at, (json_int_t)(at + tensor[i].bytes)));
    at += tensor[i].bytes;
  }
  char *text = json_dumps(header, 0);
  length = strlen(text) + (size_t)spaces;
  if (length % 2 == 0) length++, spaces++;
  FILE *file = fopen(path, "wb");
  fwrite(&length, sizeof length, 1, file);
  fprintf(file, "%*s%s", spaces, "", text);
  for (int i = first; i < count; i++) fwrite(tensor[i].data, 1, tensor[i].bytes, file);
  fclose(file);
  free(text);
  json_decref(header);
}

/* What transformers takes and cannot change a logit gives the same checkpoint: data at odd bytes and white space before
 * the header, names without "model.", numbers of 64 bits, a head in the place of the embedding that it is, and of
 * several files a wrong sum and a tensor that the index does not know. */
static void imports_formats_of_other_writers(void **state) {
  choir_tensors *t;
  test_ok(choir_tensors_load("folder/model.safetensors", 1, &t));
  int count = choir_tensors_count(t), half = count / 2;
  choir_tensor *tensor = calloc((size_t)count + 1, sizeof *tensor);
  program_must("choir import folder --out same --tokenizer bpe.model");
  for (int way = 0; way < 5; way++) {
    int kept = 0;
    json_t *map = json_object();
    program_must("rm -rf other other-back; mkdir other; cp folder/config.json other");
    if (way == 3)
      program_must("sed -i 's/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/' other/config.json");
    for (int i = 0; i < count; i++) {
      choir_tensor *x = &tensor[kept];
      *x = *choir_tensors_at(t, i);
      if (way == 3 && !strcmp(x->name, "model.embed_tokens.weight")) continue;
      if (way == 1 && !strncmp(x->name, "model.", 6)) memmove(x->name, x->name + 6, strlen(x->name + 6) + 1);
      if (way == 2) {
        double *wide = malloc(2 * x->bytes);
        for (size_t v = 0; v < x->bytes / 4; v++) wide[v] = (double)((const float *)x->data)[v];
        x->dtype = CHOIR_F64, x->data = wide, x->bytes *= 2;
      }
      json_object_set_new(map, x->name, json_string(kept < half ? "a.safetensors" : "b.safetensors"));
      kept++;
    }
    if (way == 4) {
      tensor[kept] = (choir_tensor){.name = "stray", .dtype = CHOIR_F32, .bytes = 4, .data = "\0\0\0"};
      save_foreign("other/a.safetensors", tensor, 0, half, 0);
      save_foreign("other/b.safetensors", tensor, half, kept + 1, 0);
      json_t *index = json_pack("{s:{s:i}, s:O}", "metadata", "total_size", 7, "weight_map", map);
      assert_int_equal(json_dump_file(index, "other/model.safetensors.index.json", 0), 0);
      json_decref(index);
    } else {
      save_foreign("other/model.safetensors", tensor, 0, kept, way ? 0 : 3);
    }
    json_decref(map);
    program_must("choir import other --out other-back --tokenizer bpe.model");
    if (way == 4) assert_non_null(strstr(program_output, "'stray' of b.safetensors is not in its"));
    program_must("cmp same/model.safetensors other-back/model.safetensors");
    for (int i = 0; i < kept && way == 2; i++) free((void *)(uintptr_t)tensor[i].data);
  }
  choir_tensor one = *choir_tensors_at(t, 0);
  save_foreign("odd.safetensors", &one, 0, 1, 0);
  choir_tensors_free(t);
  test_fails(choir_tensors_load("odd.safetensors", 0, &t), CHOIR_ERROR_FORMAT, "is not aligned"); /* for C's pointers */
  free(tensor);
}

/* An embedding of a few rows more than SentencePiece's model has pieces keeps its tokenizer. */
static void pads_tokenizers(void **state) {
  program_must(
      "set -e; choir tokenizer train --vocab-size 300 --out less.model corpus.txt; rm -rf padded;"
      "choir import folder --out padded --tokenizer less.model");
  program_must(
      "choir tokenizer encode --tokenizer padded/tokenizer.model <corpus.txt >a;"
      "choir tokenizer encode --tokenizer less.model <corpus.txt >b; cmp a b");
  program_refuses(1, "pieces, \"vocab_size\" is 320",
                  "sed 's/\"vocab_size\": 320/\"vocab_size\": 32000/' "
                  "folder/config.json >x.json; mkdir -p far; cp x.json far/config.json; cp folder/model.safetensors "
                  "far; choir import far --out x --tokenizer less.model");
}

/* A model whose weights are a pickle: the file is named, and the way to safetensors. What a trainer leaves beside
 * weights is no model, and safetensors beside a pickle are read. */
static void refuses_pickles(void **state) {
  static const struct {
    const char *make, *from, *says[2];
  } cases[] = {
      {"", "p", {"p/model.safetensors", "No such file"}},
      {"training_args.bin optimizer.pt rng_state_0.pth", "p", {"p/model.safetensors", "No such file"}},
      {"model.pth", "p", {"p/model.pth: choir reads no pickles, which can run code", "glob(\"*.pth\")"}},
      {"pytorch_model-00002-of-00002.bin pytorch_model-00001-of-00002.bin a.bin",
       "p",
       {"p/pytorch_model-00001-of-00002.bin: choir reads no pickles", "glob(\"pytorch_model*.bin\")"}},
      {"", "p/model.pth", {"p/model.pth: choir reads no pickles", "glob(\"*.pth\")"}},
      {"", "p/other.pth", {"p/other.pth/config.json", "No such file"}},
  };
  program_must("mkdir p; cp folder/config.json p");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    program_refuses(1, cases[i].says[0], "cd p && touch config.json %s && cd .. && choir import %s --out x",
                    cases[i].make, cases[i].from);
    if (!strstr(program_output, cases[i].says[1])) fail_msg("%s: %s", cases[i].make, program_output);
  }
  program_must("cp folder/model.safetensors p; choir import p --out read --tokenizer bpe.model");
}

/* Heard once, at the second tensor. */
static int stop_once(void *context, const char *what, double share) {
  (void)share;
  return (!strcmp(what, "writing") || !strcmp(what, "reading")) && ++*(int *)context == 2;
}

/* A requested stop ends import and export, which leave no files: the tensors after the request do not clear it. */
static void stops_without_a_trace(void **state) {
  static const char *const formats[] = {"hf", "gguf"}, *const folders[] = {"folder", "f32.gguf"};
  for (int i = 0; i < 2; i++) {
    int asked = 0;
    choir_export_options out = {.checkpoint = "run",
                                .format = formats[i],
                                .dtype = "f32",
                                .out = "stopped",
                                .experts_per_token = 2,
                                .progress = stop_once,
                                .context = &asked};
    choir_import_options in = {.from = folders[i], .out = "stopped", .progress = stop_once, .context = &asked};
    test_fails(choir_export(&out, &(choir_export_result){.cut = 0}), CHOIR_ERROR_INTERRUPTED, "nothing was written");
    asked = 0;
    test_fails(choir_import(&in, &(choir_import_result){.parameters = 0}), CHOIR_ERROR_INTERRUPTED,
               "nothing was written");
    assert_int_not_equal(access("stopped", F_OK), 0);
  }
}

/* A model that fills masks has one token more than its tokenizer, which the file gives a text, a kind and a key. */
static void mask_token_is_exported(void **state) {
  ch_gguf_in in;
  program_must("choir init config.json --out masked --tokenizer bpe.model " MODERN
               "--set moe_every=0 --set attention=bidirectional --set objective=masked_diffusion;"
               "choir export masked --format gguf --out masked.gguf --sequences 0");
  test_ok(ch_gguf_open("masked.gguf", &in));
  const ch_gguf_array *texts = ch_gguf_find_array(&in, "tokenizer.ggml.tokens", CH_GGUF_TEXT),
                      *kinds = ch_gguf_find_array(&in, "tokenizer.ggml.token_type", CH_GGUF_I32);
  assert_true(texts && kinds && texts->count == 321 && kinds->count == 321);
  assert_int_equal(kinds->at[4 * 320], CH_SPM_CONTROL);
  assert_int_equal(choir_tensors_find(in.tensors, "token_embd.weight")->shape[0], 321);
  assert_int_equal(json_at(in.keys, "tokenizer.ggml.mask_token_id"), 320);
  assert_true(json_is_false(json_object_get(in.keys, "diffusion.shift_logits")));
  assert_true(json_is_false(json_object_get(in.keys, "llada.attention.causal")));
  ch_gguf_close_in(&in);
  program_refuses(1, "\"general.architecture\" is \"llada\"", "choir import masked.gguf --out x");
}

TEST_MAIN(train, program_directory_remove, measures_what_it_writes, says_how_to_read_it, refuses_odd_tensors,
          imports_formats_of_other_writers, pads_tokenizers, refuses_pickles, mask_token_is_exported,
          stops_without_a_trace)
