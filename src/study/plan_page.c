#include "choir/plan.h"
#include "base/error.h"
int choir_plan_page(const choir_plan *plan, const char *output) { (void)plan; return ch_error(CHOIR_ERROR_UNSUPPORTED, "%s: no page yet", output); }
