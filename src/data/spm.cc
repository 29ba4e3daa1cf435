#include "data/spm.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/format.h"

using sentencepiece::SentencePieceProcessor;
using sentencepiece::SentencePieceTrainer;
namespace util = sentencepiece::util;

/* Exported by the library but not in its headers. */
namespace sentencepiece {
namespace logging {
void SetMinLogLevel(int level);
}
}  // namespace sentencepiece

struct ch_spm {
  SentencePieceProcessor processor;
};

namespace {

/* SentencePiece writes its options' words in capitals by the locale: in a Turkish one "unigram" is none it knows. */
class PlainLocale {
 public:
  PlainLocale() : before_(uselocale(ch_plain_locale())) {}
  ~PlainLocale() { uselocale(before_); }

 private:
  locale_t before_;
};

/* Runs `body`, which returns a code, and turns whatever it throws into one. */
template <typename Body>
int guarded(const char *what, Body body) {
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

/* The sentences of a ch_spm_training, as SentencePiece asks for them. */
class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const ch_spm_training *t) : training_(t) { load(); }
  bool done() const override { return at_ >= training_->count; }
  void Next() override {
    at_++;
    load();
  }
  const std::string &value() const override { return value_; }
  util::Status status() const override { return util::Status(); }

 private:
  void load() {
    if (!done()) value_.assign(training_->sentences[at_], training_->sizes[at_]);
  }
  const ch_spm_training *training_;
  size_t at_ = 0;
  std::string value_;
};

int number(const std::string &text, size_t at) { return static_cast<int>(std::strtol(text.c_str() + at, nullptr, 10)); }

/* SentencePiece states limits in its own words ("Please set it to a value <= 713"; "8 vs 300"); says the same in ours.
 */
int training_error(const ch_spm_training *t, const std::string &message) {
  size_t high = message.find("value <= "), low = message.find("smaller than required_chars");
  if (high != std::string::npos)
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "vocab_size %d is too large for this text: at most %d; use more text or a smaller vocabulary",
                    t->vocab_size, number(message, high + 9));
  if (low != std::string::npos) {
    size_t vs = message.find(" vs ", low);
    return ch_error(CHOIR_ERROR_ARGUMENT,
                    "vocab_size %d is too small: bytes and the characters of this text alone need %d", t->vocab_size,
                    vs == std::string::npos ? 0 : number(message, vs + 4));
  }
  return ch_error(CHOIR_ERROR_FORMAT, "training the tokenizer failed: %s", message.c_str());
}

}  // namespace

int ch_spm_load(const void *bytes, size_t size, ch_spm **spm) {
  *spm = nullptr;
  return guarded("loading the tokenizer", [&]() -> int {
    std::unique_ptr<ch_spm> s(new ch_spm); /* loading may throw */
    util::Status status =
        s->processor.LoadFromSerializedProto(absl::string_view(static_cast<const char *>(bytes), size));
    if (!status.ok()) return ch_error(CHOIR_ERROR_FORMAT, "not a SentencePiece model: %s", status.ToString().c_str());
    *spm = s.release();
    return CHOIR_OK;
  });
}

void ch_spm_free(ch_spm *spm) { delete spm; }

int ch_spm_vocab(const ch_spm *spm) { return spm->processor.GetPieceSize(); }

int ch_spm_eos(const ch_spm *spm) { return spm->processor.eos_id(); }

const char *ch_spm_piece(const ch_spm *spm, int id, size_t *size) {
  const std::string &piece = spm->processor.IdToPiece(id);
  *size = piece.size();
  return piece.c_str();
}

ch_piece_kind ch_spm_kind(const ch_spm *spm, int id) {
  const SentencePieceProcessor &p = spm->processor;
  if (p.IsByte(id)) return CH_PIECE_BYTE;
  if (p.IsControl(id)) return CH_PIECE_CONTROL;
  if (p.IsUnknown(id)) return CH_PIECE_UNKNOWN;
  return p.IsUnused(id) ? CH_PIECE_UNUSED : CH_PIECE_NORMAL;
}

float ch_spm_score(const ch_spm *spm, int id) { return spm->processor.GetScore(id); }

int ch_spm_encode(const ch_spm *spm, const char *text, size_t size, int32_t *ids, size_t capacity, size_t *count) {
  return guarded("encoding", [&]() -> int {
    thread_local std::vector<int> found;
    util::Status status = spm->processor.Encode(absl::string_view(text, size), &found);
    if (!status.ok()) return ch_error(CHOIR_ERROR_FORMAT, "encoding failed: %s", status.ToString().c_str());
    *count = found.size();
    for (size_t i = 0; i < found.size() && i < capacity; i++) ids[i] = found[i];
    return CHOIR_OK;
  });
}

int ch_spm_train(const ch_spm_training *t, void **model, size_t *size) {
  *model = nullptr;
  PlainLocale plain;
  return guarded("training the tokenizer", [&]() -> int {
    std::unordered_map<std::string, std::string> options = {{"model_type", t->type},
                                                            {"vocab_size", std::to_string(t->vocab_size)},
                                                            {"num_threads", std::to_string(t->pieces)},
                                                            {"max_sentence_length", std::to_string(t->longest)},
                                                            {"byte_fallback", "true"},
                                                            {"normalization_rule_name", "identity"},
                                                            {"remove_extra_whitespaces", "false"},
                                                            {"add_dummy_prefix", "false"},
                                                            {"allow_whitespace_only_pieces", "true"},
                                                            {"unk_id", "0"},
                                                            {"eos_id", "1"},
                                                            {"bos_id", "-1"},
                                                            {"pad_id", "-1"},
                                                            {"minloglevel", "3"}}; /* training sets it anew */
    if (t->few_spaces) options["required_chars"] = "\xE2\x96\x81";
    Sentences sentences(t);
    std::string bytes;
    util::Status status = SentencePieceTrainer::Train(options, &sentences, &bytes);
    if (!status.ok()) return training_error(t, status.ToString());
    if (!(*model = std::malloc(bytes.size() + 1)))
      return ch_error(CHOIR_ERROR_MEMORY, "not enough memory for the tokenizer");
    std::memcpy(*model, bytes.data(), bytes.size());
    *size = bytes.size();
    return CHOIR_OK;
  });
}
