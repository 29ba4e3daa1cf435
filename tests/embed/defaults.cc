// A C++17 program does this instead of CHOIR_..._INIT.
#include <choir/choir.h>

#include <cstdio>

int main() {
  choir_train_options train;
  choir_generate_options generate;
  choir_model_options run;
  choir_train_options_default(&train, sizeof train);
  choir_generate_options_default(&generate, sizeof generate);
  choir_model_options_default(&run, sizeof run);
  bool as_in_c = train.disk_minutes == 60 && !train.model && run.backend && generate.max_tokens == 256 &&
                 generate.top_p == 0.95 && run.size == sizeof run;
  if (!as_in_c) std::fprintf(stderr, "defaults are not those of the initialisers\n");
  return as_in_c ? 0 : 1;
}
