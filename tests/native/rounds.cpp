// Where iterations end that nobody tells of: logs of loops, and which mark is found in them.

#include "iteration/rounds.h"

#include <cstdint>
#include <initializer_list>
#include <list>
#include <string>

#include "check.h"
#include "iteration/operators.h"

using namespace vt;

namespace {

constexpr Bytes kBytes = 1 << 20;

// A loop, as the runner sees it.
struct Loop {
  Loop() { log.begin(1, {}); }

  Range& make(Bytes bytes = kBytes) {
    Range& range = ranges.emplace_back();
    range.bytes = bytes;
    range.chunks = 1;
    range.serial = ranges.size();
    log.born(range);
    return range;
  }

  // Returns whether a mark was found.
  bool operation(const std::string& name, Range& range, bool away = true) {
    return operation(name, whole(range, false), away);
  }

  bool operation(const std::string& name, const Use& use, bool away = true) {
    const OpId op = operator_id(name.c_str());
    if (rounds.begins(log, op, std::initializer_list<Use>{use})) {
      rounds.judge(followed, installed);
      ++came_round;
      end(false);
    }
    log.row(op);
    use.range->missing = away ? 1 : 0;
    return log.use(*use.range, use) && rounds.found_after_miss(log);
  }

  void end(bool told) {
    rounds.ended(log, told, true);
    std::vector<Range*> live;
    for (Range& range : ranges) live.push_back(&range);
    log.begin(++number, live);
  }

  Recorder log;
  std::uint32_t number = 1;
  Rounds rounds;
  std::list<Range> ranges;  // as they do not move
  int came_round = 0;
  bool followed = true;     // of the plan, if there is one
  std::uint64_t installed = 0;  // plans
};

// Each layer makes something, and frees what the one before made.
void forward(Loop& loop, const std::vector<Range*>& weights) {
  Range* before = nullptr;
  for (Range* weight : weights) {
    loop.operation("linear", *weight);
    Range& made = loop.make(before == nullptr ? kBytes / 2 : 4 * kBytes);
    if (before != nullptr) loop.log.died(*before);
    before = &made;
  }
  loop.log.died(*before);
}

std::vector<Range*> weights_of(Loop& loop, std::size_t layers) {
  std::vector<Range*> weights;
  for (std::size_t k = 0; k < layers; ++k) weights.push_back(&loop.make());
  return weights;
}

}  // namespace

TEST(three_rounds_are_told_from_two) {
  Loop loop;
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 2; ++k) forward(loop, weights);
  CHECK(!find_mark(loop.log));  // two may be chance
  loop.operation("linear", *weights[0]);
  const auto mark = find_mark(loop.log);
  CHECK(mark && mark->op == operator_id("linear") && mark->serial == weights[0]->serial && mark->rows == 10);
}

TEST(a_loop_is_cut_where_least_of_what_it_makes_is_alive) {
  for (const std::size_t narrow : {0, 4, 7}) {  // before this layer only little is
    Loop loop;
    const auto weights = weights_of(loop, 10);
    Range* before = nullptr;
    for (int k = 0; k < 40; ++k) {
      const std::size_t layer = static_cast<std::size_t>(k) % weights.size();
      loop.operation("linear", *weights[layer]);
      Range& made = loop.make((layer + 1) % weights.size() == narrow ? kBytes / 2 : 4 * kBytes);
      if (before != nullptr) loop.log.died(*before);
      before = &made;
    }
    const auto mark = find_mark(loop.log);
    CHECK(mark && mark->serial == weights[narrow]->serial);
  }
}

TEST(layers_that_lie_in_one_tensor_are_told_apart) {
  Loop loop;
  Range& stacked = loop.make(20 * kBytes);
  stacked.chunks = 20;
  for (int k = 0; k < 3; ++k) {
    for (std::uint32_t layer = 0; layer < 20; ++layer) {
      loop.operation("linear", Use{&stacked, layer, layer + 1, false, false});
      loop.log.died(loop.make(layer == 6 ? kBytes / 2 : kBytes));
    }
  }
  const auto mark = find_mark(loop.log);
  CHECK(mark && mark->last == mark->first + 1 && mark->rows == 20);
}

TEST(a_mark_may_come_after_any_number_of_others) {
  Loop loop;
  const auto weights = weights_of(loop, 2000);
  for (Range* weight : weights) loop.operation("copy_", *weight);  // as they are loaded
  for (int k = 0; k < 3; ++k) forward(loop, weights);
  const auto mark = find_mark(loop.log);
  CHECK(mark && mark->op == operator_id("linear"));
}

TEST(nothing_is_found_in_what_does_not_come_back) {
  Loop loop;
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 5; ++k) {
    for (Range* weight : weights) loop.operation("linear", *weight, k == 0);  // it fits
  }
  CHECK(!find_mark(loop.log));
}

TEST(a_loop_within_a_round_is_none) {
  Loop loop;
  const auto weights = weights_of(loop, 6);
  Range& cell = loop.make();
  for (int k = 0; k < 4; ++k) {
    for (int step = 0; step < 8; ++step) loop.operation("cell", cell, step % 4 == 0);
    for (Range* weight : weights) loop.operation("linear", *weight);
  }
  const auto mark = find_mark(loop.log);
  CHECK(mark && mark->op == operator_id("linear"));
}

TEST(a_row_within_another_operation_is_no_mark) {
  Loop loop;
  const auto weights = weights_of(loop, 2);
  for (int k = 0; k < 4; ++k) {
    Range& made = loop.make();  // alive as the outer one begins, so that the inner one would be the better mark
    loop.operation("outer", *weights[0]);
    const std::uint32_t outer = loop.log.rows() - 1;
    loop.log.died(made);
    loop.operation("inner", *weights[1]);
    loop.log.row_ends(outer);
  }
  const auto mark = find_mark(loop.log);
  CHECK(mark && mark->op == operator_id("outer"));
}

TEST(rounds_end_until_somebody_tells_of_iterations) {
  Loop loop;
  loop.rounds.look(true);
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 10; ++k) forward(loop, weights);
  CHECK(loop.came_round >= 5);
  loop.end(true);
  const int before = loop.came_round;
  for (int k = 0; k < 20; ++k) {  // two batches each
    forward(loop, weights);
    forward(loop, weights);
    loop.end(true);
  }
  CHECK(loop.came_round == before);
  for (int k = 0; k < 20; ++k) forward(loop, weights);  // an evaluation
  CHECK(loop.came_round >= before + 12);
  loop.end(true);
  forward(loop, weights);
  forward(loop, weights);
  loop.end(true);
  CHECK(loop.came_round <= before + 20);
}

TEST(more_batches_a_step_become_usual) {
  Loop loop;
  loop.rounds.look(true);
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 10; ++k) forward(loop, weights);
  for (int k = 0; k < 10; ++k) {
    forward(loop, weights);
    loop.end(true);
  }
  const auto steps_of_six = [&] {
    const int before = loop.came_round;
    for (int k = 0; k < 6; ++k) forward(loop, weights);
    loop.end(true);
    return loop.came_round - before;
  };
  CHECK(steps_of_six() > 0);  // one may be an evaluation
  steps_of_six();
  CHECK(steps_of_six() == 0 && steps_of_six() == 0);
}

TEST(what_is_told_once_is_not_believed_for_ever) {
  Loop loop;
  loop.rounds.look(true);
  const auto weights = weights_of(loop, 10);
  loop.end(true);
  for (int k = 0; k < 4000; ++k) forward(loop, weights);
  CHECK(loop.came_round > 100);
}

TEST(a_mark_that_comes_more_often_than_its_rounds_ends_few) {
  Loop loop;
  loop.rounds.look(true);
  const auto weights = weights_of(loop, 20);
  for (int k = 0; k < 10; ++k) forward(loop, weights);
  const int before = loop.came_round;
  CHECK(before >= 5);
  for (int k = 0; k < 100; ++k) loop.operation("linear", *weights[0], false);
  CHECK(loop.came_round - before <= 11);
}

TEST(rounds_in_which_plans_do_not_help_are_given_up) {
  for (const bool followed : {false, true}) {  // by its operations, which bring other tensors back
    Loop loop;
    loop.rounds.look(true);
    loop.followed = followed;
    const auto weights = weights_of(loop, 10);
    for (int k = 0; k < 50; ++k) forward(loop, weights);
    const int before = loop.came_round;
    CHECK(before >= 40);
    loop.installed = 1;
    for (int k = 0; k < 100; ++k) forward(loop, weights);
    CHECK(loop.came_round - before >= 31 && loop.came_round - before <= 33);
  }
}

TEST(rounds_in_which_they_help_go_on) {
  Loop loop;
  loop.rounds.look(true);
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 50; ++k) forward(loop, weights);
  const int before = loop.came_round;
  loop.installed = 1;
  for (int k = 0; k < 100; ++k) {
    for (Range* weight : weights) loop.operation("linear", *weight, weight == weights.back());
  }
  CHECK(loop.came_round - before >= 99);
}

TEST(another_loop_gets_a_mark_of_its_own) {
  Loop loop;
  loop.rounds.look(true);
  const auto first = weights_of(loop, 10), second = weights_of(loop, 30);
  for (int k = 0; k < 10; ++k) forward(loop, first);
  const int before = loop.came_round;
  for (int k = 0; k < 10; ++k) forward(loop, second);
  CHECK(loop.came_round >= before + 5 && loop.came_round <= before + 10);
}

TEST(nobody_who_does_not_look_finds_anything) {
  Loop loop;
  const auto weights = weights_of(loop, 10);
  for (int k = 0; k < 10; ++k) forward(loop, weights);
  CHECK(loop.came_round == 0);
}

int main() { return run_native_tests(); }
