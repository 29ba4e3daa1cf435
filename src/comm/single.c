#include "comm/comm.h"

/* There is nobody to exchange with: its functions are never called. */
const ch_comm ch_comm_single = {.name = "single", .rank = 0, .size = 1, .stride = 1, .piece = INT64_MAX};
