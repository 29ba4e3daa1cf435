/* Shared by the C++ files that use SentencePiece: no exception leaves them, nothing is printed. */
#ifndef CH_DATA_SPM_GUARD_H
#define CH_DATA_SPM_GUARD_H

#include <exception>
#include <new>

#include "base/error.h"

/* Exported by the library but not in its headers. */
namespace sentencepiece {
namespace logging {
void SetMinLogLevel(int level);
}
}  // namespace sentencepiece

/* Runs `body`, which returns an error code, and converts an exception to an error code. */
template <typename Body>
int ch_spm_guarded(const char *what, Body body) {
  try {
    sentencepiece::logging::SetMinLogLevel(3); /* a library prints nothing */
    return body();
  } catch (const std::bad_alloc &) {
    return ch_error(CHOIR_ERROR_MEMORY, "not enough memory: %s", what);
  } catch (const std::exception &e) {
    return ch_error(CHOIR_ERROR_FORMAT, "%s: %s", what, e.what());
  } catch (...) {
    return ch_error(CHOIR_ERROR_FORMAT, "%s: unknown failure inside SentencePiece", what);
  }
}

#endif
