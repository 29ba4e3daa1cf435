/* safetensors: files written by choir are read; damaged and hostile files are refused. */
#include "file/file.h"
#include "file/tensors_set.h"
#include "one_file.h"
#include "program.h"

static choir_tensor tensor(const char *name, choir_dtype dtype, int dims, int64_t a, int64_t b, const void *data) {
  choir_tensor t = {.dtype = dtype, .dims = dims, .shape = {a, b}, .data = data};
  snprintf(t.name, sizeof t.name, "%s", name);
  ch_tensor_bytes(dtype, dims, t.shape, &t.bytes);
  return t;
}

static const float weights[6] = {1, -2, 3.5f, 0, 1e-30f, 7};
static const uint8_t letters[3] = {'a', 'b', 'c'};
static const uint64_t counter = 0x0123456789abcdef;

/* Mixed sizes, given so that writing in this order would misalign. */
static void write_small(void) {
  const choir_tensor t[] = {tensor("letters", CHOIR_U8, 1, 3, 0, letters), tensor("w", CHOIR_F32, 2, 2, 3, weights),
                            tensor("empty \"é\"", CHOIR_BF16, 2, 0, 5, NULL),
                            tensor("counter", CHOIR_U64, 0, 0, 0, &counter)};
  test_ok(choir_tensors_write(path, t, 4, (const char *const[]){"step", "12", "text", "a \"b\" \n é", NULL}));
}

static void round_trip(void **state) {
  choir_tensors *t;
  write_small();
  for (int verify = 0; verify < 2; verify++) {
    test_ok(choir_tensors_load(path, verify, &t));
    assert_int_equal(choir_tensors_count(t), 4);
    assert_string_equal(choir_tensors_at(t, 0)->name, "counter");
    assert_string_equal(choir_tensors_at(t, 3)->name, "letters");
    assert_null(choir_tensors_at(t, 4));
    assert_null(choir_tensors_at(t, -1));
    const choir_tensor *w = choir_tensors_find(t, "w");
    assert_non_null(w);
    assert_int_equal(w->dtype, CHOIR_F32);
    assert_int_equal(w->dims, 2);
    assert_true(w->shape[0] == 2 && w->shape[1] == 3 && w->bytes == sizeof weights);
    assert_memory_equal(w->data, weights, sizeof weights);
    assert_memory_equal(choir_tensors_find(t, "counter")->data, &counter, sizeof counter);
    assert_memory_equal(choir_tensors_find(t, "letters")->data, letters, sizeof letters);
    assert_int_equal(choir_tensors_find(t, "empty \"é\"")->bytes, 0);
    assert_null(choir_tensors_find(t, "x"));
    assert_string_equal(choir_tensors_metadata(t, "step"), "12");
    assert_string_equal(choir_tensors_metadata(t, "text"), "a \"b\" \n é");
    assert_null(choir_tensors_metadata(t, "x"));
    choir_tensors_free(t);
  }
  choir_tensors_free(NULL);
}

/* The checksum of the data is XXH64 with seed 0: a published value, of data in one piece and in two. */
static void checksum_is_xxh64(void **state) {
  static const char text[] = "Nobody inspects the spammish repetition";
  for (int64_t cut = 0; cut <= 39; cut += 8) { /* pieces are aligned */
    choir_tensor t[] = {tensor("a", CHOIR_U8, 1, cut, 0, text), tensor("b", CHOIR_U8, 1, 39 - cut, 0, text + cut)};
    char *bytes;
    size_t size;
    test_ok(choir_tensors_write(path, t, 2, NULL));
    test_ok(ch_file_read(path, 1 << 16, &bytes, &size));
    assert_non_null(memmem(bytes, size, "\"choir_data\":\"fbcea83c8a378bf1\"", 31));
    free(bytes);
  }
}

/* Pages of files in this process's memory. */
static long file_pages(void) {
  long size = 0, resident = 0, shared = -1;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f) return -1;
  if (fscanf(f, "%ld %ld %ld", &size, &resident, &shared) != 3) shared = -1;
  fclose(f);
  return shared;
}

/* A checkpoint may be as large as the memory: what was checked, or read, does not stay in it. */
static void large_files_are_forgotten(void **state) {
  enum { COUNT = 24 << 20, PAGE = 4096 };
  float *values = calloc(COUNT, sizeof *values), *out = malloc(COUNT * sizeof *out);
  choir_tensors *t;
  assert_true(values && out);
  for (int i = 0; i < COUNT; i += 1000) values[i] = (float)i;
  choir_tensor large = tensor("large", CHOIR_F32, 1, COUNT, 0, values);
  test_ok(choir_tensors_write(path, &large, 1, NULL));
  long before = file_pages();
  if (before < 0) test_skip("the system does not count the pages of files (/proc/self/status)");
  test_ok(choir_tensors_load(path, 1, &t));
  assert_in_range(file_pages() - before + 1024, 0, 2048);
  memcpy(out, choir_tensors_find(t, "large")->data, COUNT * sizeof *out);
  assert_memory_equal(out, values, COUNT * sizeof *out);
  assert_true(file_pages() - before > COUNT / PAGE); /* or this test shows nothing */
  ch_tensors_forget(t, choir_tensors_find(t, "large"));
  assert_in_range(file_pages() - before + 1024, 0, 2048);
  assert_memory_equal(choir_tensors_find(t, "large")->data, values, COUNT * sizeof *out);
  choir_tensors_free(t);
  free(values), free(out);
}

/* Every bit of every byte, and every length: one flip or cut is always seen. */
static void damage_is_refused(void **state) {
  char *bytes;
  size_t size;
  choir_tensors *t;
  write_small();
  test_ok(ch_file_read(path, 1 << 20, &bytes, &size));
  uint64_t *copy = malloc(size + 8);
  for (size_t i = 0; i < size; i++)
    for (int bit = 0; bit < 8; bit++) {
      memcpy(copy, bytes, size);
      ((char *)copy)[i] ^= (char)(1 << bit);
      if (!ch_tensors_parse(copy, size, "f", 1, &t)) fail_msg("bit %d of byte %zu of %zu", bit, i, size);
      uint64_t header;
      memcpy(&header, bytes, 8);
      int in_header = i < 8 + header;
      int code = ch_tensors_parse(copy, size, "f", 0, &t); /* the header is always checked */
      assert_int_equal(code != 0, in_header);
      choir_tensors_free(t);
    }
  memcpy(copy, bytes, size);
  for (size_t length = 0; length < size; length++) refused(ch_tensors_parse(copy, length, "f", 1, &t), "f: ");
  memset((char *)copy + size, 0, 8);
  refused(ch_tensors_parse(copy, size + 1, "f", 1, &t), "after the last tensor");
  test_ok(ch_tensors_parse(copy, size, "f", 1, &t));
  choir_tensors_free(t);
  free(bytes);
  free(copy);
}

/* A header made by hand in front of `data` bytes of zeros. */
static int parse(const char *header, size_t data, choir_tensors **t) {
  static uint64_t file[1024];
  uint64_t length = (strlen(header) + 7) & ~(uint64_t)7;
  memset(file, 0, sizeof file);
  memcpy(file, &length, 8);
  memset(file + 1, ' ', length);
  memcpy(file + 1, header, strlen(header));
  return ch_tensors_parse(file, 8 + length + data, "f", 1, t);
}

#define W(dtype, shape, begin, end) \
  "\"w\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void other_programs_files_pass(void **state) {
  choir_tensors *t;
  test_ok(parse("{}", 0, &t));
  assert_int_equal(choir_tensors_count(t), 0);
  choir_tensors_free(t);
  test_ok(parse("{" W("F32", "[2,2]", "0", "16") ",\"__metadata__\":{\"format\":\"pt\"}}", 16, &t));
  assert_string_equal(choir_tensors_metadata(t, "format"), "pt");
  choir_tensors_free(t);
}

static void hostile_headers(void **state) {
  static const struct {
    const char *header;
    size_t data;
    const char *part;
  } cases[] = {
      {"{" W("F32", "[2,2]", "0", "16") "}", 15, "truncated"},
      {"{" W("F32", "[2,2]", "0", "16") "}", 17, "1 bytes after"},
      {"{" W("F32", "[2,2]", "0", "12") "}", 12, "needs 16 bytes, it has 12"},
      {"{" W("F32", "[2,2]", "4", "20") "}", 20, "gap"},
      {"{" W("F32", "[2,2]", "16", "0") "}", 16, "bytes 16 to 0"},
      {"{" W("F32", "[2,2]", "-16", "0") "}", 16, "data_offsets"},
      {"{" W("F32", "[-2,-2]", "0", "16") "}", 16, "shape"},
      {"{" W("F32", "[2.0,2]", "0", "16") "}", 16, "shape"},
      {"{" W("F32", "[1,1,1,1,1]", "0", "4") "}", 4, "at most 4"},
      {"{" W("F32", "[4611686018427387904]", "0", "0") "}", 0, "overflows"},
      {"{" W("F32", "[4294967296,4294967296,4]", "0", "16") "}", 16, "overflows"},
      {"{" W("F32", "[99999999999999999999]", "0", "16") "}", 16, "line 1"},
      {"{" W("F32", "[2,2]", "0", "9223372036854775807") "}", 16, "truncated"},
      {"{" W("F8", "[2]", "0", "4") "}", 4, "\"F8\": supported are"},
      {"{" W("I16", "[2]", "0", "4") "}", 4, "\"I16\""},
      {"{" W("BOOL", "[2]", "0", "2") "}", 2, "\"BOOL\""},
      {"{" W("NaN", "[2]", "0", "2") "}", 2, "\"NaN\""},
      {"{" W("F32", "[NaN]", "0", "4") "}", 4, "line 1"},
      {"{" W("F32", "[1]", "0", "4") "," W("F32", "[1]", "4", "8") "}", 8, "duplicate"},
      {"{" W("F32", "[1]", "0", "4") ",\"v\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "overlaps"},
      {"{" W("U8", "[1]", "0", "1") ",\"v\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}", 5, "aligned"},
      {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "nothing else"},
      {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4, "data_offsets"},
      {"{\"w\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
      {"{\"w\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape"},
      {"{\"w\":[]}", 0, "'w'"},
      {"{\"__metadata__\":[]}", 0, "__metadata__"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "'a' must be a string"},
      {"{\"__metadata__\":{\"choir_data\":\"0\"}}", 0, "damaged"},
      {"{\"__metadata__\":{\"choir_header\":\"0000000000000000\"}}", 0, "damaged"},
      {"[]", 0, "does not begin"},
      {"  ", 0, "does not begin"},
      {"{} {}", 0, "line 1"},
      {"{", 0, "line 1"},
  };
  choir_tensors *t;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    refused(parse(cases[i].header, cases[i].data, &t), cases[i].part);
    assert_null(t);
    assert_non_null(strstr(choir_error_message(), "f: "));
  }
  char deep[4096], name[512];
  memset(deep, '[', sizeof deep - 1);
  deep[sizeof deep - 1] = 0;
  memcpy(deep, "{\"w\":", 5);
  refused(parse(deep, 0, &t), "line 1");
  snprintf(name, sizeof name, "{\"%0128d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 0);
  refused(parse(name, 4, &t), "at most 127 bytes");
  test_ok(parse(" \n{}", 0, &t)); /* white space before JSON is JSON */
  choir_tensors_free(t);
  const uint64_t huge[2] = {UINT64_MAX, '{'}, large[2] = {99999999, '{'}, none[1] = {0};
  refused(ch_tensors_parse(huge, 16, "f", 1, &t), "18446744073709551615");
  refused(ch_tensors_parse(large, 16, "f", 1, &t), "truncated");
  refused(ch_tensors_parse(none, 8, "f", 1, &t), "does not begin");
  refused(ch_tensors_parse("version https://git-lfs.github.com/spec/v1", 42, "f", 1, &t), "is a pointer of Git LFS");
}

/* The first tensor's bytes are there, the second one's cannot be had. */
static const void *fetch_one(void *context, const choir_tensor *t) {
  static const char data[4] = {1, 2, 3, 4};
  (void)context;
  if (strcmp(t->name, "b")) return data;
  ch_error(CHOIR_ERROR_NUMERIC, "b is not finite");
  return NULL;
}

static void abandoned_writes_leave_no_file(void **state) {
  const choir_tensor t[2] = {{.name = "a", .dtype = CHOIR_U8, .dims = 1, .shape = {4}, .bytes = 4},
                             {.name = "b", .dtype = CHOIR_U8, .dims = 1, .shape = {4}, .bytes = 4}};
  assert_int_equal(unlink(path), 0);
  refused(ch_tensors_write(path, t, 2, NULL, fetch_one, NULL), "b is not finite");
  assert_int_not_equal(access(path, F_OK), 0);
  test_ok(ch_tensors_write(path, t, 1, NULL, fetch_one, NULL));
}

static void impossible_writes(void **state) {
  choir_tensor t[2] = {tensor("w", CHOIR_F32, 2, 2, 3, weights), tensor("w", CHOIR_F32, 1, 1, 0, weights)};
  write_small();
  refused(choir_tensors_write(path, t, 2, NULL), "'w' is there twice");
  t[0].bytes--;
  refused(choir_tensors_write(path, t, 1, NULL), "needs 24 bytes, 23 are given");
  t[0] = tensor("\xff", CHOIR_F32, 2, 2, 3, weights);
  refused(choir_tensors_write(path, t, 1, NULL), "UTF-8");
  t[0] = tensor("w", CHOIR_F32, 2, -2, 3, weights);
  refused(choir_tensors_write(path, t, 1, NULL), "shape");
  t[0] = tensor("w", CHOIR_F32, 2, 2, 3, NULL);
  refused(choir_tensors_write(path, t, 1, NULL), "0 are given");
  t[0] = tensor("w", CHOIR_F32, 2, 2, 3, weights);
  refused(choir_tensors_write(path, t, 1, (const char *const[]){"choir_data", "1", NULL}), "choir_data");
  refused(choir_tensors_write("/nonexistent/x", t, 1, NULL), "/nonexistent/x");
  refused(choir_tensors_write("/dev/null", t, 1, NULL), "/dev/null");
  choir_tensors *back; /* what was there is still there */
  test_ok(choir_tensors_load(path, 1, &back));
  choir_tensors_free(back);
  refused(choir_tensors_load("/nonexistent/x", 1, &back), "/nonexistent/x");
  refused(choir_tensors_load("/tmp", 1, &back), "not a regular file");
}

/* ---- several files that stand for one ---- */

enum { SET = 5 };
static const float numbers[16] = {1, 2, 3, 4, 5, 6, 7, 8};

/* Tensors of 4, 8, 12, 40 and 4 bytes, in files of at most `most`. */
static int write_set(float first, int64_t max) {
  static float own[4];
  choir_tensor t[SET];
  char file[PATH_MAX], name[8];
  int begin[SET + 1];
  own[0] = first;
  const int64_t length[SET] = {1, 2, 3, 10, 1};
  for (int i = 0; i < SET; i++) {
    snprintf(name, sizeof name, "t%d", i);
    t[i] = tensor(name, CHOIR_F32, 1, length[i], 0, i ? numbers : own);
  }
  int files = ch_tensors_cut(t, SET, max, begin);
  for (int f = 0; f < files; f++) {
    ch_tensors_file_path("x.safetensors", f, files, file);
    test_ok(choir_tensors_write(file, t + begin[f], begin[f + 1] - begin[f], NULL));
  }
  if (files > 1) test_ok(ch_tensors_index_write("x.safetensors", t, begin, files));
  return files;
}

static void check_set(float first) {
  choir_tensors *t;
  test_ok(choir_tensors_load("x.safetensors", 1, &t));
  assert_int_equal(choir_tensors_count(t), SET);
  assert_memory_equal(choir_tensors_find(t, "t0")->data, &first, sizeof first);
  assert_memory_equal(choir_tensors_find(t, "t3")->data, numbers, 40);
  assert_int_equal(choir_tensors_find(t, "t2")->bytes, 12);
  choir_tensors_free(t);
}

static void several_files(void **state) {
  const struct {
    int64_t max;
    int files;
  } cuts[] = {{0, 1}, {68, 1}, {67, 2}, {44, 2}, {40, 3}, {24, 3}, {12, 4}, {1, 5}};
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    program_must("rm -f x*");
    assert_int_equal(write_set(9, cuts[i].max), cuts[i].files);
    check_set(9);
    int there;
    test_ok(ch_tensors_exist("x.safetensors", &there));
    assert_true(there);
  }
  write_set(8, 0); /* beside an index the file itself is taken */
  check_set(8);
}

static void set_refused(const char *change, const char *word) {
  choir_tensors *t;
  program_must("rm -rf x* keep; mkdir keep");
  write_set(7, 12);
  program_must("cp x* keep");
  write_set(9, 12);
  program_must("%s", change);
  refused(choir_tensors_load("x.safetensors", 1, &t), word);
  assert_null(t);
}

#define INDEX "x.safetensors.index.json"
static void wrong_sets(void **state) {
  choir_tensors *t;
  set_refused("rm x-00002-of-00004.safetensors", "x-00002-of-00004.safetensors");
  set_refused("cp keep/x-00001-of-00004.safetensors .", "not the file that this index was written for");
  set_refused("cp keep/" INDEX " .", "not the file that this index was written for");
  set_refused("sed -i s/choir_files/files/ " INDEX, "not the file that this index was written for");
  set_refused("sed -i 's/\"t1\"/\"t9\"/' " INDEX, "'t1' of x-00001-of-00004.safetensors is not in its");
  set_refused("sed -i '/\"t3\"/d' " INDEX, "\"total_size\" is 68, its files have 28");
  set_refused("sed -i 's/\"t1\": \\(.*\\)/\"t1\": \\1\\n\"t9\": \\1/' " INDEX, "names 6 tensors, and its files have 5");
  set_refused("sed -i 's/size\": 68/size\": 69/' " INDEX, "\"total_size\" is 69");
  set_refused("sed -i '/\"t2\"/s/x-/..\\/x-/' " INDEX, "'t2' must name a file");
  set_refused("sed -i '/\"t2\"/s/: .*/: 3,/' " INDEX, "'t2' must name a file");
  set_refused("sed -i '/\"t2\"/s/: .*/: \"x.safetensors\",/' " INDEX, "x.safetensors: No such file");
  set_refused("sed -i '/\"t1\"/s/00001/00003/' " INDEX, "'t1' is in x-00001");
  set_refused("truncate -s -1 x-00003-of-00004.safetensors", "x-00003-of-00004.safetensors");
  set_refused("echo '{}' > " INDEX, "weight_map");
  set_refused("echo '[]' > " INDEX, INDEX);
  refused(choir_tensors_load("y.safetensors", 1, &t), "y.safetensors: No such file");
}

static void kinds_of_names(void **state) {
  const char *whole = "model.safetensors";
  assert_int_equal(ch_tensors_kind("model.safetensors", whole), CH_KIND_WHOLE);
  assert_int_equal(ch_tensors_kind("model.safetensors.index.json", whole), CH_KIND_INDEX);
  assert_int_equal(ch_tensors_kind("model-00002-of-00010.safetensors", whole), CH_KIND_PART);
  const char *const others[] = {"state.safetensors",
                                "model.safetensors.bak",
                                "model-1-of.safetensors",
                                "model-",
                                "model-00002-of-00010.safetensorsx",
                                "amodel.safetensors",
                                "model",
                                ""};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    assert_int_equal(ch_tensors_kind(others[i], whole), CH_KIND_OTHER);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(round_trip, make_path, drop_path),
      cmocka_unit_test_setup_teardown(checksum_is_xxh64, make_path, drop_path),
      cmocka_unit_test_setup_teardown(large_files_are_forgotten, make_path, drop_path),
      cmocka_unit_test_setup_teardown(damage_is_refused, make_path, drop_path),
      cmocka_unit_test(other_programs_files_pass),
      cmocka_unit_test(hostile_headers),
      cmocka_unit_test_setup_teardown(abandoned_writes_leave_no_file, make_path, drop_path),
      cmocka_unit_test_setup_teardown(impossible_writes, make_path, drop_path),
      cmocka_unit_test(several_files),
      cmocka_unit_test(wrong_sets),
      cmocka_unit_test(kinds_of_names),
  };
  return cmocka_run_group_tests(tests, program_directory_make, program_directory_remove);
}
