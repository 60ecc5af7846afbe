"""The engine's order on a device whose work happens late, broken on purpose: each break must be noticed.

Every case takes one wait, fence or check out of the native core, builds ``tests/native/ordered_programs.cpp`` over
what is left and wants it to fail. A case that survives means a promise nothing holds.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "build/plain/ordered_programs"


@dataclass(frozen=True)
class Mutation:
    file: str
    before: str
    after: str = ""


ORDER, FORMER, ENGINE = "engine_order.cpp", "engine_former.cpp", "engine.cpp"
MUTATIONS = {
    "a stream does not wait for its arguments": Mutation(
        ORDER, "  order_.after(later, earlier);\n", "  (void)later, (void)earlier;\n"
    ),
    "a copy out does not wait for the uses": Mutation(
        ORDER, "    order_.after(Lane::out, after);\n    if (slot", "    if (slot"
    ),
    "a copy out does not wait for who reads its slot": Mutation(
        ORDER, "    if (slot < slot_after_.size()) order_.after(Lane::out, slot_after_[slot]);\n"
    ),
    "a copy in does not wait for the chunk": Mutation(ORDER, "  order_.after(Lane::in, chunk_after_[chunk]);\n"),
    "a new tensor does not wait for its chunks": Mutation(
        FORMER, "    order_.after(range.home, chunk_after_[chunks[i]]);\n"
    ),
    "a chunk is used again before it was copied": Mutation(
        ORDER, "chunk_after_[part.chunk] = std::move(after);", "chunk_after_[part.chunk].clear();"
    ),
    "computing waits for a copy while other chunks are free": Mutation(
        ORDER, "  take_away(range, index, !clean);\n", "  take_away(range, index);\n"
    ),
    "a freed chunk is used again too early": Mutation(ENGINE, "        chunk_after_[part.chunk] = uses_of(range);\n"),
    "freed addresses are used again too early by another stream": Mutation(
        ORDER, "  order_.after(stream, uses_of(range));  // of the tensor that had its addresses before\n"
    ),
    "an earlier use by another stream is forgotten": Mutation(
        ORDER,
        "  if (before.lane != stream || before.number > now.number) range.others.add(before);\n",
        "  (void)before;\n",
    ),
    "an address is unmapped in flight": Mutation(FORMER, "    order_.wait(gone);\n"),
    "freed addresses lead elsewhere in flight": Mutation(
        FORMER, "!as_it_is && !order_.passed(touched_by(range))", "!as_it_is && false"
    ),
    "freed addresses are unmapped in flight": Mutation(
        ENGINE, " || (ordered_ && !order_.passed(touched_by(range)))", ""
    ),
    "memory is destroyed in flight": Mutation(
        ORDER,
        "  order_.wait(order_.everything());\n  settle(lock);\n  sweep_limbo();\n",
        "  settle(lock);\n  sweep_limbo();\n",
    ),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in which everything is built already."""
    if shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("needs make and g++")
    subprocess.run(["make", "-j2", PROGRAM], cwd=ROOT / "tests/native", check=True, capture_output=True)
    copy = tmp_path_factory.mktemp("mutations")
    shutil.copytree(ROOT / "kernels", copy / "kernels")
    (copy / "tests").mkdir()
    skip = shutil.ignore_patterns("asan", "tsan")
    shutil.copytree(ROOT / "tests/native", copy / "tests/native", ignore=skip)
    return copy


def run(tree: Path) -> subprocess.CompletedProcess[str]:
    native = tree / "tests/native"
    subprocess.run(["make", PROGRAM], cwd=native, check=True, capture_output=True)
    return subprocess.run([native / PROGRAM], capture_output=True, text=True, timeout=120, check=False)


def test_it_passes_as_it_is(built: Path) -> None:
    result = run(built)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_break_is_noticed(built: Path, name: str) -> None:
    mutation = MUTATIONS[name]
    source = built / "kernels" / mutation.file
    text = source.read_text()
    assert text.count(mutation.before) == 1, "the line to break is not there any more"
    source.write_text(text.replace(mutation.before, mutation.after))
    try:
        result = run(built)
    finally:
        source.write_text(text)
    assert result.returncode != 0
    print(f"{name}: {result.stderr.strip().splitlines()[0]}")
