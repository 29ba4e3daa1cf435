/* Training with SentencePiece, separate from spm.cc: encoding alone does not need libsentencepiece_train. */
#include <sentencepiece_trainer.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/format.h"
#include "data/spm.h"
#include "data/spm_guard.h"

using sentencepiece::SentencePieceTrainer;
namespace util = sentencepiece::util;

namespace {

/* SentencePiece converts option words to upper case by the locale: in a Turkish locale it does not recognize
 * "unigram". */
class PlainLocale {
 public:
  PlainLocale() : before_(uselocale(ch_plain_locale())) {}
  ~PlainLocale() { uselocale(before_); }

 private:
  locale_t before_;
};

/* The sentences of a ch_spm_training through SentencePiece's iterator interface. */
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

/* Translates SentencePiece's messages about limits ("Please set it to a value <= 713"; "8 vs 300"). */
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

int ch_spm_train(const ch_spm_training *t, void **model, size_t *size) {
  *model = nullptr;
  PlainLocale plain;
  return ch_spm_guarded("training the tokenizer", [&]() -> int {
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
                                                            {"minloglevel", "3"}}; /* training resets it */
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
