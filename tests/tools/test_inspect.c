/* choir stats and choir inspect: figures that agree, and a page that is safe, whole and alive in a browser. */
#include <ctype.h>

#include "choir/choir.h"
#include "page.h"

/* Text that would break out of scripts, attributes and tables, and characters that the tokenizer must spell in bytes.
 */
static const char hostile[] =
    "</script><script>alert(1)</script> <!-- \" ' & \\ ]]> <img onerror=x>\n\ttab\r\n\x01\x7F\0nul "
    "caf\xC3\xA9 \xE2\x80\xA8 \xE2\x80\xAE \xF0\x9F\x98\x80 \xD8\xB3\xD9\x84\xD8\xA7\xD9\x85   end\n";

static int setup(void **state) {
  if (program_setup(state)) return -1;
  if (program_run("choir train --config config.json --set layers=4 --set steps=8 --set checkpoint_every=4 --data data "
                  "--out run"))
    return -1;
  FILE *file = fopen("hostile.txt", "wb");
  fwrite(hostile, 1, sizeof hostile - 1, file);
  return fclose(file);
}

static json_t *parsed(const char *text, size_t size) {
  json_error_t error;
  json_t *root = json_loadb(text, size, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &error);
  if (!root) fail_msg("not JSON: line %d: %s", error.line, error.text);
  return root;
}

static json_t *stats_of(const char *arguments) {
  program_must("choir stats run --json --threads 1 %s >stats.json", arguments);
  size_t size;
  char *text = program_read("stats.json", &size);
  json_t *root = parsed(text, size);
  free(text);
  return root;
}

/* The data of the page for these arguments. */
static json_t *page_of(const char *arguments) {
  program_must("choir inspect run --out page.html --threads 1 %s", arguments);
  return page_data("page.html");
}

static int occurrences(const char *text, const char *part) {
  int count = 0;
  for (; (text = strstr(text, part)); text++) count++;
  return count;
}

/* Reals on the page have six digits. */
static void agree(const json_t *a, const json_t *b, const char *where) {
  const char *key;
  json_t *value;
  size_t i;
  if (json_is_number(a) && json_is_number(b)) {
    double x = json_number_value(a), y = json_number_value(b);
    if (!(fabs(x - y) <= 1e-5 * fabs(y) + 1e-12)) fail_msg("%s: %g and %g", where, x, y);
    return;
  }
  if (json_typeof(a) != json_typeof(b)) fail_msg("%s: of two types", where);
  if (json_is_string(a)) assert_string_equal(json_string_value(a), json_string_value(b));
  assert_int_equal(json_array_size(a), json_array_size(b));
  assert_int_equal(json_object_size(a), json_object_size(b));
  json_object_foreach((json_t *)a, key, value) agree(value, json_object_get(b, key), key);
  json_array_foreach(a, i, value) agree(value, json_array_get(b, i), where);
}

/* Routes against the layer's own figures: histogram, load, mean gate. */
static void check_routes(const json_t *routes, const json_t *layer) {
  int64_t histogram[8] = {0}, load[8] = {0};
  double gates[8] = {0};
  size_t t, experts = json_array_size(json_object_get(layer, "load"));
  json_t *route;
  assert_int_equal(json_array_size(routes), (size_t)json_at(layer, "tokens"));
  json_array_foreach(routes, t, route) {
    histogram[json_array_size(route) / 2]++;
    for (size_t i = 0; i < json_array_size(route); i += 2) {
      size_t expert = (size_t)json_integer_value(json_array_get(route, i));
      assert_true(expert < experts);
      load[expert]++;
      gates[expert] += 1e-4 * json_number_value(json_array_get(route, i + 1));
    }
  }
  for (size_t i = 0; i <= experts; i++)
    assert_int_equal(histogram[i], json_integer_value(json_array_get(json_object_get(layer, "histogram"), i)));
  for (size_t i = 0; i < experts; i++) {
    double mean = json_number_value(json_array_get(json_object_get(layer, "gate"), i));
    assert_int_equal(load[i], json_integer_value(json_array_get(json_object_get(layer, "load"), i)));
    if (load[i] && !(fabs(gates[i] / (double)load[i] - mean) < 1e-4)) fail_msg("mean gate of expert %zu", i);
  }
}

static int64_t count_at(const json_t *layer, const char *key, size_t i) {
  return json_integer_value(json_array_get(json_object_get(layer, key), i));
}

/* Shares are of their wholes, and more than capacity is what was asked for beyond it. */
static void check_shares(const json_t *layer) {
  double held = json_at(layer, "assignments"), dropped = json_at(layer, "dropped"), tokens = json_at(layer, "tokens");
  assert_true(fabs(json_at(layer, "none_share") - (double)count_at(layer, "histogram", 0) / tokens) < 1e-5);
  assert_true(fabs(json_at(layer, "dropped_share") - dropped / (dropped + held)) < 1e-5);
  assert_true(fabs(json_at(layer, "experts_per_token") - held / tokens) < 1e-5);
  for (size_t i = 0; i < json_array_size(json_object_get(layer, "load")); i++) {
    int64_t over = count_at(layer, "demand", i) - (int64_t)json_at(layer, "capacity");
    assert_int_equal(count_at(layer, "over_capacity", i), over > 0 ? over : 0);
  }
}

/* Of a router that drops, and leaves tokens without an expert. */
static void shares(void **state) {
  program_must(
      "choir train --config config.json --set layers=4 --set steps=2 --set router.name=switch_top1 --data data --out "
      "switch >text; choir stats switch --text corpus.txt --tokens 300 --json --threads 1 2>/dev/null");
  json_t *root = program_json(), *layer;
  size_t l;
  double dropped = 0;
  json_array_foreach(json_object_get(root, "layers"), l, layer) {
    check_shares(layer);
    dropped += json_at(layer, "dropped_share");
  }
  assert_true(dropped > 0);
  json_decref(root);
}

/* The page has the loss by thresholds beside one whose routing looks ahead, and stats have not. */
static void check_threshold_loss(json_t *inspection, int looks_ahead, double want) {
  json_t *got = json_object_get(inspection, "threshold_loss");
  if (!looks_ahead) assert_null(got);
  if (looks_ahead) assert_true(fabs(json_real_value(got) - want) <= 1e-5 * want);
  json_object_del(inspection, "threshold_loss");
}

static void stats_and_page_agree(void **state) {
  static const char *const routings[] = {"threshold", "batch", "sequence"};
  double by_thresholds = 0;
  for (int r = 0; r < 3; r++) {
    char arguments[128];
    size_t l;
    snprintf(arguments, sizeof arguments, "--text corpus.txt --tokens 300 --top 3 --routing %s", routings[r]);
    json_t *stats = stats_of(arguments), *layers = json_object_get(stats, "layers"), *layer;
    json_t *data = page_of(arguments);
    assert_string_equal(json_string_value(json_object_get(stats, "routing")), routings[r]);
    assert_int_equal((int)json_at(stats, "tokens"), 300);
    assert_true(json_is_true(json_object_get(stats, "cut")));
    assert_int_equal(json_array_size(layers), 2);
    if (r == 0) by_thresholds = json_at(stats, "loss");
    check_threshold_loss(json_object_get(data, "inspection"), r > 0, by_thresholds);
    agree(stats, json_object_get(data, "inspection"), "stats");
    assert_int_equal(json_array_size(json_object_get(data, "text")), 300);
    json_array_foreach(layers, l, layer) {
      check_routes(json_array_get(json_object_get(data, "routes"), l), layer);
      /* a threshold is kept; the batch's own cut-off is known where experts choose by rank */
      assert_int_equal(json_is_null(json_object_get(layer, "drift")), r == 0);
      assert_true(json_is_real(json_array_get(json_object_get(layer, "threshold"), 0)));
    }
    json_decref(data);
    json_decref(stats);
  }
}

/* Fewer tokens than experts: by thresholds, which the output says, unless another routing was asked for. */
static void short_texts(void **state) {
  program_must("head -c 40 corpus.txt >short.txt");
  json_t *stats = stats_of("--text short.txt --tokens 3"), *data = page_of("--text short.txt --tokens 3");
  assert_string_equal(json_string_value(json_object_get(stats, "routing")), "threshold");
  agree(stats, json_object_get(data, "inspection"), "stats");
  json_decref(data);
  json_decref(stats);
  stats = stats_of("--text short.txt --tokens 4");
  assert_string_equal(json_string_value(json_object_get(stats, "routing")), "batch");
  json_decref(stats);
  program_refuses(1, "4 experts choose among only 3 tokens (pool 'batch'); give more tokens, or use",
                  "choir stats run --text short.txt --tokens 3 --routing batch");
}

/* The losses of the page's first sequence are those of its logits. */
static void losses_of_tokens(void **state) {
  enum { LENGTH = 16 };
  choir_model *model;
  choir_forward_result result;
  int32_t id[LENGTH];
  json_t *data = page_of("--text corpus.txt --tokens 100 --length 16 --routing threshold");
  json_t *losses = json_object_get(data, "losses");
  assert_int_equal(json_array_size(losses), 100);
  assert_true(json_is_null(json_array_get(losses, 0)));
  for (size_t t = 0; t < LENGTH; t++) {
    size_t place = (size_t)json_integer_value(json_array_get(json_object_get(data, "text"), t));
    id[t] = (int32_t)json_integer_value(json_array_get(json_object_get(data, "ids"), place));
  }
  test_ok(choir_model_load("run/checkpoints/00000008", NULL, &model, NULL));
  test_ok(choir_model_set_routing(model, "threshold"));
  int V = choir_model_config(model)->model.vocab_size;
  float *logits = malloc((size_t)LENGTH * (size_t)V * sizeof *logits);
  test_ok(choir_model_forward(model, 1, LENGTH, id, logits, 0, &result));
  for (size_t t = 1; t < LENGTH; t++) {
    const float *row = logits + (t - 1) * (size_t)V;
    double sum = 0;
    for (int v = 0; v < V; v++) sum += exp((double)row[v] - (double)row[id[t]]);
    double shown = json_number_value(json_array_get(losses, t));
    if (!(fabs(shown - log(sum)) < 2e-3)) fail_msg("token %zu: the page has %g, its logits %g", t, shown, log(sum));
  }
  free(logits);
  choir_model_free(model);
  json_decref(data);
}

/* The last evaluation of the run that setup trained. */
static void while_training(void **state) {
  size_t size, l;
  program_must("grep '\"event\":\"eval\"' run/metrics.jsonl | tail -n 1 >line.json");
  char *text = program_read("line.json", &size);
  json_t *line = parsed(text, size), *layers = json_object_get(line, "layers"), *layer;
  assert_int_equal(json_array_size(layers), 2);
  json_array_foreach(layers, l, layer) {
    double entropy = json_at(layer, "token_entropy");
    assert_true(entropy > 0 && entropy < log(4));
    if (!(fabs(json_at(layer, "load_entropy") - log(4)) < 1e-7)) /* nine digits */
      fail_msg("experts that choose hold as many");
    assert_true(json_at(layer, "drift") > 0);
  }
  json_decref(line);
  free(text);
}

static void tables(void **state) {
  program_must("choir stats run --text corpus.txt --tokens 300 --threads 1");
  assert_non_null(strstr(program_output, "nats per token, perplexity "));
  assert_null(strstr(program_output, "gzip: ")); /* which the first tokens do not have */
  assert_non_null(strstr(program_output, "layer 3: 2."));
  assert_non_null(strstr(program_output, "most typical tokens"));
  program_must("choir stats run --text hostile.txt --threads 1"); /* a short text: smaller batches */
  assert_non_null(strstr(program_output, ", gzip: "));
  for (const char *c = program_output; *c; c++)
    if (iscntrl((unsigned char)*c) && *c != '\n') fail_msg("control character %d", *c);
  program_refuses(1, "nowhere", "choir stats run --text nowhere");
  program_refuses(1, "routing", "choir stats run --text corpus.txt --routing bath");
  program_refuses(1, "routing", "choir inspect run --text corpus.txt --routing bath --out x.html");
  program_refuses(2, "--out", "choir inspect run --text corpus.txt");
  program_refuses(1, "two are needed", "printf a >one; choir stats run --text one");
  program_must("choir init config.json --vocab-size 320 --seed 1 --out fresh && cp tokenizer.model fresh");
  program_refuses(1, "train the model first", "choir stats fresh --text corpus.txt --routing threshold");
  program_must("choir stats fresh --text corpus.txt --tokens 64"); /* no thresholds, no drift */
}

/* The text comes back byte for byte from the pieces; nothing of it is markup. */
static void hostile_text(void **state) {
  json_t *data = page_of("--text hostile.txt");
  char spelt[2 * sizeof hostile] = "";
  size_t size = 0, i, at;
  const json_t *pieces = json_object_get(data, "pieces");
  json_t *index, *byte;
  int bytes = 0;
  json_array_foreach(json_object_get(data, "text"), i, index) {
    const json_t *piece = json_array_get(pieces, (size_t)json_integer_value(index));
    if (json_is_string(piece)) {
      memcpy(spelt + size, json_string_value(piece), json_string_length(piece));
      size += json_string_length(piece);
      continue;
    }
    json_array_foreach(piece, at, byte) spelt[size++] = (char)json_integer_value(byte), bytes++;
  }
  assert_true(bytes >= 4); /* a face of four bytes that the small tokenizer does not know */
  assert_true(size > 100 && size < sizeof hostile - 1);
  assert_memory_equal(spelt, hostile, size);
  json_decref(data);

  /* the tokenizer cuts such words to pieces, but a file's name stays whole */
  program_must("mkdir '<' && cp hostile.txt '</script><img onerror=x>&\"'");
  json_decref(page_of("--text '</script><img onerror=x>&\"'"));
  char *page = program_read("page.html", &size);
  assert_int_equal(occurrences(page, "</script"), 2);
  assert_null(strstr(page, "<img"));
  assert_non_null(strstr(page, "<title>choir: script&#62;&#60;img onerror=x&#62;&#38;&#34;</title>"));
  free(page);
}

/* Elements close in order, by a parser that is not a browser's. */
static void well_formed(void **state) {
  static const char check[] =
      "import html.parser, sys\n"
      "void = {'meta', 'br', 'img', 'hr', 'input'}\n"
      "class P(html.parser.HTMLParser):\n"
      "  open = []\n"
      "  def handle_starttag(s, tag, a):\n"
      "    if tag not in void: s.open.append(tag)\n"
      "  def handle_endtag(s, tag):\n"
      "    assert s.open and s.open[-1] == tag, (tag, s.open)\n"
      "    s.open.pop()\n"
      "p = P(); p.feed(open('page.html', encoding='utf-8', errors='strict').read()); p.close(); assert not p.open, "
      "p.open\n";
  if (program_run("command -v python3 >/dev/null")) test_skip("the page by an HTML parser: python3 is missing");
  test_ok(ch_file_save("check.py", check, sizeof check - 1));
  program_must("choir inspect run --text hostile.txt --out page.html && python3 check.py");
}

/* What the script makes of it, with an address that opens a token and chooses an expert. */
static void drawn(void **state) {
  char wanted[64], ready[64];
  json_t *data = page_of("--text hostile.txt");
  char *dom = page_dom("page.html", "'#layer=3&token=5&expert=3.1'");
  const json_t *routes = json_array_get(json_object_get(data, "routes"), 1), *route = json_array_get(routes, 5);
  int tokens = (int)json_array_size(json_object_get(data, "text"));
  if (!dom) {
    json_decref(data);
    skip();
  }
  snprintf(ready, sizeof ready, "data-ready=\"%d\"", tokens);
  assert_non_null(strstr(dom, ready)); /* the script came to its end */
  assert_int_equal(occurrences(dom, "data-t=\""), tokens);
  assert_int_equal(occurrences(dom, "<article"), 4); /* experts of one layer */
  char *tip = strstr(dom, "<div id=\"tip\"");
  assert_non_null(tip);
  assert_null(strstr(tip, "<div id=\"tip\" role=\"tooltip\" hidden"));
  assert_non_null(strstr(tip, "class=\"kept\""));
  assert_non_null(strstr(tip, "token 5 (id "));
  for (size_t i = 0; i < json_array_size(route); i += 2) {
    snprintf(wanted, sizeof wanted, "expert %d</span>", (int)json_integer_value(json_array_get(route, i)));
    assert_non_null(strstr(tip, wanted));
  }
  assert_int_equal(occurrences(tip, "<button"), json_array_size(route) / 2);
  assert_non_null(strstr(dom, "Highlighted: layer 3, expert 1"));
  assert_true(occurrences(dom, "class=\"t hot\"") > 0);
  assert_non_null(strstr(dom, "\\xF0")); /* bytes that are no character by themselves */
  assert_null(strstr(dom, "<img"));
  free(dom);
  json_decref(data);
}

/* A page of two checkpoints has what the pages of each have, the text once, and a slider that leads to either. */
static void several_checkpoints(void **state) {
  static const char *const names[] = {"00000004", "00000008"};
  program_must("choir inspect run/checkpoints/* --text hostile.txt --threads 1 --out both.html");
  json_t *both = page_data("both.html"), *later = json_object_get(both, "later");
  assert_int_equal(json_array_size(later), 1);
  assert_null(json_object_get(json_array_get(later, 0), "text"));
  for (int i = 0; i < 2; i++) {
    program_must("choir inspect run/checkpoints/%s --text hostile.txt --threads 1 --out one.html", names[i]);
    json_t *one = page_data("one.html"), *view = i ? json_array_get(later, 0) : both;
    agree(json_object_get(one, "inspection"), json_object_get(view, "inspection"), "inspection");
    assert_true(json_equal(json_object_get(one, "routes"), json_object_get(view, "routes")));
    assert_true(json_equal(json_object_get(one, "losses"), json_object_get(view, "losses")));
    json_decref(one);
  }
  json_decref(both);
  PAGE_SHOWS("one.html", "''", "id=\"views\" hidden");
  PAGE_SHOWS("both.html", "''", "step 8 (2 of 2)", "run/checkpoints/00000008", "!id=\"views\" hidden");
  PAGE_SHOWS("both.html", "'#view=0&token=5'", "step 4 (1 of 2)", "run/checkpoints/00000004", "token 5 (id ");
  PAGE_SHOWS("both.html", "'#token=5' input 0", "step 4 (1 of 2)", "!run/checkpoints/00000008", "token 5 (id ");
  program_must("choir train --config config.json --set layers=2 --set steps=1 --data data --out flat");
  program_refuses(1, "flat: has another tokenizer, or other MoE layers or sequences, than the first checkpoint",
                  "choir inspect run flat --text hostile.txt --out no.html");
  program_must("test ! -e no.html");
}

static double hit_rate(const json_t *locality) { return json_at(json_object_get(locality, "lru"), "2"); }

/* The first point of a curve is the model's own routing: loss and hits of a cache as without one. More candidates bring
 * more hits. */
static void check_trade(const char *model, const int *among, size_t points) {
  const char *arguments = "--text corpus.txt --tokens 300 --json --threads";
  program_must("choir stats %s %s 1 --routing threshold 2>/dev/null", model, arguments);
  json_t *plain = program_json(), *layer;
  program_must("choir stats %s %s 1 --cache 2 --among 4 2>/dev/null", model, arguments);
  json_t *root = program_json(), *trade = json_object_get(root, "trade"), *curve = json_object_get(trade, "curve");
  program_must("choir stats %s %s 3 --cache 2 --among 4 2>/dev/null", model, arguments);
  json_t *again = program_json(), *own = json_array_get(curve, 0), *last = json_array_get(curve, points - 1);
  size_t i;
  assert_true(json_equal(root, again)); /* whatever the threads */
  assert_int_equal((int)json_at(trade, "cache"), 2);
  assert_int_equal(json_array_size(curve), points);
  assert_true(json_is_null(json_object_get(own, "among")));
  for (size_t p = 1; p < points; p++) assert_int_equal((int)json_at(json_array_get(curve, p), "among"), among[p - 1]);
  assert_true(json_at(own, "loss") == json_at(plain, "loss") && json_at(root, "loss") == json_at(plain, "loss"));
  assert_true(json_at(own, "perplexity") == json_at(plain, "perplexity"));
  assert_true(json_at(own, "hit_rate") == hit_rate(json_object_get(json_object_get(plain, "all"), "locality")));
  json_array_foreach(json_object_get(plain, "layers"), i, layer)
      assert_true(json_number_value(json_array_get(json_object_get(own, "layers"), i)) ==
                  hit_rate(json_object_get(layer, "locality")));
  assert_true(json_at(last, "hit_rate") > json_at(own, "hit_rate") + 0.05);
  assert_true(json_at(last, "loss") != json_at(own, "loss"));
  assert_null(json_object_get(plain, "trade"));
  json_object_del(again, "trade");
  assert_true(json_equal(again, plain)); /* the caches change no other statistic */
  json_decref(plain), json_decref(root), json_decref(again);
}

static void trade(void **state) {
  program_must(
      "choir train --config config.json --set layers=4 --set steps=8 --set router.name=topk --data data --out topk;"
      "choir train --config config.json --set steps=1 --set router.name=hash --data data --out hash;"
      "choir train --config config.json --set steps=1 --set attention=bidirectional --set objective=masked_diffusion "
      "--data data --out masked");
  check_trade("run", (const int[]){3, 4}, 3);
  check_trade("topk", (const int[]){3, 4}, 3);
  program_must("choir stats topk --text corpus.txt --tokens 300 --cache 2 --among 3");
  assert_non_null(strstr(program_output, "an LRU cache of 2 experts"));
  program_refuses(1, "cache is 5: must be 1 to 4", "choir stats run --text corpus.txt --cache 5 --among 3");
  program_refuses(1, "among is 2: must be above 2", "choir stats run --text corpus.txt --cache 2 --among 2");
  program_refuses(1, "cache is 0", "choir stats run --text corpus.txt --among 3");
  program_refuses(1, "above 2, the experts per token of router 'topk', and at most 4",
                  "choir stats topk --text corpus.txt --cache 2 --among 2");
  program_refuses(1, "among is 0", "choir stats run --text corpus.txt --cache 2");
  program_refuses(1, "router 'hash' does not rank", "choir stats hash --text corpus.txt --cache 2 --among 3");
  program_refuses(1, "model.attention is bidirectional", "choir stats masked --text corpus.txt --cache 2 --among 3");
  program_refuses(1, "omit routing, or set it to threshold",
                  "choir stats run --text corpus.txt --cache 2 --among 3 --routing batch");
}

TEST_MAIN(setup, program_directory_remove, stats_and_page_agree, trade, short_texts, shares, losses_of_tokens,
          while_training, tables, hostile_text, well_formed, drawn, several_checkpoints)
