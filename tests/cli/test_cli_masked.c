/* A model that is trained by masking, through the program: training, stops, threads, evaluation, filling gaps, pages,
 * and what it refuses. */
#include <math.h>

#include "choir/choir.h"
#include "made_up_task.h"

#define MASKED "--set attention=bidirectional --set objective=masked_diffusion --set router.pool=sequence "
#define TRAIN                                            \
  "choir train --config config.json --data data " MASKED \
  "--set steps=20 --set checkpoint_every=6 "             \
  "--set eval_every=10 --set eval_sequences=12 "

static int setup(void **state) {
  if (program_setup(state)) return -1;
  int status = program_run(TRAIN "--threads 1 --out run");
  if (status) fprintf(stderr, "training, status %d:\n%s\n", status, program_output);
  return status;
}

static void says_that_it_is_a_bound(void **state) {
  program_must(TRAIN "--threads 2 --out again");
  assert_non_null(strstr(program_output, "held-out bound "));
  assert_non_null(strstr(program_output, "at most "));
  assert_null(strstr(program_output, "loss"));
  assert_true(program_same_runs("run", "again", 20)); /* on another number of threads */
}

/* Stopped after a checkpoint, and gone on with: the bytes of a run in one go. */
static void resumed_run_is_bit_identical(void **state) {
  program_must(TRAIN "--threads 1 --out stopped --set steps=6 --set eval_every=10");
  program_must("choir train --resume --out stopped --threads 2 --set steps=20");
  assert_true(
      program_same("run/checkpoints/00000020/model.safetensors", "stopped/checkpoints/00000020/model.safetensors"));
  program_must("choir train --config config.json --data data " MASKED
               "--set train.seed=2 --set steps=20 --set eval_every=0 --set checkpoint_every=0 --out other");
  assert_false(
      program_same("run/checkpoints/00000020/model.safetensors", "other/checkpoints/00000020/model.safetensors"));
}

static void evaluates(void **state) {
  program_must("choir eval run --mask-samples 3 --json");
  json_t *root = program_json(), *ratios = json_object_get(root, "mask_ratios"), *part;
  size_t i;
  double sum = 0, evaluations = 0;
  assert_string_equal(json_string_value(json_object_get(root, "objective")), "masked_diffusion");
  assert_string_equal(json_string_value(json_object_get(root, "routing")), "sequence");
  assert_true(json_at(root, "standard_error") > 0 && json_at(root, "standard_error") < 0.5);
  assert_non_null(json_object_get(root, "threshold"));
  assert_null(json_object_get(root, "causal_gap"));
  json_array_foreach(ratios, i, part) {
    evaluations += json_at(part, "evaluations");
    sum += json_at(part, "evaluations") * json_at(part, "loss");
  }
  assert_int_equal(json_array_size(ratios), 10);
  assert_true(fabs(sum / evaluations / json_at(root, "loss") - 1) <
              0.05); /* all but the short last sequence are equal */
  double loss = json_at(root, "loss");
  json_decref(root);
  program_must("choir eval run --mask-samples 3 --batch 2 --threads 1 --json"); /* a text by itself */
  root = program_json();
  assert_true(fabs(json_at(root, "loss") - loss) < 1e-5);
  json_decref(root);
  program_must("choir eval run --text corpus.txt --sequences 6");
  assert_non_null(strstr(program_output, "standard error"));
  assert_non_null(strstr(program_output, "by mask ratio"));
  assert_non_null(strstr(program_output, "bound on the text: at most "));
  assert_null(strstr(program_output, "causal"));
  program_must("choir eval run --routing batch --sequences 6");
  program_must("choir calibrate run --text corpus.txt --out calibrated");
}

/* BERT's objective says that it is no measure of a text. */
static void masked_lm(void **state) {
  program_must(
      "choir train --config config.json --data data --set attention=bidirectional --set objective=masked_lm "
      "--set steps=3 --set eval_sequences=4 --out lm");
  assert_non_null(strstr(program_output, "held-out masked loss"));
  assert_non_null(strstr(program_output, " nats per masked token"));
  program_must(/* steps in which nothing is masked have no loss, rather than one of 0 */
               "choir train --config config.json --data data --set attention=bidirectional --set objective=masked_lm "
               "--set steps=12 --set sequence_length=4 --set batch_sequences=1 --set grad_chunks=1 --set eval_every=0 "
               "--out few");
  program_must("grep -q '\"loss\":null' few/metrics.jsonl && ! grep '\"loss\":0,' few/metrics.jsonl");
  program_must("choir report few --out few.html");
}

static void fills_gaps(void **state) {
  program_must(
      "choir generate run --prompt 'kalo miten' --length 12 --seed 3 2>/dev/null >one;"
      "choir generate run --prompt 'kalo miten' --length 12 --seed 3 --threads 1 2>/dev/null | cmp - one;"
      "choir generate run --prompt 'kalo miten' --length 12 --seed 4 2>/dev/null >two; ! cmp -s one two;"
      "cat one");
  assert_int_equal(strncmp(program_output, "kalo miten", 10), 0);
  program_must("choir generate run --length 12 --steps 3 --block 4 --order random --temperature 0 --json");
  json_t *root = program_json();
  assert_true(json_at(root, "tokens") <= 12);
  json_decref(root);
  program_must("choir generate run --infill 'kalo ___ miten ___.' --length 2 --steps 2 2>/dev/null");
  assert_int_equal(strncmp(program_output, "kalo", 4), 0);
  assert_non_null(strstr(program_output, "miten"));
  assert_null(strstr(program_output, "___"));
}

static void forward_has_no_loss(void **state) {
  program_must("choir tokenizer encode --tokenizer tokenizer.model --length 16 --out tokens.npy corpus.txt");
  program_must("choir forward run tokens.npy --logits logits.npy");
  assert_non_null(strstr(program_output, "no loss"));
  assert_null(strstr(program_output, "nan"));
}

static void pages_and_plans(void **state) {
  program_must("choir report run --out run.html && choir info run && choir stats run --text corpus.txt");
  program_must("choir inspect run --text corpus.txt --out text.html");
  /* of all tokens a quarter is read as the mask, which no piece of the tokenizer is */
  program_must("choir stats run --text corpus.txt --length 16 --mask-ratio 0.25 --top 400 --json");
  json_t *root = program_json(), *layer = json_array_get(json_object_get(root, "layers"), 0), *favourite;
  double read = 0;
  size_t at;
  for (size_t i = 0; i < json_array_size(json_object_get(layer, "frequent")); i++)
    json_array_foreach(json_array_get(json_object_get(layer, "frequent"), i), at, favourite) {
      if (!strcmp(json_string_value(json_object_get(favourite, "piece")), "<mask>")) read = json_at(favourite, "text");
    }
  assert_true(json_at(root, "mask_ratio") == 0.25);
  assert_true(fabs(read / json_at(root, "tokens") - 0.25) < 0.01);
  json_decref(root);
  program_refuses(1, "a mask ratio of 2: must be a number from 0 to 1",
                  "choir inspect run --text corpus.txt --mask-ratio 2 --out no.html");
}

/* Scores of masked models have keys of their own in JSON, and a note says whether they are bounds. */
static void scores(void **state) {
  program_must(
      "printf '%%s\\n' '{\"context\": \"kalo miten\", \"continuation\": \" sura revo\"}' >requests.jsonl;"
      "choir score run --requests requests.jsonl --tokens --mask-samples 8 --threads 1 2>told >one;"
      "choir score run --requests requests.jsonl --tokens --mask-samples 8 --slots 3 --threads 2 2>told >two;"
      "cmp one two; grep -q 'lower bounds of log-likelihoods' told; cat one");
  json_t *root = program_json();
  assert_true(json_at(root, "log_likelihood_bound") < 0 && json_at(root, "standard_error") > 0);
  assert_int_equal(json_at(root, "mask_samples"), 8);
  assert_null(json_object_get(root, "log_likelihood"));
  assert_null(json_object_get(root, "greedy"));
  assert_int_equal(json_array_size(json_object_get(root, "shares")), (size_t)json_at(root, "tokens"));
  json_decref(root);
  program_must("choir score lm --requests requests.jsonl 2>told && grep -q 'pseudo-log-likelihoods' told");
  root = program_json();
  assert_true(json_at(root, "pseudo_log_likelihood") < 0);
  json_decref(root);
}

/* A label read where masks stand: a task that can be learned is, and choir score agrees with what the run says. */
static void fine_tunes(void **state) {
  test_ok(ch_file_save("mine.json", made_up_task, sizeof made_up_task - 1));
  program_must("mkdir set");
  made_up_rows("set/train.tsv", 203, 1);
  made_up_rows("set/dev.tsv", 60, 2);
  program_must(
      "choir finetune --init-from run --task mine.json --data set --threads 1 --set batch_sequences=8 --epochs 20 "
      "--patience 3 --set train.learning_rate=0.01 --out tuned && cat tuned/result.json");
  program_must("cat tuned/result.json");
  json_t *root = program_json(), *own = json_object_get(root, "own");
  double correct = json_at(own, "correct");
  if (!(correct >= 57)) fail_msg("%g of 60 are right", correct);
  assert_string_equal(json_string_value(json_object_get(own, "routing")), "sequence");
  assert_null(json_object_get(root, "batch"));
  json_decref(root);
  program_must("choir score tuned --task mine.json --data set --threads 2 --json 2>/dev/null");
  root = program_json();
  assert_true(json_at(json_object_get(root, "own"), "correct") == correct);
  assert_null(json_object_get(root, "batch"));
  json_decref(root);
}

/* More experts than a short batch has tokens, each sequence being a pool. */
static void fine_tunes_many_experts(void **state) {
  program_must("choir train --config config.json --data data " MASKED
               "--set experts=20 --set steps=2 --set eval_every=0 --out many &&"
               "choir finetune --init-from many --task mine.json --data set --set steps=2 --set eval_sequences=9 "
               "--out many-tuned");
}

static void refusals(void **state) {
  program_refuses(1, "whose scores draw nothing", "choir score lm --requests requests.jsonl --mask-samples 4");
  program_refuses(1, "leave train.objective as the checkpoint has it",
                  "choir finetune --init-from run --task mine.json --data set --set objective=next_token --out none");
  program_refuses(1, "model.attention is \"bidirectional\"", "choir export run --format hf --out folder");
  program_refuses(1, "probe for leaks", "choir probe run --text corpus.txt");
  program_refuses(2, "cannot be used with a masked model", "choir generate run --max-tokens 5");
  program_refuses(2, "has no gap", "choir generate run --infill 'kalo miten'");
  program_refuses(1, "next_token with model.attention bidirectional",
                  "choir train --config config.json --data data --set attention=bidirectional --out no");
  program_refuses(1, "to which the mask is added",
                  "choir train --config config.json --data data " MASKED "--set vocab_size=96 --out no");
}

TEST_MAIN(setup, program_directory_remove, says_that_it_is_a_bound, resumed_run_is_bit_identical, evaluates, masked_lm,
          scores, fine_tunes, fine_tunes_many_experts, fills_gaps, forward_has_no_loss, pages_and_plans, refusals)
