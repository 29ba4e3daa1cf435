/* Weights are bound to the tokenizer and the config beside them: another one is refused wherever weights are loaded. */
#include "choir/choir.h"
#include "made_up_task.h"

#define AT "run/checkpoints/00000004/"
#define CONFIG "sed -i 's/\"norm_eps\": 1e-0*6/\"norm_eps\": 1e-7/' " AT "config.json && "
#define RESTORE "cp -r kept/. run && "

static int set_up(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_file_save("mine.json", made_up_task, sizeof made_up_task - 1));
  if (program_run("set -e; mkdir set; choir train --threads 1 --config config.json --data data --out run --set steps=4;"
                  "cp -r run kept; sed 's/a/e/g' corpus.txt >other.txt;"
                  "choir tokenizer train --vocab-size 320 --out other.model other.txt;"
                  "echo '{\"context\": \"ka\", \"continuation\": \"lo\"}' >asked"))
    return fprintf(stderr, "%s\n", program_output), -1;
  made_up_rows("set/train.tsv", 60, 1);
  made_up_rows("set/dev.tsv", 20, 2);
  return 0;
}

/* Each verb refuses a tokenizer or a config of another; --unchecked takes it. */
static void verbs_refuse(void **state) {
  static const char *const verbs[] = {"score run --requests asked", "eval run --text corpus.txt",
                                      "generate run --prompt ka --max-tokens 2",
                                      "train --resume --out run --set steps=5",
                                      "finetune --init-from run --task mine.json --data set --out tuned --set steps=1"};
  for (int i = 0; i < 5; i++) {
    const char *file = "00004/tokenizer.model: is not the file that model.safetensors was saved with";
    program_refuses(1, file, RESTORE "cp other.model " AT "tokenizer.model && choir %s --threads 1", verbs[i]);
    if (i < 3) program_must("choir %s --unchecked --threads 1", verbs[i]);
    file = "00004/config.json: is not the file that model.safetensors was saved with";
    program_refuses(1, i == 3 ? "another model" : file, RESTORE CONFIG "choir %s --threads 1", verbs[i]);
    if (i < 3) program_must("choir %s --unchecked --threads 1", verbs[i]);
  }
  program_must(RESTORE "sed -i 's/\"rate\": 0.05/\"rate\":   0.06/' " AT "config.json && ! cmp kept/" AT
                       "config.json " AT "config.json && choir eval run --text corpus.txt --threads 1");
}

static void programs_refuse(void **state) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_model_options run = CHOIR_MODEL_OPTIONS_INIT;
  program_must(RESTORE CONFIG "true");
  test_fails(choir_model_load(AT, &run, &model, NULL), CHOIR_ERROR_FORMAT, "config.json: is not the file");
  assert_null(model);
  run.unchecked = 1;
  test_ok(choir_model_load(AT, &run, &model, &tokenizer));
  test_ok(choir_model_save(model, tokenizer, "accepted")); /* for good */
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
  run.unchecked = 0;
  test_ok(choir_model_load("accepted", &run, &model, &tokenizer));
  assert_true(choir_model_config(model)->model.norm_eps == 1e-7);
  choir_model_free(model);
  choir_tokenizer_free(tokenizer);
}

/* As earlier versions wrote it. */
static void older_ones_load(void **state) {
  choir_tensors *file;
  choir_model *model;
  program_must(RESTORE "true");
  test_ok(choir_tensors_load(AT "model.safetensors", 1, &file));
  assert_non_null(choir_tensors_metadata(file, "choir_config"));
  assert_non_null(choir_tensors_metadata(file, "choir_tokenizer"));
  test_ok(choir_tensors_write("old.safetensors", choir_tensors_at(file, 0), choir_tensors_count(file), NULL));
  choir_tensors_free(file);
  program_must(CONFIG "mv old.safetensors " AT "model.safetensors");
  test_ok(choir_model_load(AT, NULL, &model, NULL));
  choir_model_free(model);
}

/* The newest checkpoint's tokenizer is not the run's: the one before it serves, and its tokenizer goes on. */
static void finetuning_resumes_with_its_tokenizer(void **state) {
  program_must(RESTORE
               "choir finetune --init-from run --task mine.json --data set --threads 1 --out tuned --set steps=4 "
               "--set checkpoint_every=2 --set batch_sequences=8 && cp -r tuned whole && "
               "cp other.model tuned/checkpoints/00000004/tokenizer.model && "
               "choir finetune --resume --out tuned --threads 1");
  assert_non_null(strstr(program_output, "passed over"));
  program_must(
      "cmp whole/checkpoints/00000004/tokenizer.model tuned/checkpoints/00000004/tokenizer.model && "
      "cmp whole/checkpoints/00000004/model.safetensors tuned/checkpoints/00000004/model.safetensors");
}

TEST_MAIN(set_up, program_directory_remove, verbs_refuse, programs_refuse, older_ones_load,
          finetuning_resumes_with_its_tokenizer)
