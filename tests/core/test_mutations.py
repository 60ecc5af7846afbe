"""What the engine promises, broken on purpose: each break must be noticed.

Every case takes one wait, fence or check out of the native core, builds a program of ``tests/native`` over what is left
and wants it to fail: ``ordered_programs`` for the order on a device whose work happens late, ``remaking_programs`` for
what is dropped and recomputed. A case that survives means a promise nothing holds.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER, REMAKING = "ordered_programs", "remaking_programs"


@dataclass(frozen=True)
class Mutation:
    file: str
    before: str
    after: str = ""
    program: str = ORDER


MOVES, SLOTS, MAPPINGS = "engine/ordered_moves.cpp", "engine/ordered_slots.cpp", "engine/ordered_mappings.cpp"
FENCES, FREED = "engine/fences.cpp", "engine/freed.cpp"
REMAKE, RECIPES = "engine/remake.cpp", "recipes/recipes.cpp"
MUTATIONS = {
    "a stream does not wait for its arguments": Mutation(
        "engine/streams.cpp", "  order_.after(later, earlier);\n", "  (void)later, (void)earlier;\n"
    ),
    "a new tensor on another stream does not wait for its chunks": Mutation(
        MAPPINGS,
        "  order_.after(range.home, range.before);\n",
        "  order_.after(range.home, range.before);\n  range.before.clear();\n",
    ),
    "what another library's stream came after is taken for what it comes after": Mutation(
        "order/stream_order.cpp", "  if (stream.foreign.load()) return;\n"
    ),
    "a copy out does not wait for the uses": Mutation(
        MOVES, "    order_.after(Lane::out, after);\n    order_.after", "    order_.after"
    ),
    "a copy out does not wait for who reads its slot": Mutation(
        MOVES, "    order_.after(Lane::out, fences_.of_slot(slot));\n"
    ),
    "a copy in does not wait for the chunk": Mutation(MOVES, "  order_.after(Lane::in, fences_.of_chunk(chunk));\n"),
    "a new tensor does not wait for its chunks": Mutation(MAPPINGS, "  order_.after(range.home, range.before);\n"),
    "a chunk is used again before it was copied": Mutation(
        MOVES,
        "  fences_.set_chunk(part.chunk, std::move(after));\n  chunks_.leave(range, index, !clean);",
        "  fences_.set_chunk(part.chunk, {});\n  chunks_.leave(range, index, !clean);",
    ),
    "computing waits for a copy while other chunks are free": Mutation(
        MOVES, "  chunks_.leave(range, index, !clean);\n", "  chunks_.leave(range, index);\n"
    ),
    "a freed chunk is used again too early": Mutation(
        MAPPINGS,
        "  fences_.set_chunk(range.parts[index].chunk, fences_.uses_of(range));\n",
        "  (void)range, (void)index;\n",
    ),
    "freed addresses are used again too early by another stream": Mutation(FENCES, "  order_.after(stream, former);\n"),
    "an earlier use by another stream is forgotten": Mutation(
        FENCES,
        "  if (before.lane != stream || before.number > now.number) range.others.add(before);\n",
        "  (void)before;\n",
    ),
    "what another stream was recorded for is freed too early": Mutation(
        FENCES, "  for (const Lane stream : range.recorded) note_use(stream, range);\n"
    ),
    "what another stream was recorded for leaves too early": Mutation(
        FENCES, "  for (const Lane stream : range.recorded) fence.add(order_.now(stream));\n"
    ),
    "what is recomputed is made of what was not written yet": Mutation(
        "engine/streams.cpp", "  if (!closed_) order_.after(stream, order_.operations());\n", "  (void)stream;\n"
    ),
    "what is read to make something again is written meanwhile": Mutation(
        FENCES, "range.made.store(pack(order_.so_far(stream)));", "(void)stream, (void)range;"
    ),
    "a strict address is closed in flight": Mutation(MOVES, "  order_.wait(fences_.of_chunk(chunk));\n"),
    "an address is unmapped in flight": Mutation(MAPPINGS, "    order_.wait(gone);\n"),
    "freed addresses lead elsewhere in flight": Mutation(
        FREED, "!as_it_is && mappings_.in_use(range)", "!as_it_is && false"
    ),
    "freed addresses are unmapped in flight": Mutation(
        FREED, "range.pinned() || mappings_.in_use(range)", "range.pinned()"
    ),
    "memory of the host is unmapped in flight": Mutation(
        SLOTS, "  order_.wait(uses);\n  return Slots::withdraw", "  return Slots::withdraw"
    ),
    "memory of the host is taken from an operation that is being asked for": Mutation(
        SLOTS, " || range.pins.load() != 0 || range.parts[index].pins != own", " && own > 0"
    ),
    "memory of the host is used again while it is copied": Mutation(
        "memory/in_place.cpp", "    order_.wait(spare_.front().second);\n"
    ),
    "who reads a slot is forgotten when a tensor that lies elsewhere gives it back": Mutation(
        FENCES, "  Fence& fence = at(slot_after_, part.slot);\n", "  Fence& fence = at(slot_after_, part.slot) = {};\n"
    ),
    "data is used in the host's memory before it is there": Mutation(SLOTS, "  order_.wait(left);\n"),
    "memory is destroyed in flight": Mutation(
        MOVES,
        "void OrderedMoves::quiesce(Lock& lock) {\n  order_.wait(order_.everything());\n",
        "void OrderedMoves::quiesce(Lock& lock) {\n",
    ),
    "a source is written before what was made of it is there": Mutation(
        REMAKE, "if (made_of_it.empty()) break;", "if (made_of_it.empty() || !unseen) break;", REMAKING
    ),
    "a source is freed": Mutation(
        REMAKE, "  if (recipes_.must_stay(range)) return range.orphaned = true;\n", "", REMAKING
    ),
    "what was cheap to make is made of ever more": Mutation(RECIPES, " || makes_dear(range);", ";", REMAKING),
    "what it would take is not asked as if it were gone": Mutation(
        "recipes/prices.cpp", " || source.get() == without;", ";\n      (void)without;", REMAKING
    ),
    "a source that was dropped is read where it was": Mutation(
        RECIPES,
        "if (source->holder == nullptr || source->dropped) visit",
        "if (source->holder == nullptr) visit",
        REMAKING,
    ),
    "what was given away is read as it was": Mutation(
        REMAKE,
        "one));\n  recipes_.forget(range, true);\n",
        "one));\n  if (!unseen) recipes_.forget(range, true);\n",
        REMAKING,
    ),
    "what is made of it does not come back before its address is given away": Mutation(
        REMAKE, "if (made_of_it.empty()) break;", "if (made_of_it.empty() || unseen) break;", REMAKING
    ),
    "what is pinned is dropped": Mutation(
        REMAKE, "const bool pinned = range.pins.load() != 0;", "const bool pinned = false;", REMAKING
    ),
    "who writes another part of what is overwritten is not noticed": Mutation(
        RECIPES,
        "[](Step& step) { step.lost = true; }",
        "[](Step&) {}",
        REMAKING,
    ),
    "what an operation overwrote is remembered as it was": Mutation(
        REMAKE,
        "one));\n  recipes_.forget(range, true);\n",
        "one));\n  if (unseen) recipes_.forget(range, true);\n",
        REMAKING,
    ),
}


Result = subprocess.CompletedProcess[str]


def build_and_run(tree: Path, name: str) -> Result:
    native, program = tree / "tests/native", f"build/plain/{name}"
    subprocess.run(["make", program], cwd=native, check=True, capture_output=True)
    return subprocess.run([native / program], capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which the core is compiled as it is: as `make sanitize` left it, where that has run."""
    if shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("needs make and g++")
    tree = tmp_path_factory.mktemp("whole")
    shutil.copytree(ROOT / "kernels", tree / "kernels")
    (tree / "tests").mkdir()
    shutil.copytree(ROOT / "tests/native", tree / "tests/native", ignore=shutil.ignore_patterns("asan", "tsan"))
    programs = [f"build/plain/{name}" for name in (ORDER, REMAKING)]
    subprocess.run(["make", "-j2", *programs], cwd=tree / "tests/native", check=True, capture_output=True)
    return tree


@pytest.mark.parametrize("name", [ORDER, REMAKING])
def test_it_passes_as_it_is(whole: Path, name: str) -> None:
    result = build_and_run(whole, name)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "name", [name if nth % 3 == 0 else pytest.param(name, marks=pytest.mark.long) for nth, name in enumerate(MUTATIONS)]
)
def test_a_break_is_noticed(whole: Path, name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    tree = shutil.copytree(whole, tmp_path / "tree")
    source = tree / "kernels" / mutation.file
    text = source.read_text()
    assert text.count(mutation.before) == 1, "the line to break is not there any more"
    source.write_text(text.replace(mutation.before, mutation.after))
    result = build_and_run(tree, mutation.program)
    shutil.rmtree(tree)
    assert result.returncode != 0
    print(f"{name}: {result.stderr.strip().splitlines()[-1]}")
