/* Atomic files and directories, leftovers, the lock of a run, suggestions. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "file/dir.h"
#include "file/file.h"
#include "file/json.h"
#include "file/temporary.h"
#include "testing.h"

static char base[64];

static int make_base(void **state) {
  strcpy(base, "/tmp/choir-file-XXXXXX");
  return mkdtemp(base) == NULL;
}

static int drop_base(void **state) { return ch_dir_remove(base); }

static const char *in_base(const char *name) {
  static char paths[4][256];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof *paths, "%s/%s", base, name);
  return path;
}

static int entries(void) {
  char command[128];
  snprintf(command, sizeof command, "ls -A %s | wc -l", base);
  FILE *f = popen(command, "r");
  int count = -1;
  if (!f || fscanf(f, "%d", &count) != 1) count = -1;
  if (f) pclose(f);
  return count;
}

static void holds(const char *path, const char *text) {
  char *data;
  size_t bytes;
  const void *map;
  test_ok(ch_file_read(path, 1 << 20, &data, &bytes));
  assert_string_equal(data, text);
  free(data);
  test_ok(ch_file_map(path, &map, &bytes));
  assert_int_equal(bytes, strlen(text));
  assert_memory_equal(map, text, bytes);
  ch_file_unmap(map, bytes);
}

static void files_are_whole_or_not_there(void **state) {
  ch_file file;
  test_ok(ch_file_save(in_base("a"), "first", 5));
  test_ok(ch_file_begin(&file, in_base("a")));
  ch_file_write(&file, "second", 6);
  holds(in_base("a"), "first"); /* until it is committed */
  ch_file_abandon(&file);
  holds(in_base("a"), "first");
  assert_int_equal(entries(), 1);
  test_ok(ch_file_begin(&file, in_base("a")));
  ch_file_write(&file, "sec", 3);
  ch_file_write(&file, "ond", 3);
  test_ok(ch_file_commit(&file));
  holds(in_base("a"), "second");
  test_ok(ch_file_save(in_base("empty"), "", 0));
  holds(in_base("empty"), "");
  assert_int_equal(entries(), 2);
  char *data;
  size_t bytes;
  test_fails(ch_file_read(in_base("a"), 5, &data, &bytes), CHOIR_ERROR_FORMAT, "6 bytes; at most 5");
  test_fails(ch_file_read(in_base("b"), 5, &data, &bytes), CHOIR_ERROR_IO, "/b: No such file");
  test_fails(ch_file_read(base, 5, &data, &bytes), CHOIR_ERROR_IO, "not a regular file");
  test_fails(ch_file_save(in_base("no/b"), "x", 1), CHOIR_ERROR_IO, "/no/b: cannot be written");
  test_fails(ch_file_save("", "x", 1), CHOIR_ERROR_ARGUMENT, "not a usable file name");
  static const char *const parents[][2] = {{"/a", "/"}, {"a", "."}, {"a/b", "a"}, {"/a/b", "/a"}};
  for (int i = 0; i < 4; i++) {
    char parent[8];
    ch_path_parent(parents[i][0], parent, sizeof parent);
    assert_string_equal(parent, parents[i][1]);
  }
}

static void a_full_disk_says_how_much(void **state) {
  test_fails(ch_write_error(ENOSPC, "p", 2500000), CHOIR_ERROR_FULL, "p: disk full: needs 2.5 MB (2500000 bytes)");
  test_fails(ch_write_error(EDQUOT, "p", 0), CHOIR_ERROR_FULL, "p: disk quota used up; make room");
  test_fails(ch_write_error(EACCES, "p", 5), CHOIR_ERROR_IO, "p: Permission denied");
  /* A write that fails half way: what was there stays, nothing else remains. */
  test_ok(ch_file_save(in_base("a"), "first", 5));
  struct rlimit old, small = {4096, 4096};
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  small.rlim_max = old.rlim_max;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  char *data = calloc(1, 10000);
  int code = ch_file_save(in_base("a"), data, 10000);
  free(data);
  setrlimit(RLIMIT_FSIZE, &old);
  test_fails(code, CHOIR_ERROR_IO, "/a: File too large");
  holds(in_base("a"), "first");
  assert_int_equal(entries(), 1);
}

static void directories_are_whole_or_not_there(void **state) {
  ch_dir dir;
  char name[4096];
  test_ok(ch_dir_begin(&dir, in_base("ckpt/")));
  snprintf(name, sizeof name, "%s/weights", dir.temporary);
  test_ok(ch_file_save(name, "w", 1));
  snprintf(name, sizeof name, "%s/sub/deep", dir.temporary);
  test_ok(ch_dir_make(name));
  assert_int_equal(access(in_base("ckpt"), F_OK), -1);
  test_ok(ch_dir_commit(&dir));
  holds(in_base("ckpt/weights"), "w");
  assert_int_equal(access(in_base("ckpt/sub/deep"), F_OK), 0);
  assert_int_equal(entries(), 1);

  test_fails(ch_dir_begin(&dir, in_base("ckpt")), CHOIR_ERROR_IO,
             "ckpt: exists already"); /* before the work, unharmed */
  holds(in_base("ckpt/weights"), "w");
  test_ok(ch_dir_begin(&dir, in_base("late"))); /* or at the end, where it comes meanwhile */
  test_ok(ch_dir_make(in_base("late/sub")));
  test_fails(ch_dir_commit(&dir), CHOIR_ERROR_IO, "late: exists already");
  test_ok(ch_dir_remove(in_base("late")));
  holds(in_base("ckpt/weights"), "w");
  test_ok(ch_dir_begin(&dir, in_base("other")));
  assert_int_equal(ch_dir_end(&dir, CHOIR_ERROR_IO), CHOIR_ERROR_IO);
  assert_int_equal(entries(), 1);
  test_fails(ch_dir_begin(&dir, in_base("no/ckpt")), CHOIR_ERROR_IO, "no/ckpt: cannot be created");

  test_ok(ch_dir_make(in_base("ckpt")));
  test_fails(ch_dir_make(in_base("ckpt/weights")), CHOIR_ERROR_IO, "not a directory");
  test_fails(ch_dir_make(in_base("ckpt/weights/x")), CHOIR_ERROR_IO, "Not a directory");
  test_ok(ch_dir_remove(in_base("ckpt/")));
  assert_int_equal(entries(), 0);
  test_fails(ch_dir_remove(in_base("ckpt")), CHOIR_ERROR_IO, "ckpt: cannot be removed");
}

static const char *vanishes; /* before the next lock is had */
static int no_locks;         /* errno of a file system without them */
static const char *cleaned;  /* the same, by another command that writes there */

/* In the place of the C library's. */
int flock(int fd, int operation) {
  if (no_locks) return errno = no_locks, -1;
  if (vanishes) unlink(vanishes);
  vanishes = NULL;
  const char *directory = cleaned;
  cleaned = NULL;
  if (directory) ch_temporary_clean(directory);
  return (int)syscall(SYS_flock, fd, operation);
}

/* Whoever failed in a new directory takes its lock away: one that was opened before then locks nobody out. */
static void a_lock_has_its_name(void **state) {
  int lock, second;
  vanishes = in_base("lock");
  test_ok(ch_lock_take(base, &lock));
  assert_null(vanishes);
  test_fails(ch_lock_take(base, &second), CHOIR_ERROR_BUSY, "is using it");
  ch_lock_release(lock);
}

/* Lustre, NFS and FUSE may have none: a run goes on and says so; other errors are errors. */
static void file_systems_without_locks(void **state) {
  static const int without[] = {ENOSYS, ENOLCK, EOPNOTSUPP};
  int lock;
  for (int i = 0; i < 3; i++) {
    no_locks = without[i];
    choir_notices();
    test_ok(ch_lock_take(base, &lock));
    assert_non_null(strstr(choir_notices(), "this file system has no locks"));
    ch_lock_release(lock);
  }
  no_locks = EIO;
  test_fails(ch_lock_take(base, &lock), CHOIR_ERROR_IO, "cannot be locked");
  no_locks = 0;
}

/* Another command takes a mark that is made and not yet locked for a dead one's: the maker makes another. */
static void unlocked_marks_are_made_again(void **state) {
  cleaned = base;
  test_ok(ch_file_save(in_base("late"), "x", 1));
  assert_null(cleaned);
  holds(in_base("late"), "x");
  unlink(in_base("late"));
}

static void one_run_per_directory(void **state) {
  int lock, second, gate[2];
  test_ok(ch_lock_take(base, &lock));
  char wanted[64];
  snprintf(wanted, sizeof wanted, "process %ld is using it", (long)getpid());
  test_fails(ch_lock_take(base, &second), CHOIR_ERROR_BUSY, wanted);
  ch_lock_release(lock);
  /* A killed process holds nothing. */
  assert_int_equal(pipe(gate), 0);
  pid_t child = fork();
  if (!child) {
    char done = (char)ch_lock_take(base, &lock);
    if (write(gate[1], &done, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char code = 1;
  assert_int_equal(read(gate[0], &code, 1), 1);
  assert_int_equal(code, 0);
  snprintf(wanted, sizeof wanted, "process %ld", (long)child);
  test_fails(ch_lock_take(base, &lock), CHOIR_ERROR_BUSY, wanted);
  test_signal(child, SIGKILL);
  waitpid(child, NULL, 0);
  test_ok(ch_lock_take(base, &lock));
  ch_lock_release(lock);
  test_fails(ch_lock_take("/nonexistent", &lock), CHOIR_ERROR_IO, "/nonexistent/lock");
  /* Numbers of somebody else's are not overwritten. */
  static const char *const theirs[] = {"1\n2\n", "1234567890123456789012345678901234567890\n"};
  for (int i = 0; i < 2; i++) {
    test_ok(ch_file_save(in_base("lock"), theirs[i], strlen(theirs[i])));
    test_fails(ch_lock_take(base, &lock), CHOIR_ERROR_ARGUMENT, "not a lock of choir's");
    holds(in_base("lock"), theirs[i]);
  }
}

static int is_there(const char *name) { return !access(in_base(name), F_OK); }

/* Directories that a run made and never used go, parents too; a file in one, or that it was there before, keeps it. */
static void released_reservations_leave_nothing(void **state) {
  ch_reservation reservation, second;
  test_ok(ch_dir_make(in_base("there")));
  for (int failed = 0; failed < 2; failed++)
    for (int file = 0; file < 2; file++) {
      test_ok(ch_reservation_take(&reservation, in_base("there/new//run/"), NULL, 0));
      test_fails(ch_reservation_take(&second, in_base("there/new/run"), NULL, 0), CHOIR_ERROR_BUSY, "is using it");
      test_ok(ch_dir_make(in_base("there/new/run/checkpoints")));
      if (file) test_ok(ch_file_save(in_base("there/new/run/config.json"), "x", 1));
      ch_reservation_release(&reservation, failed);
      assert_int_equal(is_there("there/new"), !failed || file);
      assert_int_equal(is_there("there/new/run/checkpoints"), !failed || file);
      assert_true(is_there("there"));
      if (is_there("there/new")) test_ok(ch_dir_remove(in_base("there/new")));
    }
  test_ok(ch_reservation_take(&reservation, in_base("there"), NULL, 0));
  ch_reservation_release(&reservation, 1);
  assert_true(is_there("there"));
  test_fails(ch_reservation_take(&reservation, in_base("there/lock/x"), NULL, 0), CHOIR_ERROR_IO, "Not a directory");
  test_ok(ch_dir_make(in_base("there/lock-is-no-file/lock")));
  test_fails(ch_reservation_take(&reservation, in_base("there/lock-is-no-file"), NULL, 0), CHOIR_ERROR_FORMAT,
             "lock: is a directory");
  ch_reservation_release(&reservation, 1);
  struct rlimit limit, none; /* a lock that cannot be written, as on a full disk */
  getrlimit(RLIMIT_FSIZE, &limit);
  none = (struct rlimit){0, limit.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &none);
  int code = ch_reservation_take(&reservation, in_base("there/new/run"), NULL, 0);
  setrlimit(RLIMIT_FSIZE, &limit);
  test_fails(code, CHOIR_ERROR_IO, "cannot be written");
  assert_false(is_there("there/new"));
  test_ok(ch_dir_remove(in_base("there")));
}

static void nearest_words(void **state) {
  static const char *const known[] = {"rate", "steps", "experts", "capacity_factor", "heads", NULL};
  assert_string_equal(ch_suggest("rte", known), "rate");
  assert_string_equal(ch_suggest("trail", (const char *const[]){"trains", "trial", NULL}),
                      "trial"); /* a swap: 1 edit */
  assert_string_equal(ch_suggest("expert", known), "experts");
  assert_string_equal(ch_suggest("capacty_factr", known), "capacity_factor");
  assert_string_equal(ch_suggest("head", known), "heads");
  assert_string_equal(ch_suggest("capacity", known), "capacity_factor"); /* cut short */
  assert_null(ch_suggest("xyzzy", known));
  assert_null(ch_suggest("zz", (const char *const[]){"ab", NULL})); /* two edits make any two letters */
  assert_null(ch_suggest("", known));
  char text[100], large[300];
  assert_string_equal(ch_did_you_mean(text, sizeof text, "stesp", known), ", did you mean 'steps'?");
  assert_string_equal(ch_did_you_mean(text, sizeof text, "zzzzzz", known), "");
  memset(large, 'a', sizeof large - 1);
  large[sizeof large - 1] = 0;
  assert_null(ch_suggest(large, known));
  assert_string_equal(ch_word_list(text, 12, known), "rate, steps");
}

/* One \r goes with the end of a line, one mark with the beginning of the text. */
static void lines(void **state) {
  static const char text[] = "\xEF\xBB\xBFx\r\r\n\n\xEF\xBB\xBFy", *const want[] = {"x\r", "", "\xEF\xBB\xBFy"};
  ch_lines all = {text, text + sizeof text - 1, 0};
  ch_value line;
  for (int i = 0; i < 3; i++) {
    assert_true(ch_lines_next(&all, &line) && all.number == i + 1);
    assert_int_equal(line.size, strlen(want[i]));
    assert_memory_equal(line.text, want[i], line.size);
  }
  assert_false(ch_lines_next(&all, &line));
}

static void json_is_strict(void **state) {
  json_t *root, *object;
  int64_t integer;
  double number;
  const char *text;
  const char *source = "{\"n\": 3, \"x\": 0.5, \"s\": \"t\", \"o\": {}, \"a\": [1]}";
  test_ok(ch_json_parse(source, strlen(source), "f", &root));
  test_ok(ch_json_get_integer(root, "f", "n", 0, 3, &integer));
  assert_int_equal(integer, 3);
  test_ok(ch_json_get_number(root, "f", "x", 0, 1, &number));
  test_ok(ch_json_get_string(root, "f", "s", &text));
  test_ok(ch_json_get_object(root, "f", "o", &object));
  test_ok(ch_json_get_array(root, "f", "a", &object));
  test_fails(ch_json_get_integer(root, "f", "m", 0, 3, &integer), CHOIR_ERROR_FORMAT, "f: \"m\" is missing");
  test_fails(ch_json_get_integer(root, "f", "n", 4, 9, &integer), CHOIR_ERROR_FORMAT,
             "\"n\" is 3: must be an integer from 4");
  test_fails(ch_json_get_integer(root, "f", "x", 0, 9, &integer), CHOIR_ERROR_FORMAT, "\"x\" is 0.5");
  test_fails(ch_json_get_number(root, "f", "s", 0, 9, &number), CHOIR_ERROR_FORMAT, "\"s\" is \"t\"");
  test_fails(ch_json_get_string(root, "f", "a", &text), CHOIR_ERROR_FORMAT, "\"a\" is [1]");
  test_fails(ch_json_get_object(root, "f", "a", &object), CHOIR_ERROR_FORMAT, "must be an object");
  test_fails(ch_json_get_array(root, "f", "o", &object), CHOIR_ERROR_FORMAT, "must be an array");
  json_decref(root);
  test_ok(ch_json_save(json_pack("{s:f, s:f, s:i}", "a", 0.1, "b", 1e-6, "c", 7), in_base("x.json")));
  holds(in_base("x.json"), "{\n  \"a\": 0.1,\n  \"b\": 1e-6,\n  \"c\": 7\n}\n");
  test_ok(ch_json_load(in_base("x.json"), &root));
  json_decref(root);
  test_fails(ch_json_save(NULL, in_base("x.json")), CHOIR_ERROR_MEMORY, "x.json");
}

/* A text that memory ran out for is not left out: it is refused, once. */
static void incomplete_json(void **state) {
  json_t *object = json_object(), *array = json_array();
  ch_json_put(object, "a", json_integer(1));
  char *text = ch_json_dump(object, JSON_COMPACT);
  assert_string_equal(text, "{\"a\":1}");
  free(text);
  ch_json_put(object, "b", NULL);
  assert_null(ch_json_dump(object, JSON_COMPACT));
  ch_json_add(array, NULL);
  assert_null(ch_json_dump(object, JSON_COMPACT));
  text = ch_json_dump(object, JSON_COMPACT);
  assert_non_null(text);
  free(text);
  json_decref(object), json_decref(array);
}

/* Allocations of jansson's before the one that fails; below 0: it has failed. */
static int failing;
static void *all_but_one(size_t size) { return failing-- ? malloc(size) : NULL; }

static void whole_or_nothing(const json_t *object) {
  char *want = ch_json_dump(object, JSON_INDENT(2)), *have;
  json_malloc_t get;
  json_free_t give;
  json_get_alloc_funcs(&get, &give);
  for (int number = 0, failed = 1; failed; number++) {
    failing = number;
    json_set_alloc_funcs(all_but_one, free);
    have = ch_json_dump(object, JSON_INDENT(2));
    failed = failing < 0;
    json_set_alloc_funcs(get, give);
    if (have) assert_string_equal(have, want);
    free(have);
  }
  free(want);
}

/* A text is whole or not there, wherever memory fails: jansson's own would go on without a key. */
static void whole_json(void **state) {
  enum { MEMBERS = 60, SHIFTS = 16 };
  for (int shift = 0; shift < SHIFTS; shift++) { /* so that texts outgrow their memory in other places */
    json_t *object = json_object();
    for (int i = 0; i < MEMBERS; i++) {
      char key[64];
      snprintf(key, sizeof key, "%.*smember %d", shift, "................", i);
      json_object_set_new(object, key, json_integer(i));
    }
    whole_or_nothing(object);
    json_decref(object);
  }
}

#define IN_BASE(test) cmocka_unit_test_setup_teardown(test, make_base, drop_base)
int main(void) {
  const struct CMUnitTest tests[] = {
      IN_BASE(files_are_whole_or_not_there),
      IN_BASE(a_full_disk_says_how_much),
      IN_BASE(directories_are_whole_or_not_there),
      IN_BASE(file_systems_without_locks),
      IN_BASE(one_run_per_directory),
      IN_BASE(a_lock_has_its_name),
      IN_BASE(unlocked_marks_are_made_again),
      IN_BASE(released_reservations_leave_nothing),
      cmocka_unit_test(nearest_words),
      cmocka_unit_test(lines),
      cmocka_unit_test(incomplete_json),
      cmocka_unit_test(whole_json),
      IN_BASE(json_is_strict),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
