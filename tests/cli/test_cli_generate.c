/* choir generate on a small model that has seen a few batches. */
#include <math.h>

#include "base/text.h"
#include "choir/choir.h"
#include "program.h"

/* The texts of JSON lines in program_output, in order; freed by the caller. */
static int read_rows(json_t **rows, int max) {
  int count = 0;
  for (char *line = strtok(program_output, "\n"); line && count < max; line = strtok(NULL, "\n")) {
    rows[count] = json_loads(line, JSON_ALLOW_NUL, NULL);
    if (!rows[count]) fail_msg("not JSON: %s", line);
    count++;
  }
  return count;
}

static const char *text_of(const json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

/* A streamed text is that of --json; the speed stands on standard error alone. */
static void one_prompt(void **state) {
  json_t *row = NULL;
  program_must("choir generate run --prompt 'kalo miten' --max-tokens 40 --seed 5 --json 2>speed");
  assert_int_equal(read_rows(&row, 1), 1);
  assert_int_equal(ch_utf8_valid(text_of(row, "text"), strlen(text_of(row, "text"))), strlen(text_of(row, "text")));
  assert_string_equal(text_of(row, "prompt"), "kalo miten");
  assert_true(json_at(row, "tokens") <= 40 && json_at(row, "prompt_tokens") > 0);
  program_must("cat speed");
  assert_non_null(strstr(program_output, "tokens/s"));
  program_must("choir generate run --prompt 'kalo miten' --max-tokens 40 --seed 5 2>/dev/null");
  char both[4096];
  size_t size = (size_t)snprintf(both, sizeof both, "kalo miten%s", text_of(row, "text"));
  assert_int_equal(strncmp(program_output, both, size), 0);
  assert_true(strlen(program_output) <= size + 1);
  program_must("printf 'kalo miten\\n' | choir generate run --prompt - --max-tokens 40 --seed 5 2>/dev/null");
  assert_int_equal(strncmp(program_output, both, size), 0);
  program_must("choir generate run --prompt 'kalo miten' --max-tokens 40 --seed 6 2>/dev/null");
  assert_int_not_equal(strncmp(program_output, both, size), 0);
  json_decref(row);
}

/* No prompt, and an empty one: a document begins, behind the end of one before. */
static void documents_begin(void **state) {
  json_t *row = NULL;
  program_must("choir generate run --max-tokens 20 --seed 5 --json 2>/dev/null >begun");
  program_must("choir generate run --prompt '' --max-tokens 20 --seed 5 --json 2>/dev/null >empty; cmp begun empty");
  program_must(
      "printf '\\n\\n' | choir generate run --prompts - --max-tokens 20 --seed 5 --json 2>/dev/null | head -n 1 | cmp "
      "begun");
  program_must("cat begun");
  assert_int_equal(read_rows(&row, 1), 1);
  assert_string_equal(text_of(row, "prompt"), "");
  assert_true(json_at(row, "prompt_tokens") == 1 && json_at(row, "tokens") > 0);
  json_decref(row);
}

/* Lines and JSON lines are the same prompts; batch, chunk and threads change no byte; order is that of the file. */
static void many_prompts(void **state) {
  json_t *rows[4];
  program_must(
      "printf 'kalo\\nmiten sur a\\nre\\r\\nvo nipel dor e kalo miten sur' >p.txt;"
      "for p in 'kalo' 'miten sur a' 're' 'vo nipel dor e kalo miten sur'; do"
      " printf '{\"id\": 1, \"prompt\": \"%%s\"}\\n' \"$p\"; done >p.jsonl");
  program_must("choir generate run --prompts p.txt --max-tokens 30 --json 2>/dev/null >one");
  program_must("choir generate run --prompts p.jsonl --max-tokens 30 --json 2>/dev/null >two; cmp one two");
  program_must(
      "{ echo; sed 's/^{/ {/' p.jsonl; echo; } >q.jsonl; "
      "choir generate run --prompts q.jsonl --max-tokens 30 --json 2>/dev/null >two; cmp one two");
  program_must("choir generate run --prompts - <p.txt --max-tokens 30 --json 2>/dev/null >two; cmp one two");
  for (int slots = 1; slots < 5; slots++)
    program_must(
        "choir generate run --prompts p.txt --max-tokens 30 --json --slots %d --chunk %d --threads %d "
        "2>/dev/null >two; cmp one two",
        slots, 9 - 2 * slots, slots);
  program_must("cat one");
  assert_int_equal(read_rows(rows, 4), 4);
  assert_string_equal(text_of(rows[2], "prompt"), "re");
  program_must("choir generate run --prompts p.txt --max-tokens 30 2>/dev/null");
  char *at = program_output; /* each prompt with its text, in order */
  for (int i = 0; i < 4; i++) {
    char both[4096];
    snprintf(both, sizeof both, "%s%s%s\n", i ? "---\n" : "", text_of(rows[i], "prompt"), text_of(rows[i], "text"));
    assert_int_equal(strncmp(at, both, strlen(both)), 0);
    at += strlen(both);
    json_decref(rows[i]);
  }
}

/* Gives what comes without a stop text, cut where the stop text first comes. */
static void stop_texts(void **state) {
  json_t *row = NULL;
  program_must("choir generate run --prompt kalo --max-tokens 90 --temperature 0.6 --seed 2 --json 2>/dev/null");
  assert_int_equal(read_rows(&row, 1), 1);
  const char *text = text_of(row, "text");
  size_t size = strlen(text);
  assert_true(size > 20);
  size_t at = size / 2; /* wherever that falls among tokens, but on four letters, which the shell leaves alone */
  while (text[at] && strspn(text + at, "aeikldmnoprstuv") < 4) at++;
  assert_true(text[at]);
  char stop[8] = "", want[4096], whole[4096];
  memcpy(stop, text + at, 4);
  snprintf(want, sizeof want, "%.*s", (int)(strstr(text, stop) - text), text);
  snprintf(whole, sizeof whole, "%s", text);
  json_decref(row);
  program_must(/* what looks like the beginning of one at the very end is held back, and comes after all */
               "choir generate run --prompt kalo --max-tokens 90 --temperature 0.6 --seed 2 --stop '%cQZX' --json "
               "2>/dev/null",
               whole[size - 1]);
  assert_int_equal(read_rows(&row, 1), 1);
  assert_string_equal(text_of(row, "text"), whole);
  json_decref(row);
  program_must(
      "choir generate run --prompt kalo --max-tokens 90 --temperature 0.6 --seed 2 --stop 'no such text' --stop '%s' "
      "--json "
      "2>/dev/null",
      stop);
  assert_int_equal(read_rows(&row, 1), 1);
  assert_string_equal(text_of(row, "text"), want);
  assert_string_equal(text_of(row, "end"), "stop");
  json_decref(row);
}

/* The end of a document ends a text, and is none of its tokens: with room for these alone it has the same. */
static void ends_of_documents(void **state) {
  enum { ROWS = 40 };
  json_t *rows[2][ROWS];
  int max = 100, ended = -1;
  program_must(
      "choir init config.json --set router.name=switch_top1 --tokenizer tokenizer.model --out wild;"
      "for i in $(seq %d); do echo ka; done >same",
      ROWS); /* fresh weights: any token may come */
  for (int k = 0; k < 2; k++) {
    program_must("choir generate wild --prompts same --max-tokens %d --temperature 50 --json 2>/dev/null", max);
    assert_int_equal(read_rows(rows[k], ROWS), ROWS);
    for (int i = 0; i < ROWS && ended < 0; i++)
      if (!strcmp(text_of(rows[k][i], "end"), "eos")) ended = i, max = (int)json_at(rows[k][i], "tokens");
    assert_true(ended >= 0 && max > 0);
  }
  assert_string_equal(text_of(rows[1][ended], "end"), "length");
  assert_true(json_equal(json_object_get(rows[1][ended], "text"), json_object_get(rows[0][ended], "text")));
  assert_int_equal(json_at(rows[1][ended], "tokens"), max);
  for (int i = 0; i < 2 * ROWS; i++) json_decref(rows[i / ROWS][i % ROWS]);

  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  choir_prompt prompts[ROWS];
  for (int i = 0; i < ROWS; i++) prompts[i] = (choir_prompt){.text = "ka"};
  test_ok(choir_model_load("wild", NULL, &model, &tokenizer));
  test_ok(choir_model_set_routing(model, "threshold"));
  o.temperature = 50, o.max_tokens = 100;
  test_ok(choir_generate(model, tokenizer, prompts, ROWS, &o, &r));
  int64_t tokens = 0;
  int ends = 0;
  for (int i = 0; i < ROWS; i++) tokens += r.sequences[i].count, ends += r.sequences[i].end == CHOIR_END_EOS;
  assert_true(ends > 0 && r.tokens == tokens); /* ends do not count there, either */
  choir_generate_result_clear(&r);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

static void refusals(void **state) {
  program_refuses(2, "give one of --prompt", "choir generate run --prompt a --prompts b");
  program_refuses(2, "must be a number", "choir generate run --prompt a --temperature hot");
  program_refuses(1, "temperature is -1", "choir generate run --prompt a --temperature -1");
  program_must(/* as Windows writes it: a mark in front, \\r, an empty line */
               "printf '\\357\\273\\277{\"prompt\": \"ka\"}\\r\\n\\r\\n{\"prompt\": \"lo\"}\\n' >marked;"
               "test $(choir generate run --prompts marked --json --max-tokens 2 | grep -c '\"prompt\":\"[kl][ao]\"') "
               "-eq 2");
  program_refuses(
      1, "line 3: duplicate object key",
      "printf '{\"prompt\": \"a\"}\\n\\n{\"prompt\": \"a\", \"prompt\": \"b\"}' | choir generate run --prompts -");
  program_refuses(1, "no prompts", "choir generate run --prompts /dev/null");
  program_refuses(1, "nowhere", "choir generate run --prompts nowhere");
  program_refuses(1, "not UTF-8 (0xFF)", "choir generate run --prompt \"$(printf 'a\\377')\"");
  program_refuses(1, "line 2", "printf '{\"prompt\": \"a\"}\\n{\"text\": 1}\\n' | choir generate run --prompts -");
  program_refuses(1, "line 1", "printf '{\"prompt\": \"a}\\n' | choir generate run --prompts -");
  program_refuses(1, "looks at later tokens", "choir generate run --prompt a --routing batch");
  program_refuses(1, "did you mean 'threshold'", "choir generate run --prompt a --routing treshold");
  program_refuses(1, "together at most", "choir generate run --prompt a --max-tokens 2000000000");
  program_refuses(1, "caches of keys and values",
                  "yes a | head -1000 >many; choir generate run --prompts many --slots "
                  "1000 --max-tokens 60000000");
  program_must("choir init config.json --vocab-size 320 --out bare");
  program_refuses(1, "tokenizer.model", "choir generate bare --prompt a");
  program_must("cp tokenizer.model bare");
  program_refuses(1, "train the model first", "choir generate bare --prompt a");
}

/* Ctrl-C: the text so far is printed whole, and the status is 0. */
static void interrupt(void **state) {
  static const char command[] =
      "exec '" CHOIR_PROGRAM "' generate run --prompt kalo --max-tokens 2000000 --temperature 0";
  pid_t child = program_start(command, "partial");
  size_t size = 0;
  for (int i = 0; i < 1000 && size < 100; i++) {
    usleep(10000);
    free(program_read("partial", &size));
  }
  test_signal(child, SIGINT);
  assert_int_equal(program_wait(child), 0);
  program_must("cat partial");
  assert_non_null(strstr(program_output, "end: interrupted"));
}

static int stop_at_once(void *context, const choir_progress *p) { return ++*(int *)context; }

static int count_done(void *context, const choir_event *e) {
  const choir_generated *g = e->text->generated;
  *(int *)context += 1000 * (e->kind == CHOIR_EVENT_END && g->end == CHOIR_END_INTERRUPTED && !g->count && !*g->text);
  return 0;
}

/* A stop requested while a long prompt is encoded is no error, either: every sequence ends before its first token. */
static void interrupt_before_the_first_pass(void **state) {
  enum { SIZE = 1 << 18 };
  static const char words[] = "kalo miten ";
  char *text = malloc(SIZE);
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  int seen = 0;
  for (int i = 0; i < SIZE; i++) text[i] = words[(size_t)i % (sizeof words - 1)];
  const choir_prompt prompts[] = {{.text = "kalo"}, {.text = text, .size = SIZE}, {.text = "re"}};
  test_ok(choir_model_load("run", NULL, &model, &tokenizer));
  o.progress = stop_at_once, o.event = count_done, o.context = &seen;
  test_ok(choir_generate(model, tokenizer, prompts, 3, &o, &r));
  assert_int_equal(seen, 3001); /* END came for all three, and `progress` was not called again */
  assert_int_equal(r.count, 3);
  assert_int_equal(r.tokens + r.prompt_tokens, 0);
  choir_generate_result_clear(&r);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
  free(text);
}

typedef struct {
  char text[3][4096];
  size_t size[3];
  int asked, max;
} streamed;

static int append_text(void *context, const choir_event *e) {
  streamed *s = context;
  int sequence = e->text->sequence;
  assert_true(s->size[sequence] + e->text->size <= sizeof s->text[sequence]);
  if (e->kind == CHOIR_EVENT_TEXT) memcpy(s->text[sequence] + s->size[sequence], e->text->text, e->text->size);
  s->size[sequence] += e->text->size;
  return 0;
}

static int stop_later(void *context, const choir_progress *p) {
  streamed *s = context;
  return ++s->asked == s->max;
}

/* What comes piece by piece is the text in the end, whether it ends by itself or is ended. */
static void pieces_are_the_text(void **state) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  const choir_prompt prompts[] = {{.text = "kalo"}, {.text = "miten sur"}, {.text = "re"}};
  test_ok(choir_model_load("run", NULL, &model, &tokenizer));
  test_ok(choir_model_set_routing(model, "threshold"));
  o.max_tokens = 30, o.batch = 2;
  for (int max = 0; max <= 20; max += 10) {
    streamed s = {.max = max};
    o.event = append_text, o.progress = stop_later, o.context = &s;
    test_ok(choir_generate(model, tokenizer, prompts, 3, &o, &r));
    assert_int_equal(r.sequences[2].end == CHOIR_END_INTERRUPTED, max > 0);
    assert_true(s.size[0] > 0);
    for (int i = 0; i < 3; i++) {
      assert_int_equal(r.sequences[i].size, s.size[i]);
      assert_memory_equal(r.sequences[i].text, s.text[i], s.size[i]);
    }
    choir_generate_result_clear(&r);
  }
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

/* A text has the bytes that are said, and not those up to its end; without a number it is all of it. */
static void sizes_of_texts(void **state) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options o = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result r;
  const choir_prompt prompts[] = {{.text = "kalo miten", .size = 4}, {.text = "kalo"}, {.text = "kalo miten"}};
  test_ok(choir_model_load("run", NULL, &model, &tokenizer));
  test_ok(choir_model_set_routing(model, "threshold"));
  o.max_tokens = 1;
  test_ok(choir_generate(model, tokenizer, prompts, 3, &o, &r));
  assert_int_equal(r.sequences[0].prompt_count, r.sequences[1].prompt_count);
  assert_true(r.sequences[2].prompt_count > r.sequences[1].prompt_count);
  choir_generate_result_clear(&r);
  const int32_t end = choir_tokenizer_eos(tokenizer);
  o.max_tokens = 12, o.temperature = 0; /* an empty one is the end of a text */
  test_ok(choir_generate(model, tokenizer, (choir_prompt[]){{.text = ""}, {.tokens = &end, .count = 1}}, 2, &o, &r));
  assert_string_equal(r.sequences[0].text, r.sequences[1].text);
  choir_generate_result_clear(&r);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
}

TEST_MAIN(program_setup_run, program_directory_remove, one_prompt, documents_begin, many_prompts, stop_texts,
          ends_of_documents, refusals, interrupt, interrupt_before_the_first_pass, pieces_are_the_text, sizes_of_texts)
