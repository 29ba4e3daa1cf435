/* The watchdog: a dead or stopped process leaves the others waiting for ever, for MPI says nothing. Every rank notes
 * where it last heard of each other one, and a thread of its own, which calls nothing of MPI, looks how long the rank
 * has waited in one exchange, and for whom. Time in which the process itself did not run does not count: a job that was
 * suspended as a whole goes on. */
#ifndef CH_COMM_WATCH_H
#define CH_COMM_WATCH_H

#include "choir/event.h"
#include "comm/comm.h"

typedef struct ch_watch ch_watch;

/* A watch over ranks, to be put where comm->watch is; NULL: no memory. From `start` on, which exchanges the names of
 * hosts and is watched itself, `event` is called once, from the watch's thread, when the rank has waited for
 * `seconds`: with CHOIR_EVENT_SILENT. CHOIR_ERROR_MEMORY: no thread. CHOIR_ERROR_ARGUMENT,
 * on all ranks: one is of another build, and may exchange other things next. */
ch_watch *ch_watch_new(void);
int ch_watch_start(const ch_comm *comm, double seconds, choir_event_callback event, void *context);
void ch_watch_free(ch_watch *watch); /* ends the thread */

/* Names the section that the rank is in, for messages: "step" 17, "set-up" -1. */
void ch_watch_section(const ch_comm *comm, const char *name, int64_t number);

/* The rank waits for an exchange to come that far, and no longer. */
void ch_watch_enter(const ch_comm *comm, const ch_transfer *t, ch_transfer_state until);
void ch_watch_leave(const ch_comm *comm);

/* The rank waits, from now on, for all others to leave, too. */
void ch_watch_leaving(const ch_comm *comm);

/* For tables: bytes have gone to that rank, or come from it, of an exchange that is waited for or of another one; its
 * spans say what is left. */
void ch_watch_moved(const ch_comm *comm, const ch_transfer *t, int rank, int came);

#endif
