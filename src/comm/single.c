#include "comm/comm.h"

static void exchange(const ch_comm *comm, const ch_bytes *send, const ch_bytes *receive) {
  (void)comm, (void)send, (void)receive;
}

const ch_comm ch_comm_single = {.name = "single", .rank = 0, .size = 1, .piece = INT64_MAX, .exchange = exchange};
