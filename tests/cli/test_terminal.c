/* Escape sequences from models, prompts and names that reach a terminal are shown, not sent. Elsewhere text is left as
 * it is. */
#include "base/machine.h"
#include "choir/choir.h"
#include "terminal.h"

static void generated_text(void **state) {
  /* fresh weights: any byte may come */
  program_must("choir init config.json --set router.name=switch_top1 --tokenizer tokenizer.model --out wild");
  program_must("for i in $(seq 40); do echo ka; done >many");
  program_must(
      "choir generate wild --prompts many --max-tokens 200 --temperature 50 2>/dev/null >raw; grep -q \"$(printf "
      "'\\033')\" raw");
  assert_int_equal(on_a_terminal("choir generate wild --prompts many --max-tokens 200 --temperature 50"), 0);
  assert_non_null(strstr(screen, "\\x1B"));
  nothing_is_obeyed();
  program_must("printf 'ka\\033[31mlo\\nmi\\302\\2331mten\\n' >prompts");
  assert_int_equal(on_a_terminal("choir generate wild --prompts prompts --max-tokens 2"), 0);
  assert_non_null(strstr(screen, "ka\\x1B[31mlo"));
  assert_non_null(strstr(screen, "mi\\u009B1mten"));
  nothing_is_obeyed();
  assert_int_equal(on_a_terminal("choir generate wild --prompts prompts --max-tokens 2 --json"), 0);
  nothing_is_obeyed();
}

/* The line that shows progress is cleared, the text that has taken its place stays. */
static void text_stays(void **state) {
  assert_int_equal(on_a_terminal("choir generate wild --prompt ka --max-tokens 3"), 0);
  char *bold = strstr(screen, "\033[1mka\033[0m"); /* the prompt, and nothing else */
  assert_non_null(bold);
  assert_null(strchr(bold + strlen("\033[1mka\033[0m"), '\033'));
  assert_ptr_equal(strchr(screen, '\033'), bold);
}

/* Lines of progress on the screen: each says what is done, which grows, and fits a terminal this narrow (0: any).
 * *first and *last: the seconds left that the first and the last of them tell. */
static int progress_lines(int narrow, int *first, int *last) {
  long long done, before = 0, total;
  int lines = 0, minutes = 0, seconds = 0;
  for (char *at = screen, *end; (at = strchr(at, '\r')) && (end = strstr(at, "\033[K")); at = end) {
    if (end == at + 1) break;                                                       /* cleared */
    if (!strncmp(at, "\rreading the text", strlen("\rreading the text"))) continue; /* on a slow machine */
    assert_int_equal(sscanf(at, "\r%lld of %lld ", &done, &total), 2);
    assert_true(done > before && done < total && !memchr(at, '\n', (size_t)(end - at)));
    before = done;
    if (narrow)
      assert_true(end - at <= narrow && strchr("0123456789sy", end[-1])); /* whole words: a number, sequences, by */
    else if (sscanf(at, "\r%*d of %*d sequences by %*s routing, %d:%d left", &minutes, &seconds) != 2)
      fail_msg("%.*s", (int)(end - at), at);
    *last = 60 * minutes + seconds;
    if (!lines++) *first = *last;
  }
  return lines;
}

/* Progress is one line, drawn anew, that says what is done and how long the rest takes: less and less. It is cut where
 * the terminal ends, or it could not be drawn over. A text too short for that on this machine is doubled. */
static void progress_is_one_line(void **state) {
  int first = 0, last = 0, lines[2] = {0};
  program_must("cp corpus.txt long.txt");
  for (int narrow = 0; narrow < 2; narrow++) {
    int enough = narrow ? 1 : 3; /* more than half a second, of which less and less is left */
    for (int doubled = 0; lines[narrow] < enough && doubled < 12; doubled++) {
      if (doubled) program_must("cat long.txt long.txt >longer.txt; mv longer.txt long.txt");
      assert_int_equal(
          on_a_terminal(narrow ? "stty cols 20; choir eval wild --text long.txt" : "choir eval wild --text long.txt"),
          0);
      lines[narrow] = progress_lines(narrow ? 20 : 0, &first, &last);
    }
    assert_true(lines[narrow] >= enough);
    if (!narrow) assert_true(last <= first);
  }
  double begin = ch_machine_seconds(); /* into a file only every ten seconds, as lines */
  program_must("choir eval wild --text long.txt 2>said");
  int tens = (int)((ch_machine_seconds() - begin) / 10);
  program_must("test $(wc -l <said) -le %d && ! grep -q \"$(printf '\\r')\" said", tens);
}

static void text_and_pieces(void **state) {
  program_must("printf 'a\\033[2Jb\\a\\tc\\n' | choir tokenizer encode --tokenizer tokenizer.model >ids");
  program_must("choir tokenizer decode --tokenizer tokenizer.model ids");
  assert_string_equal(program_output, "a\033[2Jb\a\tc\n");
  assert_int_equal(on_a_terminal("choir tokenizer decode --tokenizer tokenizer.model ids"), 0);
  assert_non_null(strstr(screen, "a\\x1B[2Jb\\x07\tc"));
  nothing_is_obeyed();
}

/* A character may be a piece, and statistics name pieces. */
static void control_characters_in_tokens(void **state) {
  program_must(
      "for i in $(seq 200); do printf 'ka \\302\\233mi lo\\n'; done >c1; choir tokenizer train --type char "
      "--vocab-size "
      "280 --out c1.model c1; choir init config.json --set model.vocab_size=0 --tokenizer c1.model --out c1-run");
  program_must("choir stats c1-run --text c1 --json");
  assert_non_null(strstr(program_output, "\"\xC2\x9B\""));
  assert_int_equal(on_a_terminal("choir stats c1-run --text c1 --json"), 0);
  assert_non_null(strstr(screen, "\"\\u009B\""));
  nothing_is_obeyed();
}

static void names(void **state) {
  program_must("sed 's/\"tiny\"/\"ti\\\\u001b[31mny\\\\u202e\"/' config.json >red.json");
  assert_int_equal(on_a_terminal("choir info red.json"), 0);
  assert_non_null(strstr(screen, "ti\\x1B[31mny\\u202E"));
  nothing_is_obeyed();
  program_must("choir info red.json");
  assert_non_null(strstr(program_output, "ti\033[31mny"));
  /* A tensor's name that would forge a line of its own. */
  choir_tensor t = {.name = "x\nchoir: all is well\033[2J",
                    .dtype = CHOIR_F32,
                    .dims = 1,
                    .shape = {1},
                    .data = &(float){1},
                    .bytes = 4};
  program_must("cp -r wild forged");
  test_ok(choir_tensors_write("forged/model.safetensors", &t, 1, NULL));
  program_refuses(1, "model.safetensors", "choir generate forged --prompt ka");
  assert_null(strchr(program_output, '\033'));
  assert_int_equal(strcspn(program_output, "\n") + 1, strlen(program_output)); /* one line */
  assert_int_equal(
      on_a_terminal("choir train --set \"$(printf 'a\\033[31m\\nb')\" --out x --config config.json --data data"), 2);
  nothing_is_obeyed();
}

/* Files that people pass on: every text in them, by the verbs that show it. */
static void clusters_and_tasks(void **state) {
  program_must(
      "sed 's/\"name\": \"/&\\\\u001b]0;PWN\\\\u0007/; s/\"notes\": \"/&\\\\u001b[2J/; s/\"currency\": "
      "\"/&\\\\u001b[2J/' " CHOIR_SOURCE_DIR
      "/examples/clusters/ethernet-8.json >evil.json; grep -q 'u001b' evil.json");
  assert_int_equal(on_a_terminal("choir plan config.json --vocab-size 320 --ranks 1 --cluster evil.json"), 0);
  assert_non_null(strstr(screen, "\\x1B]0;PWN"));
  nothing_is_obeyed();
  program_must(
      "mkdir evil-set && printf 'text\\tlabel\\nka mire\\tgood\\nlo\\tfair\\n' | tee evil-set/train.tsv "
      ">evil-set/dev.tsv;"
      "printf '%%s' '{\"name\": \"\\u001b]0;PWN\\u0007\", \"format\": \"tsv\", \"splits\": {\"train\": "
      "[\"train.tsv\"], "
      "\"dev\": [\"dev.tsv\"]}, \"columns\": {\"text\": [\"text\"]}, \"label\": [\"label\"], \"labels\": [{\"word\": "
      "\" ka\", \"values\": [\"good\"]}, {\"word\": \" \\u001b[2Jlo\", \"values\": [\"fair\"]}], \"template\": "
      "\"{text}\\nis\", \"cut\": \"text\"}' >evil-task.json");
  assert_int_equal(on_a_terminal("choir score wild --task evil-task.json --data evil-set"), 0);
  assert_non_null(strstr(screen, "\\x1B]0;PWN"));
  nothing_is_obeyed();
}

TEST_MAIN(program_setup, program_directory_remove, generated_text, text_stays, progress_is_one_line, text_and_pieces,
          control_characters_in_tokens, names, clusters_and_tasks)
