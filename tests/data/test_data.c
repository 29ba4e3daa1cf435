/* Building data: nothing lost, nothing twice, damage refused. */
#include <signal.h>
#include <sys/resource.h>

#include "data/encoder.h"
#include "data_testing.h"

static void same_files(const char *a, const char *b) {
  static const char *const names[] = {"data.json",          "tokenizer.model",  "docs.train.shard",
                                      "docs.heldout.shard", "book.train.shard", "book.heldout.shard",
                                      "few.train.shard",    "few.heldout.shard"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char pa[300], pb[300];
    snprintf(pa, sizeof pa, "%s/%s", corpus_path(a), names[i]);
    snprintf(pb, sizeof pb, "%s/%s", corpus_path(b), names[i]);
    ch_buffer x = corpus_load(pa), y = corpus_load(pb);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    free(x.data);
    free(y.data);
  }
}

static void does_not_depend_on_threads(void **state) {
  test_ok(build("one", 1));
  test_ok(build("seven", 7));
  same_files("data", "one");
  same_files("data", "seven");
}

/* The text of a shard; every end of text becomes '|'. */
static ch_buffer shard_text(const choir_tokenizer *t, const ch_shard *s) {
  ch_buffer out = {0};
  for (uint64_t i = 0; i < s->info.tokens; i++) {
    int32_t id;
    ch_shard_read(s, i, 1, &id);
    if (id == choir_tokenizer_eos(t))
      corpus_add(&out, "|");
    else
      test_ok(ch_buffer_append(&out, t->surface[id].text, t->surface[id].size));
  }
  test_ok(ch_buffer_append(&out, "", 1));
  return out;
}

/* How far `piece` (up to its '|') agrees with text; 0 when it does not. */
static size_t matches(const char *piece, const char *text) {
  size_t size = strcspn(piece, "|");
  return size && !strncmp(piece, text, size) ? size : 0;
}

/* Walks through the source's text; at every place the next piece of one of the two shares must go on, and at the end
 * none may be left. */
static void complete_and_disjoint(const choir_tokenizer *t, const ch_source *s, const ch_buffer *text) {
  ch_buffer share[2] = {shard_text(t, &s->train), shard_text(t, &s->heldout)};
  const char *at[2] = {share[0].data, share[1].data};
  for (size_t i = 0; i < text->size;) {
    size_t a = matches(at[0], text->data + i), b = matches(at[1], text->data + i);
    if (!a && !b) fail_msg("%s: byte %zu is in neither share", s->name, i);
    int from = b > a;
    i += from ? b : a;
    at[from] += (from ? b : a) + 1;
    if (!strncmp(text->data + i, "\n\f\n", 3)) i += 3;
  }
  for (int k = 0; k < 2; k++) assert_int_equal(*at[k], 0), free(share[k].data);
}

static void every_token_is_sampled_once(void **state) {
  choir_tokenizer *t;
  choir_data *d = opened("data");
  test_ok(choir_tokenizer_load(corpus_path("small.model"), &t));
  for (int i = 0; i < 3; i++) {
    test_ok(ch_buffer_append(&texts[i], "", 1));
    texts[i].size--;
    complete_and_disjoint(t, &d->sources[i], &texts[i]);
    assert_true(d->sources[i].heldout.info.tokens > 0);
    double share = (double)d->sources[i].heldout.info.text_bytes / (double)texts[i].size;
    assert_true(share > 0.02 && share < 0.10); /* 0.05 was asked for */
  }
  choir_data_info info;
  choir_data_get_info(d, &info);
  assert_int_equal(info.sources, 3);
  assert_int_equal(info.documents, 499 + 2 + 3); /* not the pieces of those that have text in both shares */
  assert_int_equal(info.vocab_size, 600);
  assert_int_equal(info.train_bytes + info.heldout_bytes,
                   texts[0].size + texts[1].size + texts[2].size - 3 * (499 + 2));
  assert_int_equal(d->sources[0].train.info.documents, 475);
  assert_int_equal(d->sources[0].heldout.info.documents, 25);
  choir_tokenizer_free(t);
  choir_data_free(d);
}

/* One source with this text and this held-out share. */
static int build_text(const char *text, size_t size, double holdout, const char *output) {
  const char *files[] = {corpus_path("tiny"), NULL};
  choir_data_source source = {.name = "tiny", .inputs = files};
  choir_data_build_options o = options(output);
  corpus_save(files[0], text, size);
  o.sources = &source, o.source_count = 1, o.holdout = holdout;
  return choir_data_build(&o);
}

static int keep(void *context, const choir_progress *p) {
  *(choir_progress *)context = *p;
  return 0;
}

/* The last progress of a build has the totals of all sources, as its result does. */
static void progress_adds_up(void **state) {
  static const char text[] = "ka\xE9 pe\n";
  const char *files[] = {corpus_path("odd-bytes"), NULL};
  choir_data_source two[] = {{.name = "a", .inputs = files}, {.name = "b", .inputs = files}};
  choir_data_build_options o = options("summed");
  choir_progress last = {0};
  choir_data_info info;
  corpus_save(files[0], text, sizeof text - 1);
  o.sources = two, o.source_count = 2, o.holdout = 0, o.replace_invalid = 1, o.progress = keep, o.context = &last;
  test_ok(choir_data_build(&o));
  choir_data *d = opened("summed");
  choir_data_get_info(d, &info);
  assert_int_equal(last.tokens, info.train_tokens);
  assert_int_equal(last.text_bytes, info.train_bytes);
  assert_int_equal(last.documents, 2);
  assert_int_equal(last.replaced, 2);
  assert_int_equal(last.done, 2 * (sizeof text - 1));
  choir_data_free(d);
}

/* File names are bytes, JSON is not. */
static void takes_any_file_name(void **state) {
  const char *files[] = {corpus_path("caf\xE9 \xC3\xA9"), NULL};
  choir_data_source source = {.name = "odd", .inputs = files};
  choir_data_build_options o = options("named");
  corpus_save(files[0], texts[1].data, texts[1].size);
  o.sources = &source, o.source_count = 1;
  test_ok(choir_data_build(&o));
  ch_buffer b = corpus_load(corpus_path("named/data.json"));
  assert_non_null(strstr(b.data, "/caf\\\\xE9 \xC3\xA9\""));
  free(b.data);
}

static void small_corpora(void **state) {
  test_fails(build_text("", 0, 0.01, "t0"), CHOIR_ERROR_FORMAT, "source \"tiny\": no text in its inputs");
  test_fails(build_text("\f\n\f\n", 4, 0, "t0"), CHOIR_ERROR_FORMAT, "no text");
  test_fails(build_text("kato", 4, 0.01, "t0"), CHOIR_ERROR_FORMAT, "too little text");
  test_ok(build_text("kato", 4, 0, "t1")); /* nothing to hold out */
  ch_buffer b = {0};
  for (size_t bytes = 300; bytes < 200000; bytes *= 5) { /* one document; also as a single line */
    for (int lines = 0; lines < 2; lines++) {
      char name[32];
      b.size = 0;
      corpus_prose(&b, bytes, 77);
      for (size_t i = 0; i < b.size && !lines; i++) b.data[i] = b.data[i] == '\n' ? ' ' : b.data[i];
      snprintf(name, sizeof name, "t%zu-%d", bytes, lines);
      test_ok(build_text(b.data, b.size, 0.01, name));
      choir_data *d = opened(name);
      assert_true(d->sources[0].train.info.tokens > d->sources[0].heldout.info.tokens);
      assert_true(d->sources[0].heldout.info.tokens > 1);
      choir_data_free(d);
    }
  }
  free(b.data);
}

static int always(void *context, const choir_progress *p) {
  (void)context;
  return p->tokens > 100;
}

static void nothing_is_left_behind(const char *output) {
  char command[512];
  snprintf(command, sizeof command, "ls -d %s* 2>/dev/null | grep -q .", corpus_path(output));
  assert_int_not_equal(system(command), 0);
}

static void refuses_and_leaves_nothing(void **state) {
  choir_data_build_options o = options("data");
  test_fails(choir_data_build(&o), CHOIR_ERROR_IO, "not empty");
  o = options("no/such/place");
  test_fails(choir_data_build(&o), CHOIR_ERROR_IO, "no/such/place");
  o = options("bad");
  o.tokenizer = corpus_path("none.model");
  test_fails(choir_data_build(&o), CHOIR_ERROR_IO, "none.model");
  o = options("bad"), o.holdout = 0.7;
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "holdout is 0.7");
  o = options("bad"), o.holdout = NAN;
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "holdout is");
  choir_data_source odd[2] = {sources[0], sources[0]};
  o = options("bad"), o.sources = odd, o.source_count = 2;
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "two sources have this name");
  odd[1].name = "a/b";
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "source 2 (\"a/b\"): name must be");
  odd[1].name = "other", odd[1].weight = 2;
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "give weights to all sources or to none");
  odd[1].weight = -1;
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "weight is -1");
  const char *missing[] = {inputs[0][0], corpus_path("gone"), NULL};
  odd[1] = (choir_data_source){.name = "other", .inputs = missing};
  test_fails(choir_data_build(&o), CHOIR_ERROR_IO, "source \"other\"");
  o = options("bad"), o.separator = "a\nb";
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "separator is more than one line");
  o = options("bad"), o.separator = "\f", o.field = "text";
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "separator is for plain text");
  o = options("bad"), o.separator = "\xFF";
  test_fails(choir_data_build(&o), CHOIR_ERROR_ARGUMENT, "separator is not UTF-8");
  o = options("bad"), o.progress = always;
  test_fails(choir_data_build(&o), CHOIR_ERROR_INTERRUPTED, "stopped");
  nothing_is_left_behind("bad");
}

/* The first bad byte in the order of the text is reported, whichever thread meets another one earlier. */
static void errors_come_in_order(void **state) {
  ch_buffer b = {0};
  corpus_prose(&b, 400000, 5);
  b.data[300000] = (char)0xFF, b.data[399990] = (char)0xFE;
  for (int i = 0; i < 5; i++) test_fails(build_text(b.data, b.size, 0, "bad"), CHOIR_ERROR_FORMAT, "byte 300000 ");
  nothing_is_left_behind("bad");
  free(b.data);
}

/* A file-size limit stands for a full disk: the same failing writes. */
static void survives_a_full_disk(void **state) {
  struct rlimit old, low;
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  low = old;
  low.rlim_cur = 50000;
  setrlimit(RLIMIT_FSIZE, &low);
  int code = build("full", 2);
  setrlimit(RLIMIT_FSIZE, &old);
  assert_int_equal(code, CHOIR_ERROR_IO);
  nothing_is_left_behind("full");
}

static int opens(const char *name) {
  choir_data *d;
  int code = choir_data_load(corpus_path(name), &d);
  choir_data_free(d);
  return code;
}

/* Every byte of every header, places all over the tokens, every kind of length: all must be refused, by name. */
static void refuses_damaged_shards(void **state) {
  test_ok(build("hurt", 0));
  ch_rng r = ch_rng_make(8, CH_STREAM_TEST, 0);
  static const char *const names[] = {"hurt/docs.train.shard", "hurt/few.heldout.shard", "hurt/tokenizer.model"};
  for (int f = 0; f < 3; f++) {
    char path[256];
    snprintf(path, sizeof path, "%s", corpus_path(names[f]));
    ch_buffer b = corpus_load(path);
    for (uint64_t i = 0; i < 400; i++) {
      size_t at = i < 128 ? (size_t)i : (size_t)ch_rng_below(r, i, b.size);
      char kept = b.data[at];
      b.data[at] ^= (char)(1 << ch_rng_below(r, 1000 + i, 8));
      corpus_save(path, b.data, b.size);
      test_fails(opens("hurt"), CHOIR_ERROR_FORMAT, strrchr(names[f], '/') + 1);
      b.data[at] = kept;
    }
    for (size_t cut = 0; cut <= 300; cut += cut < 140 ? 1 : 20) {
      corpus_save(path, b.data, cut < b.size ? cut : b.size - 1);
      test_fails(opens("hurt"), CHOIR_ERROR_FORMAT, strrchr(names[f], '/') + 1);
    }
    test_ok(ch_buffer_append(&b, "\0\0\0", 4));
    corpus_save(path, b.data, b.size);
    test_fails(opens("hurt"), CHOIR_ERROR_FORMAT, strrchr(names[f], '/') + 1);
    corpus_save(path, b.data, b.size - 4);
    test_ok(opens("hurt"));
    unlink(path);
    test_fails(opens("hurt"), CHOIR_ERROR_IO, strrchr(names[f], '/') + 1);
    corpus_save(path, b.data, b.size - 4);
    free(b.data);
  }
}

/* Checksums in order, content not. */
static void refuses_forged_shards(void **state) {
  ch_shard_writer w;
  ch_shard s;
  int32_t tokens[] = {3, 599, 4, 70000};
  const char *path = corpus_path("forged");
  for (int wide = 0; wide < 2; wide++) {
    test_ok(ch_shard_begin(&w, path, wide ? 100000 : 600, 1));
    test_fails(ch_shard_write(&w, (int32_t[]){-1}, 1), CHOIR_ERROR_FORMAT, "token -1");
    test_ok(ch_shard_write(&w, tokens, wide ? 4 : 3));
    w.info.vocab_size = wide ? 70000 : 599; /* what a liar writes */
    test_ok(ch_shard_commit(&w));
    test_fails(ch_shard_open(path, &s), CHOIR_ERROR_FORMAT, wide ? "holds token 70000" : "holds token 599");
    test_ok(ch_shard_begin(&w, path, wide ? 100000 : 600, 1));
    test_ok(ch_shard_write(&w, tokens, wide ? 4 : 3));
    test_ok(ch_shard_commit(&w));
    test_ok(ch_shard_open(path, &s));
    int32_t back[4];
    ch_shard_read(&s, 0, wide ? 4 : 3, back);
    assert_memory_equal(back, tokens, (wide ? 4 : 3) * sizeof *tokens);
    ch_shard_close(&s);
  }
  test_ok(ch_shard_begin(&w, path, 600, 1));
  w.info.documents = 7;
  test_ok(ch_shard_commit(&w));
  test_fails(ch_shard_open(path, &s), CHOIR_ERROR_FORMAT, "7 documents in 0 tokens");
}

static void edit(const char *name, const char *from, const char *to) {
  ch_buffer b = corpus_load(corpus_path(name)), out = {0};
  char *at = strstr(b.data, from);
  assert_non_null(at);
  test_ok(ch_buffer_append(&out, b.data, (size_t)(at - b.data)));
  corpus_add(&out, to);
  corpus_add(&out, at + strlen(from));
  corpus_save(corpus_path(name), out.data, out.size);
  free(b.data);
  free(out.data);
}

/* Writes the held-out share of a source anew, its tokens backwards, as `tokenizer` would have made it; data.json says
 * so. */
static void forge_heldout(const choir_data *d, uint64_t tokenizer) {
  const ch_shard_info *info = &d->sources[0].heldout.info;
  ch_shard_writer w;
  char was[17], is[17];
  test_ok(ch_shard_begin(&w, corpus_path("told/docs.heldout.shard"), info->vocab_size, tokenizer));
  for (uint64_t i = info->tokens; i--;) {
    int32_t token;
    ch_shard_read(&d->sources[0].heldout, i, 1, &token);
    test_ok(ch_shard_write(&w, &token, 1));
  }
  w.info.documents = info->documents;
  w.info.text_bytes = info->text_bytes;
  test_ok(ch_shard_commit(&w));
  edit("told/data.json", ch_hex(info->checksum, was), ch_hex(w.info.checksum, is));
}

/* Shards that agree with data.json, but not with what data are made of. */
static void knows_its_heldout_share(void **state) {
  choir_data *d, *other;
  for (uint64_t wrong = 0; wrong < 2; wrong++) {
    test_ok(build("told", 0));
    d = opened("told");
    forge_heldout(d, d->tokenizer_hash ^ wrong);
    if (wrong) {
      test_fails(opens("told"), CHOIR_ERROR_FORMAT, "docs.heldout.shard: made with another tokenizer");
    } else {
      other = opened("told");
      assert_int_not_equal(other->hash, d->hash); /* a run that goes on must not be evaluated on other texts */
      choir_data_free(other);
    }
    choir_data_free(d);
    test_ok(ch_dir_remove(corpus_path("told")));
  }
}

static void refuses_wrong_descriptions(void **state) {
  static const char *const edits[][3] = {{"\"choir-data\"", "\"data\"", "\"format\" is \"data\""},
                                         {"\"version\": 1", "\"version\": 2", "\"version\" is 2"},
                                         {"\"vocab_size\": 600", "\"vocab_size\": 601", "made with another tokenizer"},
                                         {"\"name\": \"docs\"", "\"name\": \"../x\"", "name must be"},
                                         {"\"name\": \"docs\"", "\"name\": \"book\"", "describes another train shard"},
                                         {"\"weight\"", "\"wait\"", "\"weight\" is missing"},
                                         {"\"weight\": ", "\"weight\": 0, \"w\": ", "\"weight\" is 0: must be above 0"},
                                         {"\"documents\": 475", "\"documents\": 474", "describes another train shard"},
                                         {"\"sources\": [", "\"sources\": [3, ", "data.json"},
                                         {"{", "", "data.json: line"}};
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    test_ok(build("told", 0));
    edit("told/data.json", edits[i][0], edits[i][1]);
    test_fails(opens("told"), CHOIR_ERROR_FORMAT, edits[i][2]);
    test_ok(ch_dir_remove(corpus_path("told")));
  }
  test_ok(build("told", 0));
  choir_tokenizer_free(corpus_tokenizer(corpus_path("text.txt"), corpus_path("told/tokenizer.model"), 500));
  test_fails(opens("told"), CHOIR_ERROR_FORMAT, "is not the tokenizer that the data was made with");
  test_ok(ch_dir_remove(corpus_path("told")));
}

TEST_MAIN(begin, end, does_not_depend_on_threads, every_token_is_sampled_once, progress_adds_up, small_corpora,
          takes_any_file_name, refuses_and_leaves_nothing, errors_come_in_order, survives_a_full_disk,
          refuses_damaged_shards, refuses_forged_shards, knows_its_heldout_share, refuses_wrong_descriptions)
