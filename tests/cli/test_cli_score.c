/* choir score, as a user runs it: requests and tasks, what comes out and what is refused. */
#include "choir/choir.h"
#include "program.h"

static const char task[] =
    "{\"name\": \"mine\", \"format\": \"tsv\", \"splits\": {\"dev\": [\"dev.tsv\"], \"test\": [\"test.tsv\"]},\n"
    " \"columns\": {\"text\": [\"text\"]}, \"label\": [\"label\"], \"metrics\": [\"f1\"],\n"
    " \"labels\": [{\"word\": \" ka\", \"values\": [\"bad\"]}, {\"word\": \" lo\", \"values\": [\"good\"]}],\n"
    " \"template\": \"{text}\\nis\", \"cut\": \"text\"}\n";

static int set_up(void **state) {
  if (program_setup(state)) return -1;
  test_ok(ch_file_save("mine.json", task, sizeof task - 1));
  return program_run(
      "set -e; choir train --config config.json --data data --out run --threads 1 --set train.steps=30;"
      "mkdir set; printf 'text\\tlabel\\n' >set/dev.tsv;"
      "for i in 1 2 3 4 5 6 7 8 9; do printf 'kalo miten %%s\\tgood\\nrevo \"sura\\tbad\\n' $i >>set/dev.tsv; done;"
      "printf 'text\\nkalo\\nrevo\\n' >set/test.tsv");
}

/* Lines of the output, each an object; the rest of the message goes to the end of it. */
static json_t *line_json(int number) {
  const char *at = program_output;
  json_error_t error;
  for (int i = 0; i < number && at; i++) at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL;
  json_t *root = at ? json_loads(at, JSON_DISABLE_EOF_CHECK, &error) : NULL;
  if (!root) fail_msg("line %d is not JSON: %s", number, program_output);
  return root;
}

static void requests(void **state) {
  program_must(
      "printf '%%s\\n' '{\"context\": \"kalo miten\", \"continuation\": \" sura\"}' ''"
      " '{\"context\": \"kalo miten \", \"continuation\": \"sura\", \"id\": {\"a\": [1]}}'"
      " '{\"continuation\": \"kalo\"}' '{\"context_tokens\": [5], \"continuation_tokens\": [6, 7]}'"
      " '{\"context\": \"kalo  \", \"continuation\": \"sura\"}' '{\"context\": \"kalo\", \"continuation\": \"  "
      "sura\"}' >requests.jsonl;"
      "printf '%%s\\n' '{\"context\": \"  \", \"continuation\": \"kalo\"}' '{\"continuation\": \"  kalo\"}' "
      ">>requests.jsonl;"
      "choir score run --requests requests.jsonl --tokens 2>/dev/null");
  json_t *a = line_json(0), *b = line_json(1), *c = line_json(2), *d = line_json(3), *e = line_json(4),
         *f = line_json(5), *g = line_json(6), *h = line_json(7);
  assert_true(json_at(g, "log_likelihood") ==
              json_at(h, "log_likelihood")); /* where nothing else stands in front, too */
  assert_true(json_at(a, "log_likelihood") == json_at(b, "log_likelihood"));
  assert_true(json_at(e, "log_likelihood") == json_at(f, "log_likelihood")); /* all spaces belong to what follows */
  assert_true(json_at(a, "log_likelihood") < 0 && json_at(c, "log_likelihood") < 0);
  assert_int_equal(json_at(a, "id"), 1);
  assert_true(json_is_object(json_object_get(b, "id")));
  assert_int_equal(json_at(d, "tokens"), 2);
  const json_t *values = json_object_get(d, "log_probabilities");
  double sum = json_number_value(json_array_get(values, 0)) + json_number_value(json_array_get(values, 1));
  assert_true(fabs(sum - json_at(d, "log_likelihood")) < 1e-5);
  assert_int_equal(json_integer_value(json_array_get(json_object_get(d, "token_ids"), 1)), 7);
  json_decref(a), json_decref(b), json_decref(c), json_decref(d), json_decref(e), json_decref(f), json_decref(g),
      json_decref(h);
  program_must(
      "choir score run --requests requests.jsonl --slots 1 --chunk 1 --threads 1 >one 2>/dev/null;"
      "choir score run --requests - --slots 3 --threads 2 <requests.jsonl >two 2>/dev/null; cmp one two");
}

/* A text has the bytes that are said, and not those up to its end. */
static void sizes_of_texts(void **state) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_score_result r;
  const choir_score_request requests[] = {
      {.context = {.text = "kalo miten", .size = 4}, .continuation = {.text = " sura miten", .size = 5}},
      {.context = {.text = "kalo"}, .continuation = {.text = " sura"}}};
  test_ok(choir_model_load("run", NULL, &model, &tokenizer));
  test_ok(choir_model_set_routing(model, "threshold"));
  test_ok(choir_score(model, tokenizer, requests, 2, NULL, &r));
  assert_int_equal(r.score[0].count, r.score[1].count);
  assert_true(r.score[0].log_likelihood == r.score[1].log_likelihood);
  choir_score_result_clear(&r);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

/* Generate writes what is greedy: a token, whose text is that token again. */
static void greedy(void **state) {
  program_must(
      "choir generate run --prompt 'kalo miten' --max-tokens 1 --temperature 0 --json 2>/dev/null |"
      "sed 's/\"prompt\"/\"context\"/; s/\"text\"/\"continuation\"/; s/, *\"prompt_tokens.*/}/' |"
      "choir score run --requests - 2>/dev/null");
  json_t *root = program_json();
  assert_true(json_is_true(json_object_get(root, "greedy")));
  assert_int_equal(json_at(root, "tokens"), 1);
  json_decref(root);
}

static void tasks(void **state) {
  program_must("choir score run --task mine.json --data set --out p.tsv --json 2>/dev/null");
  json_t *root = program_json(), *own = json_object_get(root, "threshold"), *batch = json_object_get(root, "batch");
  assert_int_equal(json_at(root, "examples"), 18);
  assert_true(json_at(root, "majority") == 0.5);
  assert_int_equal(json_at(own, "labelled"), 18);
  assert_true(json_at(own, "accuracy") == json_at(own, "correct") / 18 && json_at(own, "f1") >= 0);
  assert_true(json_is_null(json_object_get(own, "matthews")));
  assert_int_equal(json_at(batch, "batch_sequences"), 32);
  json_decref(root);
  program_must(
      "head -n 1 p.tsv | grep -qx 'index\tprediction'; test $(wc -l <p.tsv) = 19;"
      "choir score run --task mine.json --data set --slots 2 --out q.tsv >text 2>/dev/null; cmp p.tsv q.tsv;"
      "grep -q 'each text by itself' text; grep -q \"majority .*50.00\" text; grep -q '32 texts' text;"
      "choir score run --task mine.json --data set --split test --out q.jsonl >text 2>/dev/null;"
      "grep -q 'no labels' text; head -n 1 q.jsonl | grep -q '{\"idx\": 0, \"label\": \"'");
  program_must(/* a batch larger than the set is not filled up with padding */
               "for B in 18 100000000; do choir score run --task mine.json --data set --batch $B 2>/dev/null "
               "| "
               "sed -n 's/^\\(batch  *accuracy.*\\)in batches.*/\\1/p' >by$B; done; test -s by18 && cmp by18 "
               "by100000000");
}

static void refusals(void **state) {
  program_refuses(2, "--requests", "choir score run");
  program_refuses(2, "--data", "choir score run --task RTE");
  program_refuses(2, "--task", "choir score run --requests x --out y");
  program_refuses(2, "--requests", "choir score run --task RTE --data set --tokens");
  program_refuses(1, "did you mean 'RTE'", "choir score run --task RTEE --data set");
  program_refuses(1, "train.tsv", "choir score run --task RTE --data set --split train");
  program_refuses(1, "line 2: unknown key \"contxt\"",
                  "printf '{\"continuation\": \"a\"}\\n{\"contxt\": \"a\"}' | choir score run --requests -");
  program_refuses(1, "line 1", "echo '{\"continuation_tokens\": [-1]}' | choir score run --requests -");
  program_refuses(1, "give one of them",
                  "echo '{\"continuation_tokens\": [1], \"continuation\": \"a\"}' | choir score run --requests -");
  program_refuses(1, "request 1 of 1", "echo '{\"context\": \"a\"}' | choir score run --requests -");
  program_refuses(1, "the continuation is empty", /* and has no spaces of the context */
                  "echo '{\"context\": \"a \", \"continuation\": \"\"}' | choir score run --requests -");
  program_refuses(1, "no requests", "choir score run --requests /dev/null");
  program_refuses(1, "absent", "choir score run --requests absent");
  program_refuses(1, "malformed",
                  "mkdir -p bad; printf 'text\\tlabel\\na\\tgood\\nb\\tugly\\nc\\td\\te\\n' >bad/dev.tsv;"
                  "choir score run --task mine.json --data bad");
}

TEST_MAIN(set_up, program_directory_remove, requests, sizes_of_texts, greedy, tasks, refusals)
