#include "train/room.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/machine.h"
#include "file/file.h"
#include "file/temporary.h"

enum { WAITING_MOST = 64 << 20 }; /* bytes of log lines in memory */

void ch_room_owe(ch_room *room, double seconds) {
  room->owed = 1;
  room->next_try = ch_machine_seconds() + fmax(1, 20 * seconds);
  snprintf(room->why, sizeof room->why, "%s", choir_error_message());
}

static void notice_change(ch_room *room, int full, const ch_log *log) {
  double now = ch_machine_seconds();
  if (full && !room->full_since) {
    room->full_since = now;
    if (!room->owed) {
      ch_write_error(log->error, log->path, log->size);
      snprintf(room->why, sizeof room->why, "%s", choir_error_message());
    }
    ch_notice("%s; until there is room the run goes on in memory, for %.3g minutes at most", room->why,
              room->limit / 60);
  } else if (!full && room->full_since) {
    ch_notice("there is room on the disk again, after %.0f s", now - room->full_since);
    room->full_since = 0;
  }
}

int ch_room_watch(ch_room *room, ch_log *log) {
  int number = ch_log_flush(log);
  if (number == ENOMEM)
    return ch_error(CHOIR_ERROR_MEMORY, "%s: no memory for what waits for room on the disk", log->path);
  if (number && !ch_log_is_full(number)) return ch_write_error(number, log->path, 0);
  notice_change(room, number || room->owed, log);
  if (!room->full_since) return CHOIR_OK;
  room->given_up = ch_room_seconds_left(room) <= 0 || log->size > WAITING_MOST;
  if (room->given_up) room->owed = 1; /* of the step that it stops at */
  return CHOIR_OK;
}

int ch_room_try_again(const ch_room *room) { return room->owed && ch_machine_seconds() >= room->next_try; }

double ch_room_seconds_left(const ch_room *room) { return room->full_since + room->limit - ch_machine_seconds(); }

int ch_room_error(const ch_room *room, int64_t step, int64_t steps) {
  return ch_error(CHOIR_ERROR_FULL,
                  "stopped after step %" PRId64 " of %" PRId64
                  ", which could not be saved: %s. The newest checkpoint is "
                  "that of step %" PRId64 "; make room and resume",
                  step, steps, room->why, room->saved_step);
}
