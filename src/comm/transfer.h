/* Exchanges of bytes whose counts both sides know: at once, or begun here and ended there, with work in between. They
 * make progress while the process is in one of these calls (and by the network itself, as far as that can): whoever
 * computes between begin and finish calls ch_comm_test now and then. */
#ifndef CH_COMM_TRANSFER_H
#define CH_COMM_TRANSFER_H

#include "comm/comm.h"

/* The rank's own span is copied, unless it stands where it goes; the rest is the table's, and counted. What stands on a
 * device goes through the host, one copy each way: to it here, and from it when all has arrived. what: for messages
 * about ranks that are not heard. The spans [size] are used up. */
void ch_comm_begin(const ch_comm *comm, ch_transfer *t, const char *what, ch_bytes *send, ch_bytes *receive);

/* Nonzero when it has nothing left to move, or has ended already. */
int ch_comm_test(const ch_comm *comm, ch_transfer *t);

/* Waits until all that comes is there; until what was sent may be changed, too. Every exchange is finished once. */
void ch_comm_arrive(const ch_comm *comm, ch_transfer *t);
void ch_comm_finish(const ch_comm *comm, ch_transfer *t);

/* All at once. */
void ch_comm_exchange(const ch_comm *comm, const char *what, ch_bytes *send, ch_bytes *receive);

#endif
