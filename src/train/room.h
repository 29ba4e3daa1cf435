/* A disk without room: a run goes on in memory for a while, says so once, and saves when there is room again. */
#ifndef CH_TRAIN_ROOM_H
#define CH_TRAIN_ROOM_H

#include "train/log.h"

typedef struct ch_room {
  double limit;       /* seconds without room, at most */
  double full_since;  /* on the clock; 0: there is room */
  double next_try;    /* of the checkpoint that is owed */
  int owed;           /* a checkpoint was due and could not be written */
  int given_up;       /* the limit is reached */
  int64_t saved_step; /* of the newest checkpoint */
  char why[512];      /* what was last refused */
} ch_room;

/* A checkpoint found no room; the attempt took so many seconds. The thread's message says what for. */
void ch_room_owe(ch_room *room, double seconds);

/* After every step: notices when room is gone or back, and whether the limit is reached. An error of the log that no
 * waiting mends is returned. */
int ch_room_watch(ch_room *room, ch_log *log);

/* Whether it is time to write the checkpoint that is owed: at most a twentieth of the time goes into trying. */
int ch_room_try_again(const ch_room *room);

double ch_room_seconds_left(const ch_room *room);

/* The error at the end of a run that could not be saved: CHOIR_ERROR_FULL. */
int ch_room_error(const ch_room *room, int64_t step, int64_t steps);

#endif
