/* The watchdog. If a process dies or stops, the others wait forever, because MPI does not report it. Every rank records
 * its last contact with each other rank. A separate thread, which never calls MPI, measures how long the rank has
 * waited in one exchange, and for which ranks. Time in which this process was stopped does not count, so a job may be
 * suspended as a whole. */
#ifndef CH_COMM_WATCH_H
#define CH_COMM_WATCH_H

#include "choir/event.h"
#include "comm/comm.h"

typedef struct ch_watch ch_watch;

/* ch_watch_new returns a watch for comm->watch; NULL: out of memory. ch_watch_start exchanges host names, already
 * watched. From then on `event` is called once with CHOIR_EVENT_SILENT, from the watch's thread, when the rank has
 * waited for `seconds`. CHOIR_ERROR_MEMORY: no thread. CHOIR_ERROR_ARGUMENT, on all ranks: a rank runs another build,
 * whose exchanges may differ. */
ch_watch *ch_watch_new(void);
int ch_watch_start(const ch_comm *comm, double seconds, choir_event_callback event, void *context);
void ch_watch_free(ch_watch *watch); /* ends the thread */

/* Names the rank's current section for messages: "step" 17, "set-up" -1. */
void ch_watch_section(const ch_comm *comm, const char *name, int64_t number);

/* Mark the start and end of a wait for an exchange to reach a state. */
void ch_watch_enter(const ch_comm *comm, const ch_transfer *t, ch_transfer_state until);
void ch_watch_leave(const ch_comm *comm);

/* From now on the rank waits for all others to leave. */
void ch_watch_leaving(const ch_comm *comm);

/* For tables: bytes were sent to `rank`, or received from it if `came`. The transfer's spans describe the remainder. */
void ch_watch_moved(const ch_comm *comm, const ch_transfer *t, int rank, int came);

#endif
