/* Entry checks, which every public function that can fail runs first. */
#ifndef CH_BASE_ENTER_H
#define CH_BASE_ENTER_H

#include <fenv.h>

#include "base/error.h"
#include "choir/event.h"

CHOIR_C_BEGIN

/* State of a call to a public function. */
typedef struct ch_entered {
  fenv_t host; /* the caller's floating-point environment */
  int outer;   /* the outermost call of this thread */
} ch_entered;

/* CH_ENTER(path, model) at the beginning of a public function returns an error if one of these pointers is NULL (the
 * message names it) or if less than CH_STACK_KIB of stack is left. It sets the default floating-point environment until
 * the function returns, because results must not depend on the host's rounding mode or traps. */
#define CH_ENTER(...)                                                                   \
  __attribute__((cleanup(ch_leave), unused)) ch_entered ch_entered_here;                \
  CH_TRY(ch_enter(&ch_entered_here, __builtin_frame_address(0), __func__, #__VA_ARGS__, \
                  (const void *const[]){__VA_ARGS__},                                   \
                  (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))))
enum { CH_STACK_KIB = 96, CH_STACK_TRAIN_KIB = 160 };

int ch_enter(ch_entered *entered, const void *frame, const char *function, const char *names,
             const void *const *pointer, int count);
void ch_leave(const ch_entered *entered);

/* Calls `progress`, if it is not NULL, with the state of the call and the seconds since its start. Nonzero: the caller
 * requests a stop. */
int ch_progress(choir_progress_callback progress, void *context, choir_progress now);

/* For internal functions with a large frame: if they were inlined, the frame would be needed before CH_NEEDS_STACK has
 * checked it. */
#define CH_BEHIND_DOOR __attribute__((noinline))

/* CHOIR_ERROR_UNSUPPORTED if the calling thread has less than this much stack left below the function's frame. An
 * unknown size passes. */
#define CH_NEEDS_STACK(kib) CH_TRY(ch_stack_check(__builtin_frame_address(0), __func__, kib))
int ch_stack_check(const void *frame, const char *function, int kib);

CHOIR_C_END

#endif
