/* How much memory there is, in trees of /proc and /sys as systems and containers have them. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/machine.h"
#include "base/threads.h"
#include "program.h"

static const size_t MIB = (size_t)1 << 20;

/* A line of files: "NAME=TEXT", a directory being made for each. */
static void tree(const char *root, const char *const *files) {
  program_must("rm -rf %s && mkdir -p %s/proc/self", root, root);
  for (; *files; files++) {
    const char *equals = strchr(*files, '=');
    program_must("f='%s/%.*s'; mkdir -p \"${f%%/*}\" && printf -- '%s\\n' >\"$f\"", root, (int)(equals - *files),
                 *files, equals + 1);
  }
}

static void leaves(size_t mib, const char *const *files) {
  tree("fake", files);
  assert_int_equal(ch_machine_available_memory_at("fake"), mib * MIB);
}
#define LEAVES(mib, ...) \
  leaves(mib, (const char *const[]){"proc/meminfo=MemFree: 1 kB\\nMemAvailable:  1048576 kB", __VA_ARGS__, NULL})

#define V2 \
  "proc/self/mountinfo=22 20 0:1 / /proc rw - proc proc rw\\n30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw"
#define V1                                                                                                            \
  "proc/self/mountinfo=31 25 0:27 / /cg/cpu rw - cgroup none rw,cpu,cpuacct\\n32 25 0:28 / /cg/mem rw - cgroup none " \
  "rw,memory"

static void the_machine_alone(void **state) {
  leaves(0, (const char *const[]){"proc/nothing=", NULL});
  LEAVES(1024, "proc/self/cgroup=0::/");
  LEAVES(1024, "proc/self/cgroup=0::/", V2, "sys/fs/cgroup/memory.max=max");
}

static void has_quota(int cpus, const char *const *files) {
  tree("fake", files);
  assert_int_equal(ch_machine_quota_at("fake"), cpus);
}
#define QUOTA(cpus, ...) has_quota(cpus, (const char *const[]){__VA_ARGS__, NULL})

/* Threads beyond a quota wait for each other: the least of all levels counts, rounded up; none is 0. */
static void quotas_of_cpus(void **state) {
  QUOTA(0, "proc/nothing=");
  QUOTA(0, "proc/self/cgroup=0::/job", V2, "sys/fs/cgroup/job/cpu.max=max 100000");
  QUOTA(1, "proc/self/cgroup=0::/job", V2, "sys/fs/cgroup/job/cpu.max=20000 100000");
  QUOTA(3, "proc/self/cgroup=0::/top/job", V2, "sys/fs/cgroup/top/job/cpu.max=400000 100000",
        "sys/fs/cgroup/top/cpu.max=250000 100000");
  QUOTA(2, "proc/self/cgroup=4:cpu,cpuacct:/job", V1, "cg/cpu/job/cpu.cfs_quota_us=200000",
        "cg/cpu/job/cpu.cfs_period_us=100000");
  QUOTA(0, "proc/self/cgroup=4:cpu,cpuacct:/job", V1, "cg/cpu/job/cpu.cfs_quota_us=-1",
        "cg/cpu/job/cpu.cfs_period_us=100000");
}

/* What a batch system says counts where nothing else is said. */
static void threads_by_the_environment(void **state) {
  static const struct {
    const char *said;
    int asked, threads; /* 0: all CPUs */
  } cases[] = {{"3", 0, 3}, {"3,2", 0, 3}, {"3", 2, 2}, {"", 0, 0}, {"none", 0, 0}, {"-1", 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int threads;
    setenv("OMP_NUM_THREADS", cases[i].said, 1);
    test_ok(ch_threads_resolve(cases[i].asked, &threads));
    assert_int_equal(threads, cases[i].threads ? cases[i].threads : ch_machine_cpus());
  }
  int threads;
  setenv("OMP_NUM_THREADS", "100000000000000000000", 1);
  test_fails(ch_threads_resolve(0, &threads), CHOIR_ERROR_ARGUMENT, "OMP_NUM_THREADS is 1000");
  test_ok(ch_threads_resolve(2, &threads));
  unsetenv("OMP_NUM_THREADS");
}

/* As systemd and Slurm nest them: every level counts, and memory.high as memory.max. */
static void nested_groups_of_version_2(void **state) {
  LEAVES(300, "proc/self/cgroup=0::/user.slice/job", V2, "sys/fs/cgroup/user.slice/memory.max=524288000",
         "sys/fs/cgroup/user.slice/memory.current=209715200", "sys/fs/cgroup/user.slice/job/memory.max=max");
  LEAVES(70, "proc/self/cgroup=0::/user.slice/job", V2, "sys/fs/cgroup/user.slice/memory.max=524288000",
         "sys/fs/cgroup/user.slice/job/memory.high=104857600", "sys/fs/cgroup/user.slice/job/memory.current=52428800",
         "sys/fs/cgroup/user.slice/job/memory.stat=anon 5\\ninactive_file 20971520\\nother 1");
  LEAVES(100, "proc/self/cgroup=0::/job", V2, "sys/fs/cgroup/job/memory.max=104857600",
         "sys/fs/cgroup/job/memory.current=1048576",
         "sys/fs/cgroup/job/memory.stat=inactive_file 2097152"); /* which is counted at other times */
  tree("fake", (const char *const[]){"proc/self/cgroup=0::/full", V2, "sys/fs/cgroup/full/memory.max=1048576",
                                     "sys/fs/cgroup/full/memory.current=9999999", NULL});
  assert_int_equal(ch_machine_available_memory_at("fake"), 1); /* nothing, which is not "unknown" */
}

/* In a container: the mount is the group itself, whether the process sees its name or not. */
static void containers(void **state) {
  LEAVES(10, "proc/self/cgroup=0::/", V2, "sys/fs/cgroup/memory.max=10485760");
  LEAVES(10, "proc/self/cgroup=0::/docker/abc/sub",
         "proc/self/mountinfo=30 25 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw",
         "sys/fs/cgroup/sub/memory.max=20971520", "sys/fs/cgroup/memory.max=10485760");
  LEAVES(10, "proc/self/cgroup=0::/../other", V2, "sys/fs/cgroup/memory.max=10485760",
         "sys/fs/other/memory.max=1048576");
  LEAVES(10, "proc/self/cgroup=0::/a b", "proc/self/mountinfo=30 25 0:26 / /c\\\\040g rw - cgroup2 x rw",
         "c g/a b/memory.max=10485760");
}

static void version_1(void **state) {
  LEAVES(60, "proc/self/cgroup=5:cpu,memoryless:/x\\n4:memory:/slurm/job\\n0::/", V1,
         "cg/mem/slurm/memory.limit_in_bytes=104857600", "cg/mem/slurm/memory.usage_in_bytes=52428800",
         "cg/mem/slurm/memory.stat=inactive_file 1\\ntotal_inactive_file 10485760",
         "cg/mem/slurm/job/memory.limit_in_bytes=9223372036854771712",
         "cg/mem/memory.limit_in_bytes=9223372036854771712", "cg/cpu/x/memory.limit_in_bytes=1");
  LEAVES(1024, "proc/self/cgroup=4:memory:/", V1, "cg/mem/memory.limit_in_bytes=9223372036854771712");
}

static void limits_of_the_process(void **state) {
#ifdef CHOIR_SANITIZED
  skip(); /* sanitizers take more memory than these limits leave */
#endif
  if (test_emulated()) test_skip("limits of a process's memory, which an emulator does not have");
  size_t before = ch_machine_available_memory();
  assert_true(before > 64 * MIB);
  pid_t child = fork();
  if (!child) {
    struct rlimit data = {.rlim_cur = 48 * MIB, .rlim_max = RLIM_INFINITY};
    _exit(!(setrlimit(RLIMIT_DATA, &data) == 0 && ch_machine_available_memory() < 48 * MIB));
  }
  assert_int_equal(program_wait(child), 0);
  child = fork();
  if (!child) {
    struct rlimit space = {.rlim_cur = 1, .rlim_max = RLIM_INFINITY};
    _exit(!(setrlimit(RLIMIT_AS, &space) == 0 && ch_machine_available_memory() == 1));
  }
  assert_int_equal(program_wait(child), 0);
}

TEST_MAIN(program_directory_make, program_directory_remove, quotas_of_cpus, threads_by_the_environment,
          the_machine_alone, nested_groups_of_version_2, containers, version_1, limits_of_the_process)
