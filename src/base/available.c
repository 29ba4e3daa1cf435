/* Available memory: of the machine, within the limits of cgroups and ulimits. CPU quota of cgroups. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/machine.h"

static const size_t NONE = SIZE_MAX;

/* The number after `key` in a file of "key number" lines, or the file's only number when key is "". Returns `otherwise`
 * if the file, the key or the number is missing ("max"). */
static size_t read_number(const char *path, const char *key, size_t otherwise) {
  FILE *f = fopen(path, "r");
  if (!f) return otherwise;
  char line[256], *end;
  size_t length = strlen(key), value = otherwise;
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, key, length)) {
      unsigned long long number = strtoull(line + length, &end, 10);
      if (end > line + length) value = (size_t)number;
      break;
    }
  fclose(f);
  return value;
}

static size_t smaller_of(size_t a, size_t b) { return a < b ? a : b; }

static size_t left_of(size_t limit, size_t used) { return limit == NONE ? NONE : limit > used ? limit - used : 0; }

/* File names of the two versions of cgroups. */
typedef struct version {
  const char *file_system, *controller; /* of the mount; "": any */
  const char *limits[2], *used, *reclaimable;
} version;
static const version versions[] = {
    {"cgroup2", "", {"memory.max", "memory.high"}, "memory.current", "inactive_file "},
    {"cgroup", "memory", {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file "}};

/* Memory available within the cgroup of a directory. */
static size_t group_leaves(const version *v, const char *directory) {
  enum { PATH_SIZE = 3 * PATH_MAX + 64 };
  char path[PATH_SIZE];
  size_t limit = NONE;
  for (int i = 0; i < 2 && v->limits[i]; i++) {
    snprintf(path, PATH_SIZE, "%s/%s", directory, v->limits[i]);
    limit = smaller_of(limit, read_number(path, "", NONE));
  }
  if (limit >= (size_t)1 << 60) return NONE; /* version 1 writes such a number for no limit */
  snprintf(path, PATH_SIZE, "%s/%s", directory, v->used);
  size_t used = read_number(path, "", 0);
  snprintf(path, PATH_SIZE, "%s/memory.stat", directory);
  size_t cache = read_number(path, v->reclaimable, 0);
  return left_of(limit, used > cache ? used - cache : 0);
}

/* Whether a word is in a comma-separated list. */
static int in_list(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, word, length) && (!at[length] || at[length] == ',')) return 1;
  return 0;
}

/* This process's cgroup from /proc/self/cgroup (lines "number:controllers:path"). Returns 0 if there is none of that
 * version. */
static int find_group(const char *root, const version *v, char *group) {
  char path[PATH_MAX], line[PATH_MAX + 256];
  int found = 0;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *f = fopen(path, "r");
  while (f && !found && fgets(line, sizeof line, f)) {
    char *controllers = strchr(line, ':'), *name = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!name) continue;
    *name++ = 0;
    name[strcspn(name, "\n")] = 0;
    found = *v->controller ? in_list(controllers + 1, v->controller) : !controllers[1];
    if (found) snprintf(group, PATH_MAX, "%s", name);
  }
  if (f) fclose(f);
  return found;
}

/* Replaces octal escapes of spaces etc.: "\040". */
static void unescape(char *text) {
  char *to = text;
  for (; *text; text++)
    if (text[0] == '\\' && text[1] && text[2] && text[3]) {
      *to++ = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
      text += 3;
    } else {
      *to++ = *text;
    }
  *to = 0;
}

/* Mount point of a version's cgroups, and the cgroup at the mount point, from /proc/self/mountinfo. */
static int find_mount(const char *root, const version *v, char *point, char *top) {
  char path[PATH_MAX], *line = NULL;
  size_t capacity = 0;
  int found = 0;
  snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  FILE *f = fopen(path, "r");
  while (f && !found && getline(&line, &capacity, f) > 0) {
    char type[64], options[1024] = "";
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(rest, " - %63s %*s %1023s", type, options) < 1 || strcmp(type, v->file_system)) continue;
    if (*v->controller && !in_list(options, v->controller)) continue;
    found = sscanf(line, "%*s %*s %*s %4095s %4095s", top, point) == 2;
  }
  free(line);
  if (f) fclose(f);
  if (found) unescape(top), unescape(point);
  return found;
}

/* The min of leave(directory) over the process's cgroup and its mounted ancestors. */
static size_t groups_leave(const char *root, const version *v,
                           size_t (*leave)(const version *v, const char *directory)) {
  char group[PATH_MAX], point[PATH_MAX], top[PATH_MAX], directory[3 * PATH_MAX];
  size_t leaves = NONE;
  if (!find_group(root, v, group) || !find_mount(root, v, point, top)) return NONE;
  size_t shared = strcmp(top, "/") ? strlen(top) : 0; /* in a container the mount point is not the root cgroup */
  const char *below = strncmp(group, top, shared) || strstr(group, "/..") ? "" : group + shared;
  size_t base = (size_t)snprintf(directory, sizeof directory, "%s%s", root, point);
  snprintf(directory + base, sizeof directory - base, "%s", strcmp(below, "/") ? below : "");
  for (;;) {
    leaves = smaller_of(leaves, leave(v, directory));
    char *slash = strrchr(directory + base, '/');
    if (!slash) return leaves;
    *slash = 0;
  }
}

size_t ch_machine_available_memory_at(const char *root) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  size_t kib = read_number(path, "MemAvailable:", NONE), available = kib == NONE ? NONE : kib * 1024;
  for (int i = 0; i < 2; i++) available = smaller_of(available, groups_leave(root, &versions[i], group_leaves));
  return available == NONE ? 0 : available ? available : 1; /* 0 means unknown */
}

static const version cpu_versions[] = {{"cgroup2", "", {"cpu.max", NULL}, "", ""},
                                       {"cgroup", "cpu", {"cpu.cfs_quota_us", "cpu.cfs_period_us"}, "", ""}};

/* CPU quota of a directory's cgroup (microseconds per period), rounded up to CPUs. */
static size_t group_cpus(const version *v, const char *directory) {
  enum { PATH_SIZE = 3 * PATH_MAX + 64 };
  char path[PATH_SIZE];
  long long number[2] = {-1, 0}; /* no quota: -1 in version 1, a word in version 2 */
  int known = 0;
  for (int i = 0; i < 2 && v->limits[i]; i++) {
    snprintf(path, PATH_SIZE, "%s/%s", directory, v->limits[i]);
    FILE *f = fopen(path, "r");
    if (!f) return NONE;
    known += v->limits[1] ? fscanf(f, "%lld", &number[i]) : fscanf(f, "%lld %lld", &number[0], &number[1]);
    fclose(f);
  }
  return known == 2 && number[0] > 0 && number[1] > 0 ? (size_t)((number[0] - 1) / number[1] + 1) : NONE;
}

int ch_machine_quota_at(const char *root) {
  size_t cpus = NONE;
  for (int i = 0; i < 2; i++) cpus = smaller_of(cpus, groups_leave(root, &cpu_versions[i], group_cpus));
  return cpus > INT_MAX ? 0 : (int)cpus;
}

/* Memory available within `ulimit -v` and `ulimit -d`. */
static size_t limits_leave(void) {
  static const struct {
    int resource;
    int field; /* field of /proc/self/statm, in pages */
  } limits[] = {{RLIMIT_AS, 0}, {RLIMIT_DATA, 5}};
  size_t leaves = NONE, pages[6] = {0};
  FILE *f = fopen("/proc/self/statm", "r");
  for (int i = 0; f && i < 6; i++)
    if (fscanf(f, "%zu", &pages[i]) != 1) break;
  if (f) fclose(f);
  for (int i = 0; i < 2; i++) {
    struct rlimit limit;
    if (getrlimit(limits[i].resource, &limit) || limit.rlim_cur == RLIM_INFINITY) continue;
    leaves = smaller_of(leaves, left_of(limit.rlim_cur, pages[limits[i].field] * (size_t)sysconf(_SC_PAGESIZE)));
  }
  return leaves;
}

size_t ch_machine_available_memory(void) {
  size_t machine = ch_machine_available_memory_at(""), limits = limits_leave();
  if (limits == NONE) return machine;
  limits = limits ? limits : 1;
  return machine ? smaller_of(machine, limits) : limits;
}
