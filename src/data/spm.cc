#include "data/spm.h"

#include <sentencepiece_processor.h>

#include <memory>
#include <string>
#include <vector>

#include "data/spm_guard.h"

using sentencepiece::SentencePieceProcessor;
namespace util = sentencepiece::util;

struct ch_spm {
  SentencePieceProcessor processor;
};

int ch_spm_load(const void *bytes, size_t size, ch_spm **spm) {
  *spm = nullptr;
  return ch_spm_guarded("loading the tokenizer", [&]() -> int {
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
  return ch_spm_guarded("encoding", [&]() -> int {
    thread_local std::vector<int> found;
    util::Status status = spm->processor.Encode(absl::string_view(text, size), &found);
    if (!status.ok()) return ch_error(CHOIR_ERROR_FORMAT, "encoding failed: %s", status.ToString().c_str());
    *count = found.size();
    for (size_t i = 0; i < found.size() && i < capacity; i++) ids[i] = found[i];
    return CHOIR_OK;
  });
}
