/* The door of the library: what every public function that can fail does first. */
#ifndef CH_BASE_ENTER_H
#define CH_BASE_ENTER_H

#include <fenv.h>

#include "base/error.h"
#include "choir/event.h"

CHOIR_C_BEGIN

/* A call from outside. */
typedef struct ch_entered {
  fenv_t host; /* the caller's floating-point environment */
  int outer;   /* no call of this thread's is under way */
} ch_entered;

/* CH_ENTER(path, model) at the beginning of a public function ends it with an error where one of these pointers is
 * NULL, which it names, or where the caller's stack has less room than CH_STACK_KIB. Until the function returns the
 * floating-point environment is the default one: a host may round another way or trap, and results are functions of the
 * config. */
#define CH_ENTER(...)                                                                   \
  __attribute__((cleanup(ch_leave), unused)) ch_entered ch_entered_here;                \
  CH_TRY(ch_enter(&ch_entered_here, __builtin_frame_address(0), __func__, #__VA_ARGS__, \
                  (const void *const[]){__VA_ARGS__},                                   \
                  (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))))
enum { CH_STACK_KIB = 96, CH_STACK_TRAIN_KIB = 160 };

int ch_enter(ch_entered *entered, const void *frame, const char *function, const char *names,
             const void *const *pointer, int count);
void ch_leave(const ch_entered *entered);

/* Tells the caller's progress, if it is not NULL, how far its call is, with the seconds since that began. Nonzero: it
 * is to stop. */
int ch_progress(choir_progress_callback progress, void *context, choir_progress now);

/* Of a function behind the door with a large frame: as a part of its caller it would need that before anybody has asked
 * whether there is room. */
#define CH_BEHIND_DOOR __attribute__((noinline))

/* CHOIR_ERROR_UNSUPPORTED where the stack of the calling thread has less room than that, behind the frame of the
 * function. Where nobody can tell there is enough. */
#define CH_NEEDS_STACK(kib) CH_TRY(ch_stack_check(__builtin_frame_address(0), __func__, kib))
int ch_stack_check(const void *frame, const char *function, int kib);

CHOIR_C_END

#endif
