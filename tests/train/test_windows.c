/* The order in which held-out windows are evaluated. */
#include "testing.h"
#include "train/evaluate.h"

enum { MAX = 700 };

/* Every window once, whatever their number; and of the first ones as many in every part. */
static void scattered_windows(void **state) {
  for (int64_t count = 1; count <= MAX; count++) {
    int seen[MAX] = {0};
    ch_windows w = {.count = count, .stride = ch_windows_stride(count)};
    for (int64_t i = 0; i < count; i++) {
      int64_t at = i * w.stride % count;
      if (seen[at]++) fail_msg("%d windows: number %d twice", (int)count, (int)at);
    }
  }
  ch_windows w = {.count = 3224, .stride = ch_windows_stride(3224)};
  int part[8] = {0};
  for (int64_t i = 0; i < 256; i++) part[i * w.stride % w.count * 8 / w.count]++;
  for (int i = 0; i < 8; i++)
    if (part[i] < 28 || part[i] > 36) fail_msg("%d of 256 windows in part %d of 8", part[i], i);
  for (int64_t i = 1; i < 16; i++) { /* a batch has no neighbours */
    int64_t apart = i * w.stride % w.count;
    assert_in_range(apart, 50, w.count - 50);
  }
}

TEST_MAIN(NULL, NULL, scattered_windows)
