/* A study of two arms that are pre-trained and fine-tuned; one of its files is the input behind the first byte, which
 * says which: study.json, time.json, measures.json or result.json of a run, the file of --words. Any bytes give a
 * summary and its page, or are refused. */
#include <string.h>
#include <sys/stat.h>

#include "file/dir.h"
#include "file/file.h"
#include "file/json.h"
#include "input.h"
#include "study/study.h"
#include "study/study_tables.h"
#include "study/study_tuned.h"

enum { STUDY, TIME, MEASURES, RESULT, WORDS, FILES };

static const char *const whole[FILES] = {
    [STUDY] =
        "{\"format\": \"choir-study\", \"scale_name\": \"tiny\", \"data\": \"/data\", \"data_hash\": \"0\",\n"
        "\"data_tokens\": 512, \"vocab_size\": 300, \"seeds\": 2, \"tokens\": 256,\n"
        "\"recipe\": {\"name\": \"two\", \"title\": \"Two\", \"question\": \"?\", \"figure\": \"1\", \"arms\": [\n"
        "{\"name\": \"EC\", \"set\": {\"router.name\": \"expert_choice\"}},\n"
        "{\"name\": \"dense\", \"set\": {\"router.name\": \"dense\", \"model.experts\": 1}}],\n"
        "\"measure\": [\"pools\", \"tokens\", \"time\"],\n"
        "\"tune\": {\"tasks\": [\"mine\", \"WNLI\"], \"paper\": {\"EC\": {\"mine\": 81, \"average\": 50}}},\n"
        "\"claims\": [{\"text\": \"a\", \"kind\": \"accuracy\", \"arm\": \"EC\", \"rival\": \"dense\"},\n"
        "{\"text\": \"b\", \"kind\": \"seconds\", \"arm\": \"EC\", \"rival\": \"dense\", \"figure\": 2},\n"
        "{\"text\": \"c\", \"kind\": \"device_time\", \"arm\": \"EC\", \"rival\": \"dense\", \"about\": 1.2}]},\n"
        "\"scale\": {\"config\": {\"model\": {\"name\": \"tiny\", \"layers\": 2, \"d_model\": 8, \"d_hidden\": 8,\n"
        "\"heads\": 2, \"experts\": 4}, \"train\": {\"sequence_length\": 32, \"batch_sequences\": 4}},\n"
        "\"tokens\": 256, \"seeds\": 2, \"rates\": [0.05], \"rate_tokens\": 128, \"eval_tokens\": 128,\n"
        "\"tune\": {\"steps\": 2, \"evaluations\": 2, \"rows\": 50}},\n"
        "\"tune\": {\"directory\": \"/tasks\", \"steps\": 2, \"rows\": 50, \"missing\": [\"WNLI\"],\n"
        "\"words\": {\"mine\": 0.6}, \"tasks\": [{\"name\": \"mine\", \"given\": \"mine\", \"hash\": \"1\"}]}}\n",
    [TIME] =
        "{\"threads\": 1, \"rounds\": 9, \"arms\": {\n"
        "\"EC\": {\"step\": [3, 4], \"expert\": [1, 2], \"load\": [1, 1], \"demand\": [1.2, 1.3]},\n"
        "\"dense\": {\"step\": [2, 3], \"expert\": [1, 1], \"load\": [1, 1], \"demand\": [1, 1]}}}\n",
    [MEASURES] =
        "{\"step\": 2, \"pools\": [{\"routing\": \"batch\", \"pool\": 512, \"scattered\": false, \"loss\": 5.1,\n"
        "\"tokens\": 64, \"looks_across_tokens\": true, \"causal\": 5.2}], \"own\": {\"routing\": \"batch\",\n"
        "\"loss\": 5, \"counted\": {\"kinds\": [{\"name\": \"word\", \"tokens\": 16, \"experts\": 2, \"none\": 0}],\n"
        "\"frequency\": [], \"most\": [], \"fewest\": []}}}\n",
    [RESULT] =
        "{\"task\": \"mine\", \"from\": \"/run\", \"step\": 2, \"seed\": 1, \"train\": 200, \"dev\": 50,\n"
        "\"majority\": 0.5, \"majority_label\": \"yes\", \"router\": \"expert_choice\", \"batch_sequences\": 0,\n"
        "\"own\": {\"routing\": \"threshold\", \"labelled\": 50, \"correct\": 45, \"accuracy\": 0.9,\n"
        "\"matthews\": null, \"f1\": null}, \"batch\": {\"routing\": \"batch\", \"labelled\": 50, \"correct\": 40,\n"
        "\"accuracy\": 0.8, \"matthews\": null, \"f1\": null}}\n",
    [WORDS] = "{\"task\": \"mine\", \"accuracy\": 0.625}\n\n{\"task\": \"WNLI\", \"accuracy\": 1}\n",
};

static const char metrics[] =
    "{\"event\":\"step\",\"step\":1,\"loss\":6,\"dropped\":0,\"imbalance\":1}\n"
    "{\"event\":\"eval\",\"step\":1,\"loss\":5.5,\"looks_across_tokens\":true,\"threshold\":{\"loss\":5.6}}\n"
    "{\"event\":\"step\",\"step\":2,\"loss\":5,\"dropped\":0,\"imbalance\":1}\n"
    "{\"event\":\"eval\",\"step\":2,\"loss\":5,\"tokens\":64,\"routing\":\"batch\",\"looks_across_tokens\":true,"
    "\"layers\":[]}\n";

static char directory[] = "/tmp/choir-fuzz-XXXXXX";
static int fd[FILES]; /* of what is in memory */

static void must(int bad) {
  if (bad) fprintf(stderr, "%s\n", choir_error_message()), abort();
}

static void fill(int file, const void *data, size_t size) {
  must(ftruncate(fd[file], 0) || pwrite(fd[file], data, size, 0) != (ssize_t)size);
}

/* The file is a link to memory. */
static void place(int file, const char *path) {
  char target[64];
  snprintf(target, sizeof target, "/proc/self/fd/%d", fd[file]);
  must(symlink(target, path));
}

static void make_run(const ch_study *s, int arm, int seed) {
  char name[CH_RUN_NAME], path[PATH_MAX], file[PATH_MAX + 32];
  choir_config config;
  ch_study_config(s, arm, s->arm[arm].rate, seed, s->steps, &config);
  must(ch_study_run_name(s, &config, name));
  ch_study_run_path(s, name, path);
  must(ch_dir_make(path));
  snprintf(file, sizeof file, "%s/metrics.jsonl", path);
  must(ch_file_save(file, metrics, sizeof metrics - 1));
  snprintf(file, sizeof file, "%s/measures.json", path);
  place(MEASURES, file);
  must(ch_study_tuned_name(s, 0, arm, seed, name));
  ch_study_tuned_path(s, name, path);
  snprintf(file, sizeof file, "%s/checkpoints/00000002", path);
  must(ch_dir_make(file));
  snprintf(file, sizeof file, "%s/result.json", path);
  place(RESULT, file);
}

static int make_runs(void *context, ch_study *s) {
  (void)context;
  must(ch_study_find_rates(s));
  for (int arm = 0; arm < s->arms; arm++)
    for (int seed = 1; seed <= s->seeds; seed++) make_run(s, arm, seed);
  return CHOIR_OK;
}

static void remove_directory(void) { ch_dir_remove(directory); }

static void make_study(void) {
  static const char *const names[] = {"study.json", "time.json"};
  char path[128];
  must(!mkdtemp(directory) || atexit(remove_directory));
  snprintf(path, sizeof path, "%s/own", directory);
  must(ch_dir_make(path));
  for (int f = 0; f < FILES; f++) {
    fd[f] = memfd_create("input", 0);
    fill(f, whole[f], strlen(whole[f]));
    snprintf(path, sizeof path, "%s/own/%s", directory, f < 2 ? names[f] : "words");
    if (f < 2 || f == WORDS) place(f, path);
  }
  must(ch_study_each(directory, make_runs, NULL));
}

/* Nothing of the files is taken for HTML, and every point of a chart has a place. */
static void check_page(const char *page) {
  static const char points[] = " points=\"";
  must(strstr(page, "<script") != NULL);
  for (const char *at = page; (at = strstr(at, points));) {
    at += sizeof points - 1;
    must(strcspn(at, "n") < strcspn(at, "\""));
  }
}

static int write_page(void *context, ch_study *s) {
  (void)context;
  char path[128], *page = NULL;
  size_t bytes;
  CH_TRY(ch_study_find_rates(s));
  snprintf(path, sizeof path, "%s/own/words", directory);
  if (s->tune.words) CH_TRY(ch_study_words_read(path, s->tune.words));
  json_t *summary = ch_study_summary(s);
  if (!summary) return CHOIR_ERROR_FORMAT;
  char *text = ch_json_dump(summary, JSON_COMPACT);
  must(!text);
  FILE *out = open_memstream(&page, &bytes);
  must(!out || ch_study_write_charts(out, summary, NULL));
  if (json_object_get(summary, "tuned")) ch_tuned_page(out, json_object_get(summary, "tuned"));
  ch_study_write_tables(out, summary);
  must(ferror(out) || fclose(out));
  check_page(page);
  free(page);
  free(text);
  json_decref(summary);
  return CHOIR_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  if (!fd[0]) make_study();
  int file = (uint8_t)(data[0] - '0') % FILES;
  fill(file, data + 1, size - 1);
  ch_study_each(directory, write_page, NULL);
  fill(file, whole[file], strlen(whole[file]));
  return 0;
}
