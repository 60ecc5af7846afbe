"""Reads the source tree: an include or import may only point to a lower line of these lists. No compiler needed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; names on one line may not use each other unless one is the other's header.
FOLDERS = [  # of kernels/
    {"crt"},
    {"base"},
    {"device"},
    {"order", "store", "testing"},
    {"cuda"},
    {"memory"},
    {"recipes"},
    {"engine"},
    {"process"},
    {"iteration"},
    {"torch", "replay"},
    {"python"},
]
ENGINE = [  # the rooms of kernels/engine
    {"ground", "messages", "patience"},
    {"range_table", "roster", "chunks", "pins", "demand", "fences", "mappings"},
    {"slots", "moves", "streams"},
    {"immediate_mappings", "immediate_slots", "immediate_moves", "ordered_mappings"},
    {"ordered_slots"},
    {"ordered_moves"},
    {"kind", "freed"},
    {"remake", "seats"},
    {"eviction", "inspector"},
    {"supply"},
    {"allocation", "uses", "arrivals"},
    {"lending"},
    {"engine"},
]
VTENSOR = [
    {"errors", "logs", "addresses"},
    {"settings", "native"},
    {"planning", "hooks"},
    {"devices"},
    {"session"},
    {"primitives", "reports", "harmony"},
    {"__init__"},
    {"demo", "callbacks"},
    {"command"},
    {"__main__"},
]
ROOMS = {  # the modules of each package of vtensor/
    "native": [{"cuda_headers", "cache", "core"}, {"library"}, {"chunk_ops", "__init__"}],
    "settings": [
        {"groups", "environment", "options", "sizes"},
        {"available", "which_device"},
        {"config"},
        {"__init__"},
    ],
    "planning": [
        {"background", "marker", "recordings"},
        {"journal", "speeds", "helper", "plans"},
        {"stages"},
        {"maker"},
        {"planner"},
        {"current_planner"},
        {"traces", "__init__"},
    ],
    "hooks": [
        {"patches"},
        {"imports"},
        {"backwards", "doors", "foreach", "passes", "scripted", "signals"},
        {"collectives", "compiled", "kernels", "storages", "strict"},
        {"__init__"},
    ],
    "devices": [{"math_library", "surroundings", "pools"}, {"cpu", "gpu"}, {"port"}, {"__init__"}],
    "session": [{"watchdog", "adoption", "shelves", "reserve"}, {"lifecycle"}, {"enabling"}, {"__init__"}],
    "reports": [{"stats", "page", "profile_tracks"}, {"__init__"}],
    "demo": [{"workloads", "processes"}, {"worker"}, {"show"}, {"__init__"}],
    "callbacks": [{"figures"}, {"transformers", "lightning"}, {"__init__"}],
    "command": [{"writing"}, {"farewell", "doctor", "fit"}, {"launcher"}, {"commands"}, {"cli"}, {"__init__"}],
}
LGM_ROOMS = {  # the modules of each package of lgm/
    "records": [{"units", "limits"}, {"device"}, {"model"}, {"codec", "copies", "rows"}, {"__init__"}],
    "iteration": [{"lifetimes"}, {"calls", "needs", "roles"}, {"__init__"}],
    "choosing": [{"cost", "problem"}, {"residual", "sweep"}, {"choice"}, {"selection"}, {"__init__"}],
    "timing": [{"lanes", "moves"}, {"schedule"}, {"prefetch", "simulate"}, {"settling"}, {"__init__"}],
    "placing": [{"mapping", "stays"}, {"asking"}, {"seats"}, {"orders"}, {"__init__"}],
    "planning": [{"oversize", "planner"}, {"relief"}, {"__init__"}],
    "remaking": [{"recompute"}, {"rewrite"}, {"mix", "only"}, {"__init__"}],
    "bounds": [{"copies", "mixes"}, {"__init__"}],
    "checkpoints": [{"least_peak", "rotor", "chain"}, {"segments"}, {"__init__"}],
    "fitting": [{"kernels"}, {"gpus"}, {"fits"}, {"__init__"}],
    "reports": [{"report"}, {"page", "snapshot"}, {"__init__"}],
    "command": [{"target"}, {"cli"}, {"__init__"}],
    "harmony": [
        {"profile", "packing"},
        {"recorded", "measured", "tasks"},
        {"events"},
        {"search"},
        {"report"},
        {"command"},
        {"__init__"},
    ],
}
HARMONY = [
    {"arguments", "layers", "packs", "microbatches", "generators", "forwards"},
    {"processes", "buffers"},
    {"hosting", "turns"},
    {"updates", "packing", "pipeline", "leftovers"},
    {"rehearsal", "step"},
    {"trainer"},
    {"__init__"},
]
HARMONY_ROOMS = {  # the modules of each package of vtensor/harmony/
    "processes": [{"wire", "replicas"}, {"mail"}, {"whole"}, {"__init__"}],
    "buffers": [{"memories"}, {"copies", "snapshots", "weights"}, {"kept", "writes"}, {"__init__"}],
    "hosting": [{"host_memory"}, {"neighbours"}, {"hosted"}, {"__init__"}],
    "turns": [{"weave", "again", "layer_order"}, {"stops"}, {"between"}, {"turns"}, {"__init__"}],
    "pipeline": [
        {"placement", "look", "orders"},
        {"promise"},
        {"ledger"},
        {"calls", "worker"},
        {"pipeline"},
        {"__init__"},
    ],
}
LGM = [
    {"errors", "progress", "switches"},
    {"records"},
    {"iteration", "validation"},
    {"choosing", "timing"},
    {"placing"},
    {"planning"},
    {"remaking"},
    {"bounds", "checkpoints"},
    {"analysis"},
    {"fitting", "helper"},
    {"harmony", "reports"},
    {"__init__"},
    {"command"},
    {"__main__"},
]


def level(layers: list[set[str]], name: str) -> int:
    for index, names in enumerate(layers):
        if name in names:
            return index
    raise AssertionError(f"{name} stands in no layer: add it to tests/test_layers.py and DESIGN.md")


SOURCES = sorted((ROOT / "kernels").glob("*/*.[ch]*"))


def test_the_kind_of_device_is_asked_once() -> None:
    """Everything else the rooms do depends on which implementations were chosen there."""
    asks = [path.name for path in SOURCES if "ordered()" in path.read_text() and path.parent.name == "engine"]
    assert asks == ["kind.cpp"]


def test_kernels_has_folders_only() -> None:
    assert {path.name for path in (ROOT / "kernels").iterdir()} == set().union(*FOLDERS)


def test_kernels_include_downward() -> None:
    for source in SOURCES:
        own = source.parent.name
        for folder, name in re.findall(r'#include "(?:(\w+)/)?(\w+\.h)"', source.read_text()):
            assert (ROOT / "kernels" / folder / name).is_file(), f"{source.name} includes {folder}/{name}"
            lower = level(FOLDERS, folder) < level(FOLDERS, own)
            if folder == own == "engine":
                room = name.removesuffix(".h")
                lower = room == source.stem or level(ENGINE, room) < level(ENGINE, source.stem)
            assert lower or folder == own != "engine", f"{source.name} includes {folder}/{name}"


def test_seams_stay_where_they_are() -> None:
    for source in SOURCES:
        text = source.read_text()
        if source.suffix == ".cpp":
            assert ("#include <ATen" in text or "#include <c10" in text) == (source.parent.name == "torch"), source
        assert "#include <pybind11" not in text or source.parent.name == "python", source
        assert "Python.h" not in text, source


def imports_of(source: Path) -> set[str]:
    """What a module imports from its own package."""
    names = set()
    package = source.relative_to(ROOT).parts[0]
    depth = len(source.relative_to(ROOT / package).parts)
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            given = {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
            folder = ROOT / package
            modules = {name for name in given if (folder / f"{name}.py").exists() or (folder / name).is_dir()}
            names |= modules | ({"__init__"} if given - modules else set())
        elif isinstance(node, ast.Import):
            names |= {"__init__" for alias in node.names if alias.name == package}
    return names


def room_of(source: Path) -> str:
    """The module or folder of its package that a file is, or is in."""
    return source.relative_to(ROOT).parts[1].removesuffix(".py")


def test_vtensor_imports_downward() -> None:
    for source in sorted((ROOT / "vtensor").glob("**/*.py")):
        own = room_of(source)
        for imported in imports_of(source) - {own}:
            assert level(VTENSOR, imported) < level(VTENSOR, own), f"{source.name} imports {imported}"


def rooms_of(package: Path) -> list[set[str]]:
    """The modules of a package, lowest first."""
    place = package.relative_to(ROOT).as_posix()
    if place == "vtensor/harmony":
        return HARMONY
    if place.startswith("vtensor/harmony/"):
        return HARMONY_ROOMS[package.name]
    return (LGM_ROOMS if place.startswith("lgm/") else ROOMS)[package.name]


def test_rooms_of_packages_import_downward() -> None:
    for source in sorted([*ROOT.glob("lgm/*/**/*.py"), *ROOT.glob("vtensor/*/**/*.py")]):
        text, rooms = source.read_text(), rooms_of(source.parent)
        named = re.findall(r"^ *from \. import ([\w, ]+)", text, re.MULTILINE)
        beside = [*re.findall(r"^ *from \.(\w+) import", text, re.MULTILINE), *re.findall(r"\w+", ", ".join(named))]
        for imported in beside:
            assert level(rooms, imported) < level(rooms, source.stem), f"{source.name} imports {imported}"
        if source.parent.parent.name == "harmony":
            for imported in re.findall(r"^from \.\.(\w+)[\w.]* import", text, re.MULTILINE):
                assert level(HARMONY, imported) < level(HARMONY, source.parent.name), f"{source} imports {imported}"


def test_lgm_imports_downward_and_nothing_of_vtensor_or_torch() -> None:
    for source in sorted((ROOT / "lgm").glob("**/*.py")):
        own = room_of(source)
        for imported in imports_of(source) - {own}:
            assert level(LGM, imported) < level(LGM, own), f"{source.name} imports {imported}"
        assert not re.search(r"^\s*(import|from) (torch|vtensor|scipy)\b", source.read_text(), re.MULTILINE), source


def test_plans_are_made_without_blas() -> None:
    """Where memory is limited and taken, the first product of matrices ends the process, which is the user's."""
    rooms = ("records", "iteration", "choosing", "timing", "placing", "planning", "remaking", "checkpoints")
    files = [ROOT / "lgm/analysis.py", *(path for room in rooms for path in (ROOT / "lgm" / room).glob("*.py"))]
    products = [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Attribute) and node.attr in ("dot", "matmul", "linalg"))
    ]
    assert products == []


def test_files_are_one_concept() -> None:
    for source in [*ROOT.glob("kernels/*/*"), *ROOT.glob("vtensor/**/*.py"), *ROOT.glob("lgm/**/*.py")]:
        lines = source.read_text().count("\n") if source.suffix in (".h", ".cpp", ".py") else 0
        limit = 250 if source.suffix == ".h" else 300
        assert lines <= limit, f"{source.name} has {lines} lines"


PROSE = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PROSE += [*ROOT.glob("*/DESIGN.md"), *ROOT.glob("*/*/DESIGN.md"), ROOT / "benchmarks/PLAN.md"]
NATIVE = [path for path in [*ROOT.glob("kernels/*/*"), *ROOT.glob("tests/native/*")] if path.suffix in (".h", ".cpp")]


def overlong(source: Path) -> list[int]:
    """Lines longer than CONTRIBUTING.md says; Python's are ruff's to find. Tables and commands cannot be broken."""
    found, verbatim = [], False
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        verbatim ^= line.startswith("```")
        free = source.suffix == ".md" and (verbatim or line.startswith("|"))
        if len(line) > (120 if source.suffix == ".md" else 130) and not free:
            found.append(number)
    return found


def test_a_package_names_its_rooms() -> None:
    """Whoever comes to it begins there."""
    for top in ("vtensor", "lgm"):
        for door in sorted(ROOT.glob(f"{top}/*/**/__init__.py")):
            told = ast.get_docstring(ast.parse(door.read_text())) or ""
            inner = {each.parent.name for each in door.parent.glob("*/__init__.py")}
            rooms = inner | {each.stem for each in door.parent.glob("*.py")} - {"__init__", "__main__"}
            unnamed = {room for room in rooms if f"``{room}``" not in told}
            assert not unnamed, (door.parent, unnamed)


def test_lines_have_at_most_as_many_columns_as_promised() -> None:
    for source in [*PROSE, *sorted(ROOT.glob("docs/*.md")), *NATIVE]:
        assert overlong(source) == [], source.name


def test_overlong_lines_are_found(tmp_path: Path) -> None:
    (text := tmp_path / "a.md").write_text(f"{'x' * 121}\n| {'x' * 200}\n```\n{'x' * 200}\n```\n{'x' * 120}\n")
    assert overlong(text) == [1]
    (code := tmp_path / "a.cpp").write_text(f"{'x' * 130}\n{'x' * 131}\n| {'x' * 130}\n")
    assert overlong(code) == [2, 3]


def methods(header: str) -> dict[str, int]:
    """How many functions each class of a header declares; of nested ones each for itself."""
    text = re.sub(r"//[^\n]*|^#.*$", "", header, flags=re.MULTILINE)
    counts: dict[str, int] = {}
    open_braces: list[str] = []  # what each is of: a class by its name, anything else ""
    statement = ""
    for character in text:
        if character not in ";{}":
            statement += character
            continue
        inside = next((name for name in reversed(open_braces) if name), "") if open_braces and open_braces[-1] else ""
        plain = statement
        while plain != (shorter := re.sub(r"<[^<>]*>", "", plain)):
            plain = shorter
        declares = re.search(r"(?:class|struct)\s+(\w+)[^()]*$", plain)
        deleted = "= delete" in statement
        if inside and not declares and not deleted and re.search(r"[\w~=]\s*\(", plain.split("=")[0]):
            counts[inside] = counts.get(inside, 0) + 1
        if character == "{":
            open_braces.append(declares[1] if declares else "")
        elif character == "}":
            open_braces.pop()
        statement = ""
    return counts


def test_no_class_does_everything() -> None:
    for source in [path for path in SOURCES if path.suffix == ".h"]:
        for name, count in methods(source.read_text()).items():
            assert count <= 30, f"{source.name}: {name} has {count} functions"


def test_the_order_of_locks_names_all_of_them() -> None:
    """In DESIGN.md, by the file that has it."""
    text = (ROOT / "DESIGN.md").read_text()
    order = text[text.index("## Locks, in their order") :]
    order = order[: order.index("\n## ", 1)]
    for source in [path for path in SOURCES if path.parent.name != "testing"]:
        if re.search(r"^[^/\n]*\bstd::mutex\*? \w+( =|;)", source.read_text(), re.MULTILINE):
            assert f"{source.parent.name}/{source.name}" in order, (
                f"the lock of {source.name} has no place in DESIGN.md"
            )


def test_functions_are_counted() -> None:
    header = "class A {\n A(); void f() { g(1); } int x = h(); struct B { int y(); }; std::function<void()> z; };"
    assert methods(header) == {"A": 2, "B": 1}


def test_docstrings_name_modules_that_are_there() -> None:
    """``package.module`` in the words with which a module opens."""
    for source in [path for top in ("lgm", "vtensor") for path in sorted((ROOT / top).rglob("*.py"))]:
        top = ROOT / source.relative_to(ROOT).parts[0]
        for package, module in re.findall(
            r"``(?:lgm\.|vtensor\.)?([a-z_]+)\.([a-z_]+)``", source.read_text().split('"""')[1]
        ):
            if (folder := top / package).is_dir():
                there = (folder / module).is_dir() or (folder / f"{module}.py").is_file()
                assert there or re.search(rf"\b{module}\b", (folder / "__init__.py").read_text()), (
                    f"{source}: {package}.{module}"
                )
