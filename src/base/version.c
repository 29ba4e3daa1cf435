#include "choir/version.h"

const char *choir_version(void) { return CHOIR_VERSION; }
