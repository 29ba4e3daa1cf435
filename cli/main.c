#include <stdio.h>

#include "choir/version.h"

int main(void) {
  printf("choir %s\n", choir_version());
  return 0;
}
