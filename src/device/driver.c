/* Common code of drivers: one device per process, opened once, and the first failure. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/format.h"
#include "comm/launch.h"
#include "device/device.h"

int ch_device_wanted = -1;
int ch_device_takes_host_pointers;

int ch_driver_note(ch_driver *d, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (!d->failed) ch_vformat(d->problem, sizeof d->problem, format, args);
  va_end(args);
  d->failed = 1;
  return 0;
}

int ch_device_choose(ch_driver *d, int count) {
  if (count < 1) return ch_driver_note(d, "no device is there") - 1;
  int number = ch_device_wanted < 0 ? ch_comm_local_rank() % count : ch_device_wanted;
  if (number < count) return number;
  return ch_driver_note(d, "there is no device %d; there are %d, counted from 0", number, count) - 1;
}

static int open_once(ch_driver *d) {
  if (!d->opened) {
    d->failed = 0; /* retry: missing libraries may be present now */
    d->opened = d->start();
  }
  if (!d->opened) return ch_error(CHOIR_ERROR_UNSUPPORTED, "backend '%s': %s; %s", d->name, d->problem, d->instead);
  if (ch_device_wanted >= 0 && ch_device_wanted != d->number)
    return ch_error(CHOIR_ERROR_UNSUPPORTED, "backend '%s:%d': this process uses device %d already, and takes only one",
                    d->name, ch_device_wanted, d->number);
  return ch_driver_check(d);
}

int ch_driver_open(ch_driver *d) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&one_at_a_time);
  int code = open_once(d);
  pthread_mutex_unlock(&one_at_a_time);
  return code;
}

int ch_driver_check(const ch_driver *d) {
  if (!d->failed) return CHOIR_OK;
  return ch_error(CHOIR_ERROR_IO,
                  "backend '%s': %s; the device is lost to this process: go on from the last checkpoint", d->name,
                  d->problem);
}
