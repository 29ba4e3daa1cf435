/* Files that people pass on, with hostile text in every text that they hold, one at a time, through the verbs that read
 * them: a terminal gets no control characters, pages get no markup and keep their policy, and nothing crashes. */
#include "terminal.h"

static char endless[5001];
static const char *const hostile[] = {
    "\033]0;P\a</b><img src=x>%n%s\n\xC2\x9B", /* as long as the name of a model may be */
    endless, "</script><script>run()</script>\xFF\xFE\033[2J"};
enum { HOSTILE = sizeof hostile / sizeof *hostile };
#define PLACE "THE-PLACE"

/* A JSON file `from`, which is changed into `to`; what reads that; the page that it writes, or NULL. `header`: it is a
 * safetensors file, whose header is the JSON. */
typedef struct {
  const char *from, *to, *command, *page;
  int header;
} reading;

static const reading readings[] = {
    {"config.json", "evil.json",
     "choir info evil.json; rm -rf new; choir init evil.json --tokenizer tokenizer.model --out new", NULL, 0},
    {"config.json", "evil.json",
     "choir plan evil.json --vocab-size 320 --ranks 1 --cluster cluster.json --out page.html", "page.html", 0},
    {"cluster.json", "evil.json",
     "choir plan config.json --vocab-size 320 --ranks 1 --cluster evil.json --out page.html", "page.html", 0},
    {"task.json", "evil.json", "choir score run --task evil.json --data set --batch 0", NULL, 0},
    {"task.json", "evil.json",
     "rm -rf new; choir finetune --init-from run --task evil.json --data set --out new --set steps=1", NULL, 0},
    {"request.json", "evil.json", "choir score run --requests evil.json --tokens", NULL, 0},
    {"plain/config.json", "evil/config.json",
     "choir inspect evil --unchecked --text text --out page.html; choir eval evil --text text", "page.html", 0},
    {"plain/model.safetensors", "evil/model.safetensors", "choir generate evil --prompt ka --max-tokens 2", NULL, 1},
    {"plain/model.safetensors", "evil/model.safetensors", "choir inspect evil --unchecked --text text --out page.html",
     "page.html", 1},
    {"data/data.json", "evil-data/data.json", "choir data info evil-data; choir eval run --data evil-data", NULL, 0},
    {"run/config.json", "evil-run/config.json", "choir report evil-run --out page.html", "page.html", 0},
    {"run/config.json", "evil-run/config.json", "choir report run evil-run --out page.html", "page.html", 0},
    {"hf/config.json", "evil-hf/config.json", "rm -rf new; choir import --out new evil-hf", NULL, 0},
};

/* Replaces text number *left below `value`, keys too; *left is -1 then. */
static void replace(json_t *value, int *left) {
  const char *key;
  json_t *inner, *place = json_string(PLACE);
  void *next;
  json_object_foreach_safe(value, next, key, inner) {
    if ((*left)-- == 0) {
      json_object_set(value, PLACE, inner);
      json_object_del(value, key);
      break;
    }
    if (json_is_string(inner) && (*left)-- == 0) json_object_set(value, key, place);
    if (*left >= 0) replace(inner, left);
    if (*left < 0) break;
  }
  for (size_t i = 0; json_is_array(value) && i < json_array_size(value) && *left >= 0; i++) {
    inner = json_array_get(value, i);
    if (json_is_string(inner) && (*left)-- == 0) json_array_set(value, i, place);
    if (*left >= 0) replace(inner, left);
  }
  json_decref(place);
}

/* Writes a text as a JSON string; bytes that are not UTF-8 are written unchanged. */
static void put_escaped(FILE *file, const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 32 || *text == '"' || *text == '\\')
      fprintf(file, "\\u%04x", *text);
    else
      fputc(*text, file);
}

/* Writes the file with one of its texts replaced; 0: it has no such number. */
static int spoil(const reading *r, int number, const char *text) {
  size_t size, header = 0;
  char *bytes = program_read(r->from, &size);
  uint64_t length = size;
  assert_non_null(bytes);
  if (r->header) memcpy(&length, bytes, sizeof length), header = sizeof length;
  json_t *root = json_loadb(bytes + header, length, 0, NULL);
  assert_non_null(root);
  replace(root, &number);
  char *words = json_dumps(root, JSON_COMPACT), *place = strstr(words, PLACE), *made;
  size_t made_size;
  FILE *file = open_memstream(&made, &made_size);
  assert_true(words && file);
  fprintf(file, "%.*s", place ? (int)(place - words) : 0, words);
  if (place) put_escaped(file, text), fputs(place + strlen(PLACE), file);
  while (r->header && ftell(file) % 8) fputc(' ', file);
  fclose(file);
  file = fopen(r->to, "wb");
  length = made_size;
  if (r->header) fwrite(&length, sizeof length, 1, file);
  fwrite(made, 1, made_size, file);
  if (r->header)
    fwrite(bytes + header + (size_t)(*(uint64_t *)bytes), 1, size - header - (size_t)(*(uint64_t *)bytes), file);
  fclose(file);
  json_decref(root);
  free(words), free(made), free(bytes);
  return place != NULL;
}

static int count_of(const char *text, const char *word) {
  int count = 0;
  for (; (text = strstr(text, word)); text++) count++;
  return count;
}

/* A page's policy is there and allows no more than its own scripts, of which no text has made another. */
static int scripts_of(const char *page, int wanted) {
  size_t size;
  char *html = program_read(page, &size);
  if (!html && wanted < 0) fail_msg("%s: not written of what is not hostile", page);
  if (!html) return wanted;
  int scripts = count_of(html, "<script");
  if (count_of(html, "http-equiv=Content-Security-Policy content=\"default-src 'none'; ") != 1)
    fail_msg("%s: no policy", page);
  if (strstr(html, "<img") || (wanted >= 0 && scripts != wanted))
    fail_msg("%s: live markup, %d scripts for %d", page, scripts, wanted);
  free(html);
  return scripts;
}

static void every_text(void **state) {
  for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
    const reading *r = &readings[i];
    int runs = 0, scripts = -1;
    program_must("cp %s %s; %s", r->from, r->to, r->command);
    if (r->page) scripts = scripts_of(r->page, -1);
    for (int h = 0; h < HOSTILE; h++)
      for (int number = 0; spoil(r, number, hostile[h]); number++, runs++) {
        if (r->page) unlink(r->page);
        int status = on_a_terminal(r->command);
        if (status > 3) fail_msg("%s, text %d: status %d of %s: %s", r->from, number, status, r->command, screen);
        nothing_is_obeyed();
        if (r->page) scripts_of(r->page, scripts);
      }
    program_must("cp %s %s", r->from, r->to);
    if (runs < HOSTILE) fail_msg("%s has no text", r->from);
  }
}

/* Names of files, by every verb that takes one. */
static void every_name(void **state) {
  static const char *const commands[] = {"info \"$H\"",
                                         "train --config \"$H\" --data \"$H\" --out \"$H\"",
                                         "train --resume --out \"$H\"",
                                         "eval \"$H\" --data \"$H\"",
                                         "calibrate \"$H\" --text \"$H\" --out \"$H\"",
                                         "generate \"$H\" --prompt \"$H\"",
                                         "generate run --prompts \"$H\"",
                                         "finetune --init-from \"$H\" --task \"$H\" --data \"$H\" --out \"$H\"",
                                         "score run --requests \"$H\"",
                                         "score run --task \"$H\" --data \"$H\"",
                                         "export --format hf --out \"$H\" \"$H\"",
                                         "import --out \"$H\" \"$H\"",
                                         "forward run \"$H\"",
                                         "route --router \"$H\" \"$H\"",
                                         "route --router expert_choice \"$H\"",
                                         "probe \"$H\"",
                                         "bench \"$H\"",
                                         "report \"$H\" --out \"$H\"",
                                         "stats run --text \"$H\"",
                                         "inspect run --text \"$H\" --out \"$H\"",
                                         "plan config.json --cluster \"$H\"",
                                         "tokenizer train --out \"$H\" \"$H\"",
                                         "tokenizer encode --tokenizer \"$H\"",
                                         "data build --tokenizer \"$H\" --out \"$H\" \"$H\"",
                                         "data build --tokenizer tokenizer.model --out d \"$H\"=corpus.txt",
                                         "data info \"$H\"",
                                         "init \"$H\" --out \"$H\"",
                                         "help \"$H\"",
                                         "\"$H\"",
                                         "info config.json \"--$H\"",
                                         "info config.json --set \"$H=1\"",
                                         "info config.json --set \"name=$H\"",
                                         "info --backend \"$H\" config.json",
                                         "eval run --data data --backend \"$H\"",
                                         "study run \"$H\"",
                                         "study status \"$H\""};
  for (int h = 0; h < HOSTILE; h++) {
    setenv("H", hostile[h], 1);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
      char command[256];
      snprintf(command, sizeof command, "choir %s", commands[i]);
      int status = on_a_terminal(command);
      if (status > 3) fail_msg("status %d of %s: %s", status, command, screen);
      nothing_is_obeyed();
    }
  }
}

static int setup(void **state) {
  static const char task[] =
      "{\"name\": \"mine\", \"format\": \"tsv\", \"splits\": {\"train\": [\"rows.tsv\"], \"dev\": [\"rows.tsv\"]},"
      "\"columns\": {\"text\": [\"text\"]}, \"label\": [\"label\"], \"labels\": [{\"word\": \" ka\", \"values\": "
      "[\"good\"]}, {\"word\": \" lo\", \"values\": [\"bad\"]}], \"template\": \"{text}\\nis\", \"cut\": \"text\"}";
  static const char request[] = "{\"id\": \"one\", \"context\": \"ka lo\", \"continuation\": \" mi\"}";
  if (program_setup(state)) return -1;
  memset(endless, 'a', sizeof endless - 1);
  memcpy(endless, "\033[2J", 4), memcpy(endless + sizeof endless - 6, "\033[2J\a", 5);
  test_ok(ch_file_save("task.json", task, sizeof task - 1));
  test_ok(ch_file_save("request.json", request, sizeof request - 1));
  program_must("cp '" CHOIR_SOURCE_DIR
               "/examples/clusters/ethernet-8.json' cluster.json; head -n 5 corpus.txt >text; mkdir set; printf "
               "'text\\tlabel\\nka mi\\tgood\\nlo\\tbad\\n' >set/rows.tsv");
  program_must(
      "choir train --config config.json --data data --out run --set steps=2 && choir init config.json --set "
      "router.name=switch_top1 --tokenizer tokenizer.model --out plain && choir init config.json --set position=rope "
      "--set activation=swiglu --set moe_every=0 --tokenizer tokenizer.model --out dense && choir export --format hf "
      "--sequences 0 --out hf dense && cp -r plain evil && cp -r data evil-data && cp -r run evil-run && cp -r hf "
      "evil-hf");
  return 0;
}

TEST_MAIN(setup, program_directory_remove, every_text, every_name)
