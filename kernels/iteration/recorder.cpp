#include "iteration/recorder.h"

#include <algorithm>
#include <bit>

namespace vt {

namespace {
std::uint64_t size_class(std::size_t chunks) noexcept {
  if (chunks <= 4) return chunks;
  const auto octave = static_cast<unsigned>(std::bit_width(chunks) - 1);
  return std::uint64_t{octave} * 4 + ((chunks >> (octave - 2)) & 3);
}
}  // namespace

std::uint64_t Recorder::now() const noexcept {
  return ns_since(began_) - stalls_;
}

void Recorder::begin(std::uint32_t number, std::span<Range* const> live) {
  rows_.clear();
  tensors_.clear();
  uses_.clear();
  calls_.clear();
  births_.clear();
  iteration_ = number;
  for (Range* range : live) {
    Tag& tag = range->tag;
    const bool fresh = tag.iteration + 1 == number && tag.birth != kNone;
    tensors_.push_back({range->bytes, -1, -1, fresh ? tag.birth : kNone, range->serial});
    tag = {iteration_, static_cast<std::uint32_t>(tensors_.size() - 1), kNone};
  }
  hash_ = sizes_ = kHashSeed;
  allocated_ = 0;
  stalls_ = 0;
  whole_ = {};
  freed_ = false;
  began_ = Clock::now();
}

std::uint32_t Recorder::row(OpId op) {
  const auto row = static_cast<std::uint32_t>(rows_.size());
  rows_.push_back({op, now(), row});
  freed_ = false;
  hash_ = mix(hash_, op);
  return row;
}

void Recorder::take_quicker_times(const Recorder& other) noexcept {
  if (other.shape() != shape() || other.rows_.size() != rows_.size() || other.end_ns_ >= end_ns_) return;
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].begin_ns = other.rows_[i].begin_ns;
  end_ns_ = other.end_ns_;
}

bool Recorder::take_times(const std::vector<std::uint64_t>& begins) noexcept {
  if (begins.size() != rows_.size() + 1) return false;
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].begin_ns = begins[i];
  end_ns_ = begins.back();
  return true;
}

void Recorder::row_ends(std::uint32_t row) noexcept {
  if (row < rows_.size()) rows_[row].last = static_cast<std::uint32_t>(rows_.size() - 1);
}

bool Recorder::use(Range& range, const Use& use) {
  const std::uint32_t tensor = tensor_of(range);
  if (tensor == kNone || rows_.empty()) return false;  // made by another thread since the iteration began
  const auto row = static_cast<std::uint32_t>(rows_.size() - 1);
  const std::uint32_t away = std::min<std::uint32_t>(range.missing.load(std::memory_order_relaxed), use.last - use.first);
  uses_.push_back({row, tensor, use.first, use.last, use.write, away});
  return away > 0;
}

void Recorder::born(Range& range) {
  const auto tensor = static_cast<std::uint32_t>(tensors_.size());
  range.tag = {iteration_, tensor, static_cast<std::uint32_t>(births_.size())};
  tensors_.push_back({range.bytes, static_cast<std::int32_t>(rows_.size()) - 1, -1, kNone, range.serial});
  births_.push_back(tensor);
  hash_ = mix(hash_, kBirth);
  sizes_ = mix(sizes_, size_class(range.chunks));
  allocated_ += range.bytes;
}

void Recorder::died(Range& range) noexcept {
  const std::uint32_t tensor = tensor_of(range);
  if (tensor == kNone) return;
  freed_ = true;
  tensors_[tensor].died = std::max<std::int32_t>(static_cast<std::int32_t>(rows_.size()) - 1, 0);
}

}  // namespace vt
