/* The user's files stay: files beside an output, modes, links, mount points; and what killed processes of choir left
 * goes. */
#include <dirent.h>
#include <sys/stat.h>

#include "base/machine.h"
#include "file/dir.h"
#include "program.h"

static int entries(const char *directory) {
  DIR *stream = opendir(directory);
  int count = 0;
  for (struct dirent *entry; stream && (entry = readdir(stream));)
    count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
  if (stream) closedir(stream);
  return count;
}

/* Names of numbers, of processes that are gone; choir's own name without its mark, with another's, as a link. */
static void cleanup_removes_only_files_of_choir(void **state) {
  program_must(
      "mkdir u && cd u && mkdir data.tmp-2024-backup data.tmp-99999999 .choir-tmp-12-0 .choir-tmp-13-0 "
      ".choir-tmp-15-mine run "
      "run/checkpoints "
      "run/checkpoints/best.tmp-12345-keep run/notes.tmp-1999.d elsewhere && echo mine | tee data.tmp-2024-backup/x "
      "data.tmp-99999999/x .choir-tmp-12-0/x .choir-tmp-13-0/x .choir-tmp-13-0/choir-made-this elsewhere/x "
      "run/checkpoints/best.tmp-12345-keep/x run/notes.tmp-1999.d/x && ln -s elsewhere .choir-tmp-14-0 && find . | "
      "sort "
      ">../before");
  program_must(
      "cd u && choir data build --tokenizer ../tokenizer.model --holdout 0.1 --out data ../corpus.txt && choir train "
      "--config ../config.json --data data --set steps=2 --out run && choir report run --out page.html && choir "
      "tokenizer "
      "train --vocab-size 300 --out new.model ../corpus.txt && rm -r data run/checkpoints/0* run/*.json* "
      "run/data.path run/best page.html new.model run/lock");
  program_must("cd u && find . | sort >../after; diff ../before ../after && cat elsewhere/x");
}

/* A child that is killed in the middle of its work, holding a file and a directory. */
static pid_t killed_at_work(void) {
  int gate[2];
  char byte;
  assert_int_equal(pipe(gate), 0);
  pid_t child = fork();
  if (!child) {
    ch_dir dir;
    ch_file file;
    char name[4300];
    if (ch_dir_begin(&dir, "left/7") || ch_file_begin(&file, "left/file")) _exit(1);
    snprintf(name, sizeof name, "%s/weights", dir.temporary);
    if (ch_file_save(name, "w", 1)) _exit(1);
    ch_file_write(&file, "half", 4);
    if (write(gate[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  assert_int_equal(read(gate[0], &byte, 1), 1);
  close(gate[0]), close(gate[1]);
  return child;
}

static void leftovers_of_the_dead_go(void **state) {
  test_ok(ch_dir_make("left"));
  pid_t child = killed_at_work();
  ch_temporary_clean("left");
  assert_int_equal(entries("left"), 2); /* it lives */
  test_signal(child, SIGKILL);
  program_wait(child);
  test_ok(ch_file_save("left/other", "x", 1)); /* whoever writes there next */
  assert_int_equal(entries("left"), 1);
}

/* Killed before the mark had its words: nothing is in there yet. */
static void incomplete_marks_are_removed(void **state) {
  program_must(
      "mkdir -p half/.choir-tmp-1-0 half/.choir-tmp-2-0 half/.choir-tmp-3-0 && : >half/.choir-tmp-2-0/choir-made-this "
      "&& : "
      ">half/.choir-tmp-3-0/choir-made-this && echo mine >half/.choir-tmp-3-0/x");
  ch_temporary_clean("half");
  program_must("ls -A half | grep -c . | grep -x 1 && cat half/.choir-tmp-3-0/x");
  if (geteuid()) return;
  program_must("mkdir half/.choir-tmp-4-0 && chown 1234 half/.choir-tmp-4-0"); /* another user's, who may be at work */
  ch_temporary_clean("half");
  program_must("test -d half/.choir-tmp-4-0");
}

/* Locks of some file systems do not reach other hosts: what another host makes is nobody else's to remove. */
static void temporaries_of_other_hosts_stay(void **state) {
  static const char words[] =
      "choir makes an output here. Nothing is lost when this directory is removed while no process holds a lock on "
      "this file.\n";
  char own[4096], other[4096], mark[4200];
  ch_temporary t;
  test_ok(ch_dir_make("hosts"));
  assert_int_equal(ch_temporary_make(&t, "hosts"), 0);
  snprintf(own, sizeof own, "%s", t.path);
  uint64_t number = strtoull(strrchr(own, '-') + 1, NULL, 10) / 1000000;
  ch_temporary_remove(&t);
  for (int i = 0; i < 4; i++) { /* another kernel and another name; then one of the two, then none */
    uint64_t maker = number ^ (i & 1 ? 0 : 0x6) ^ (i & 2 ? 0 : 0x60000);
    snprintf(other, sizeof other, "hosts/.choir-tmp-77-%llu", (unsigned long long)maker * 1000000);
    snprintf(mark, sizeof mark, "%s/choir-made-this", other);
    test_ok(ch_dir_make(other));
    test_ok(ch_file_save(mark, words, sizeof words - 1));
    ch_temporary_clean("hosts");
    assert_int_equal(entries("hosts"), i == 0);
    unlink(mark);
    rmdir(other);
  }
}

static mode_t mode_of(const char *path) {
  struct stat status;
  assert_int_equal(stat(path, &status), 0);
  return status.st_mode & 07777;
}

static void outputs_keep_mode_and_links(void **state) {
  program_must(
      "mkdir keep keep/far && cd keep && echo old >far/target && chmod 600 far/target && ln -s far/target link && ln "
      "-s "
      "link second && ln -s far/new dangling && ln -s loop loop");
  test_ok(ch_file_save("keep/second", "new", 3));
  program_must("cd keep && test -L second && test -L link && grep -qx new far/target && test $(ls -A far | wc -l) = 1");
  assert_int_equal(mode_of("keep/far/target"), 0600);
  test_ok(ch_file_save("keep/dangling", "new", 3));
  program_must("cd keep && test -L dangling && grep -qx new far/new");
  assert_int_equal(ch_file_save("keep/loop", "x", 1), CHOIR_ERROR_IO);
  assert_non_null(strstr(choir_error_message(), "keep/loop: Too many levels"));
  if (!geteuid()) {
    program_must("chown 1234:4321 keep/far/target");
    test_ok(ch_file_save("keep/far/target", "x", 1));
    program_must("test $(stat -c %%u:%%g:%%a keep/far/target) = 1234:4321:600");
  }
}

static void empty_directories_and_links_to_them_are_outputs(void **state) {
  ch_dir dir;
  program_must(
      "mkdir -p places/far places/empty places/full && chmod 750 places/far && ln -s far places/link && : "
      ">places/full/x");
  test_ok(ch_dir_begin(&dir, "places/link/"));
  test_ok(ch_dir_commit(&dir));
  program_must("test -L places/link");
  assert_int_equal(mode_of("places/far"), 0750);
  test_ok(ch_dir_begin(&dir, "places/empty"));
  test_ok(ch_dir_commit(&dir));
  assert_int_equal(ch_dir_begin(&dir, "places/full"), CHOIR_ERROR_IO); /* before the work */
  assert_non_null(strstr(choir_error_message(), "places/full: exists already and is not empty"));
  assert_int_equal(ch_dir_begin(&dir, "places/full/x"), CHOIR_ERROR_IO);
  assert_non_null(strstr(choir_error_message(), "not a directory"));
  assert_int_equal(entries("places"), 4);
}

/* As a container's volume: refused before the work, by name. */
static void mount_points_are_refused_before_the_work(void **state) {
  program_must("mkdir -p mounted");
  pid_t child = fork();
  if (!child) {
    if (program_mount("mounted", NULL)) _exit(77);
    int status = program_run(
        "choir data build --tokenizer tokenizer.model --out mounted corpus.txt; test $? = 1 && choir data build "
        "--tokenizer "
        "tokenizer.model --holdout 0.1 --out mounted/data corpus.txt");
    if (status || !strstr(program_output, "mounted: is a mount point") || strstr(program_output, "%"))
      _exit(fprintf(stderr, "%s\n", program_output) > 0);
    _exit(0);
  }
  int status = program_wait(child);
  if (status == 77) skip();
  assert_int_equal(status, 0);
}

/* Some file systems know no fsync of a directory: what was written stands. A failing disk is another matter. */
static void directories_without_fsync(void **state) {
  if (!*CHOIR_SHIM) skip();
  program_must(
      "export FAULT_DIRECTORIES=1; faulty fsync:22:1:1000 train --config config.json --data data --set steps=9 --out "
      "odd");
  program_refuses(
      1, "Input/output error",
      "export FAULT_DIRECTORIES=1; faulty fsync:5:1:1000 train --config config.json --data data --out broken");
}

/* What a file system cannot do is said before the first step, or done in another way: directories that cannot be
 * renamed, files that cannot be mapped. */
static void odd_file_systems(void **state) {
  if (!*CHOIR_SHIM) skip();
  static const int errors[] = {ENOSYS, EXDEV};
  for (int i = 0; i < 2; i++) {
    program_refuses(1, "cannot rename directories",
                    "export FAULT_DIRECTORIES=1; faulty rename:%d:1:1000 train --config config.json --data data --out "
                    "renames",
                    errors[i]);
    assert_null(strstr(program_output, "step 1/"));
    assert_int_not_equal(access("renames", F_OK), 0);
  }
  program_must(
      "choir train --config config.json --data data --set steps=9 --out maps; "
      "choir eval maps --data data --json >maps.json");
  program_must("faulty mmap:%d:1:1000 train --config config.json --data data --set steps=9 --out copies", ENODEV);
  assert_non_null(strstr(program_output, "cannot map files; "));
  program_must(
      "faulty mmap:%d:1:1000 eval copies --data data --json 2>said >copies.json; cmp maps.json copies.json; "
      "cmp maps/checkpoints/*9/model.safetensors copies/checkpoints/*9/model.safetensors",
      ENODEV);
}

/* SentencePiece's search for pieces takes long and cannot be stopped; the program ends without it. */
static void a_search_for_pieces_is_left(void **state) {
  program_must("mkdir search");
  program_corpus("long.txt", 16000, 9);
  pid_t child = program_start(
      "exec \"$CHOIR\" tokenizer train --type unigram --vocab-size 1000 --sample-bytes 100000000 --out search/t.model "
      "long.txt",
      "said.txt");
  for (int i = 0; i < 3000 && program_run("grep -q training said.txt"); i++) program_nap(0.01);
  program_nap(0.5); /* any point of the training will do */
  test_signal(child, SIGTERM);
  double begin = ch_machine_seconds();
  assert_int_equal(program_wait(child), 1);
  assert_true(ch_machine_seconds() - begin < 4);
  program_must("grep -q 'stopped; no tokenizer was written' said.txt");
  assert_int_equal(entries("search"), 0);
}

/* As cp, by device and inode, whatever name leads to it; what is only beside the inputs may be replaced. */
static void outputs_that_are_read_are_refused(void **state) {
  static const char read[] = "is read by this command";
  program_must(
      "mkdir read && cp corpus.txt read/a.txt && cp tokenizer.model config.json read && cd read && mkdir texts && cp "
      "a.txt "
      "texts && ln a.txt hard && ln -s a.txt soft && choir train --threads 1 --config config.json --data ../data --set "
      "steps=2 --set eval_every=0 --out run && choir report run && choir report run && choir report run --out "
      "run/page.html && choir report run --out run/page.html && cp -r . ../kept");
  static const char *const commands[] = {
      "tokenizer train --vocab-size 300 --out a.txt a.txt",
      "tokenizer train --vocab-size 300 --out hard a.txt",
      "tokenizer train --vocab-size 300 --out soft a.txt",
      "tokenizer train --vocab-size 300 --out a.txt soft",
      "tokenizer train --vocab-size 300 --out texts/a.txt texts",
      "tokenizer encode --tokenizer tokenizer.model --out a.txt a.txt",
      "tokenizer encode --tokenizer tokenizer.model --out tokenizer.model a.txt",
      "tokenizer import --out tokenizer.model tokenizer.model",
      "report run --out run/metrics.jsonl",
      "report run --out run/timing.jsonl",
      "report run --out run/checkpoints/00000002/model.safetensors",
      "report ../read/run --out run/config.json",
      "inspect run --text a.txt --out a.txt",
      "export --format gguf --data ../data --out run/checkpoints/00000002/model.safetensors run"};
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    program_refuses(2, read, "cd read && choir %s", commands[i]);
  program_must("diff -r read kept");
  program_refuses(2, "both name", "cd read && choir forward run ids.npy --logits x.npy --save-routes x.npy");
  program_refuses(2, "both name", "cd read && ln a.txt b.txt; choir forward run x --logits a.txt --save-routes b.txt");
}

TEST_MAIN(program_setup, program_directory_remove, outputs_that_are_read_are_refused,
          cleanup_removes_only_files_of_choir, leftovers_of_the_dead_go, incomplete_marks_are_removed,
          temporaries_of_other_hosts_stay, outputs_keep_mode_and_links, empty_directories_and_links_to_them_are_outputs,
          mount_points_are_refused_before_the_work, directories_without_fsync, odd_file_systems,
          a_search_for_pieces_is_left)
