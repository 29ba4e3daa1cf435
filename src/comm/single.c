#include "base/error.h"
#include "comm/comm.h"

static int sum(const ch_comm *comm, const ch_memory *memory, real CH_DEV *x, int64_t count) {
  (void)comm, (void)memory, (void)x, (void)count;
  return CHOIR_OK;
}

static int sum_double(const ch_comm *comm, double *x, int64_t count) {
  (void)comm, (void)x, (void)count;
  return CHOIR_OK;
}

static int agree(const ch_comm *comm, int code) {
  (void)comm;
  return code;
}

const ch_comm ch_comm_single = {
    .name = "single", .rank = 0, .size = 1, .sum = sum, .sum_double = sum_double, .agree = agree};
