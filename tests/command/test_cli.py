"""The command line: scripts run as python would run them, and help that teaches."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from vtensor.command import cli, doctor

from ..warm import python

TRACE = Path(__file__).resolve().parents[2] / "traces" / "gpt2.npz"
SCRIPT = """
import sys, pickle, torch
class Mine:
    pass
assert __name__ == "__main__" and sys.modules["__main__"].Mine is Mine
pickle.loads(pickle.dumps(Mine()))
print(sys.argv, __file__, sys.path[0])
tensors = [torch.full((1 << 20,), float(i)) for i in range(10)]
assert all((t == i).all() for i, t in enumerate(tensors))
"""


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [python(), "-m", "vtensor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=cwd, check=False)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_an_unmodified_script(script: Path) -> None:
    # Some of its arguments are ours, too, or begin several of ours.
    arguments = ["--epochs", "3", "--budget", "x", "--p", "5", "--s=42", "--re", "--h", "-h"]
    done = run("run", "--budget", "16MiB", str(script), *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{[str(script), *arguments]} {script} {script.parent}"
    assert "moved out" in done.stderr and "16.00 MiB" in done.stderr


def test_a_budget_behind_the_script_is_told_from_ours(script: Path) -> None:
    for how in ([str(script)], ["-m", "train"]):
        done = run("run", *how, "--budget", "4GiB", cwd=script.parent)
        assert done.returncode == 0, done.stderr
        assert "arguments after the script are the script's own; vtensor's --budget comes before it" in done.stderr


def test_a_module_in_a_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("within.py", "import sys; print(sys.argv[1:], __name__)")
    done = subprocess.run(
        [sys.executable, "-m", "vtensor", "run", "--budget", "16MiB", "-m", "within", "a"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "app.zip")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "['a'] __main__\n", done.stderr


def test_a_module(script: Path) -> None:
    for arguments in (["a"], ["-q", "--budget", "x", "-m", "a"]):
        done = run("run", "--budget", "16MiB", "-m", "train", *arguments, cwd=script.parent)
        assert done.returncode == 0, done.stderr
        assert str([str(script), *arguments]) in done.stdout


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a last word')", 1, "a last word"),
        ("raise SystemExit", 0, ""),
        ("def f(): raise ValueError('told')\nf()", 1, 'train.py", line 1, in f'),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("import sys; sys.excepthook = lambda *e: print('seen', e[0].__name__, file=sys.stderr)\n1/0", 1, "seen Zero"),
        ("if True print()", 1, "SyntaxError"),
        ("import vtensor; vtensor.disable()", 0, "turned vtensor off"),
        ("import torch; torch.ones(9)", 0, "nothing was managed: this process made no tensor of"),
    ],
)
def test_exit_codes(script: Path, body: str, code: int, text: str) -> None:
    script.write_text(body)
    done = run("run", "--budget", "64MiB", str(script))
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "launcher.py" not in done.stderr


SAYS = (
    "import os, sys; print(sys.argv, globals().get('__file__'), sys.path[0], __name__, repr(__package__), "
    "os.getcwd() in sys.path)"
)


@pytest.mark.parametrize("how", ["relative", "elsewhere", "compiled", "safe", "directory", "zip", "stdin"])
def test_what_a_program_sees_of_itself_is_what_python_shows(tmp_path: Path, how: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SAYS)
    (tmp_path / "train.py").write_text(SAYS)
    py_compile.compile(str(tmp_path / "train.py"), str(tmp_path / "train.pyc"))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(SAYS)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SAYS)
    named = {"elsewhere": "src/train.py", "compiled": "train.pyc", "directory": "app", "zip": "app.zip", "stdin": "-"}
    what, flags = named.get(how, "train.py"), ["-P"] if how == "safe" else []
    expected, got = (
        subprocess.run(
            [sys.executable, *flags, *before, what, "--x", "1"],
            input=SAYS, capture_output=True, text=True, timeout=180, cwd=tmp_path, check=True,
        ).stdout
        for before in ([], ["-m", "vtensor", "run", "--budget", "16MiB"])
    )  # fmt: skip
    assert got == expected


def test_workers_of_a_script_find_its_names(script: Path) -> None:
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Squares(Dataset):\n"
        "    data = torch.arange(1 << 20)\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return self.data[i] ** 2\n"
        "if __name__ == '__main__':\n"
        "    for context in ('fork', 'spawn'):\n"
        "        loader = DataLoader(Squares(), 4, num_workers=2, multiprocessing_context=context)\n"
        "        print([batch.tolist() for batch in loader])\n"
    )
    done = run("run", "--budget", "8MiB", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[[0, 1, 4, 9], [16, 25, 36, 49]]") == 2


def test_workers_send_back_objects_of_its_classes(script: Path) -> None:
    script.write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from dataclasses import dataclass\n"
        "from multiprocessing import get_context\n"
        "@dataclass\n"
        "class Found:\n"
        "    value: int\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1, get_context('spawn')) as pool:\n"
        "        print(pool.submit(Found, 3).result())\n"
    )
    done = run("run", "--budget", "8MiB", str(script))
    assert done.stdout == "Found(value=3)\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--budget", "1GiB"], "which script"),
        (["run", "--budget", "train.py"], "--budget takes a size: vtensor run --budget 4GiB train.py"),
        (["run", "--budgt", "1GiB", "train.py"], "vtensor run: error: unrecognized arguments: --budgt"),
        (["run", "--budget", "many", __file__], "not a size"),
        (["run", "--budget", "140%", __file__], "budget=140% is neither whole bytes nor a share"),
        (["run", "--budget", "1GiB", "--link", "fast", __file__], "link='fast' is not a speed"),
        (["run", "--budget", "1GiB", "--host", "1MiB", __file__], "less than one chunk of 2.00 MiB"),
        (["train.py", "--lr", "1"], "did you mean 'vtensor run --budget 4GiB train.py --lr 1'?"),
        (["run", "--budget", "1GiB", "/nowhere/train.py"], "cannot read the script"),
        (["fit", str(TRACE)], "if it is a recorded trace, 'lgm fit"),
        (["run", "--budget", "1GiB", "-m", "no.such.module"], "no module named"),
        (["run", "--budget", "1GiB", "-m", ".relative"], "whole name of a module"),
        (["run", "--budget", "1GiB", "--device", "cuda", __file__], "no GPU"),
        (["run", "--save-trace", "/nowhere/t.npz", __file__], "there is no directory /nowhere"),
        (["run", "--save-trace", "/tmp", __file__], "--save-trace=/tmp is a directory; name a file"),
        (["run", "--save-trace", "/proc/t.npz", __file__], "no file can be written in /proc"),
        (["run", "--budget", "1GiB", "--spill-dir", "", __file__], "spill_dir='' is not a directory"),
        (["build", "--to", ""], "--to: no directory is named"),
        (["demo", "--steps", "3"], "at least 8 steps"),
        (["demo", "--fraction", "7"], "fraction"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # where a module is looked for
    try:
        code: object = cli.main(arguments)
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err
    assert code == 2
    assert text in said and "Traceback" not in said
    assert "no budget was given" not in said + caplog.text  # a session, begun before the mistake was seen


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, texts in (
        (["--help"], ("vtensor run --budget 4GiB train.py", "vtensor demo", "vtensor doctor", "VTENSOR_BUDGET")),
        (["run", "--help"], ("--spill-dir", "(default: plan)", "(default: auto, which is cuda")),
    ):
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        said = " ".join(capsys.readouterr().out.split())
        assert all(text in said for text in texts)


def test_a_usage_error_of_the_script_has_no_table_behind_it(script: Path) -> None:
    script.write_text("import argparse; argparse.ArgumentParser('mine').parse_args()")
    done = run("run", "--budget", "40%", str(script), "--no-such-option")
    assert done.returncode == 2
    assert "mine: error: unrecognized arguments" in done.stderr
    assert "moved out" not in done.stderr


def test_a_cache_that_cannot_be_written(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTENSOR_CACHE", str(script))  # a file
    done = run("run", "--budget", "16MiB", str(script))
    assert done.returncode == 2
    assert "set VTENSOR_CACHE to a directory that you can write to" in done.stderr
    assert "Traceback" not in done.stderr


def test_which_process_a_summary_is_of(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "vtensor (process 1 of 2): plan by chunk" in run("run", "--budget", "16MiB", str(script)).stderr


def test_each_of_several_processes_writes_files_of_its_own(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(
        "import torch, vtensor\nfor _ in range(4):\n    torch.full((1 << 20,), 1.0).sum()\n    vtensor.step()\n"
    )
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = run("run", "--budget", "16MiB", "--save-trace", str(tmp_path / "t.npz"), str(script))
    assert f"wrote {tmp_path / 't.rank1.npz'}" in done.stderr
    assert (tmp_path / "t.rank1.npz").is_file() and not (tmp_path / "t.npz").exists()


def test_a_script_may_close_where_it_and_we_print(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import os, sys, torch\n"
        "model = torch.nn.Linear(1024, 1024)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(4):\n"
        "    model(torch.ones(8, 1024)).sum().backward()\n"
        "    optimizer.step()\n"
        "sys.stdout = open(os.devnull, 'w')\n"
        "sys.stdout.close()\n"
        "sys.stderr.close()\n"
    )
    done = run("run", "--budget", "16MiB", "--save-trace", str(tmp_path / "t.npz"), str(script))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.npz").is_file()
    with open("/dev/full", "w") as full:  # noqa: PTH123 (no file of ours)
        command = [python(), "-m", "vtensor", "run", "--budget", "16MiB", "-m", "this"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False).returncode == 0


def test_a_module_whose_package_lacks_something(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("import not_to_be_had")
    (tmp_path / "package/train.py").write_text("print(1)")
    done = run("run", "--budget", "16MiB", "-m", "package.train", cwd=tmp_path)
    assert done.returncode == 2 and "No module named 'not_to_be_had'" in done.stderr
    missing = run("run", "--budget", "16MiB", "-m", "package_.train", cwd=tmp_path)
    assert missing.returncode == 2 and "no module named 'package_.train' that can be run" in missing.stderr


def test_too_short_to_be_recorded(script: Path, tmp_path: Path) -> None:
    done = run("run", "--budget", "16MiB", "--save-trace", str(tmp_path / "t.npz"), str(script))
    assert "was not written: no whole iteration is recorded yet: train at least two" in done.stderr


def test_files_are_written_where_they_were_asked_for(script: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script.write_text(
        "import os, torch, vtensor\n"
        "for _ in range(4):\n"
        "    torch.full((1 << 20,), 1.0).sum()\n"
        "    vtensor.step()\n"
        "os.chdir('elsewhere')\n"
    )
    done = run("run", "--budget", "16MiB", "--save-trace", "t.npz", script.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t.npz").exists() and not any(elsewhere.iterdir()), done.stderr


def test_a_page_about_a_run(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(8):\n"
        "    model(torch.ones(256, 512)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    page = tmp_path / "run.html"
    done = run("run", "--budget", "12MiB", "--chunk", "64KiB", "--watch", "--report", str(page), str(script))
    assert done.returncode == 0, done.stderr
    assert f"wrote {page}: open it in a browser" in done.stderr
    assert re.search(
        r"vtensor: iteration 2, \d\.\d+ s; held 12.00 MiB of 12.00 MiB; out .*; no plan yet\n", done.stderr
    )
    text = page.read_text()
    assert "<h1>train.py" in text
    assert text.count("<tr>") == 1 + 7  # the first begins before anybody looks


def test_a_session_that_the_script_begins_anew_does_what_was_asked_for(script: Path, tmp_path: Path) -> None:
    """And it is there until the process ends: a GPU may have no room for all that is away then."""
    script.write_text(
        "import atexit, torch, vtensor\n"
        "vtensor.disable(); vtensor.enable('12MiB', chunk='64KiB', policy='lru', device='cpu')\n"
        "atexit.register(lambda: print(vtensor.is_enabled(), all((t == 1).all() for t in kept)))\n"
        "kept = [torch.ones(1 << 20) for _ in range(8)]\n"
        "weight = torch.ones(1 << 16, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(4):\n"
        "    weight.square().sum().backward(); optimizer.step()\n"
    )
    page, trace = tmp_path / "run.html", tmp_path / "t.npz"
    done = run("run", "--budget", "64MiB", "--watch", "--report", str(page), "--save-trace", str(trace), str(script))
    assert done.returncode == 0 and done.stdout == "True True\n", done.stderr
    assert page.is_file() and trace.is_file()
    assert "vtensor: iteration 2, " in done.stderr


def test_build(tmp_path: Path) -> None:
    """Where it is built already nothing is compiled again."""
    done = run("build")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_file()


def test_doctor() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert "native core" in done.stdout and "Everything vtensor needs is here" in done.stdout
    assert "Python.h" in done.stdout


def test_the_doctor_misses_headers_and_a_torch_that_is_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.native, "python_include", lambda: "/nowhere")
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    found = {what: (well, text) for look in (doctor._torch, doctor._compiler) for what, well, text in look()}
    assert found["torch"] == (False, "2.9.1+cpu (2.11 or newer is needed; pip install 'torch>=2.11')")
    assert found["python headers"][0] is False and "apt install python3-dev" in found["python headers"][1]


def test_a_compiler_that_is_not_there_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++-99")
    assert list(doctor._compiler()) == [
        ("compiler", False, "CXX=clang++-99: there is no such program (one name or path, without arguments)")
    ]


def test_a_way_to_verify_that_there_is_not(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTENSOR_VERIFY", "yes")
    done = run("run", "--budget", "16MiB", str(script))
    assert done.returncode == 2 and "VTENSOR_VERIFY=yes is unknown; there is 'replay' only" in done.stderr


def test_turned_off_it_runs_as_if_vtensor_were_not_there(script: Path, tmp_path: Path) -> None:
    asked = ["--save-trace", str(tmp_path / "t.npz"), "--report", str(tmp_path / "r.html")]
    command = [python(), "-m", "vtensor", "run", "--budget", "16MiB", *asked, str(script)]
    environ = os.environ | {"VTENSOR_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert "moved out" not in done.stderr
    assert re.search(r"t\.npz and .*r\.html will not be written while VTENSOR_DISABLE is set", done.stderr)
    command = [python(), "-m", "vtensor", "fit", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environ, check=False)
    assert done.returncode == 2 and "unset it" in done.stderr


def test_a_report_is_not_begun_without_what_draws_it(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert cli.main(["run", "--budget", "16MiB", "--report", "r.html", str(script)]) == 2
    assert "--report needs plotly: pip install plotly" in capsys.readouterr().err


def test_a_session_that_was_ended_says_what_was_not_written(script: Path) -> None:
    script.write_text("import vtensor; vtensor.disable()")
    done = run("run", "--budget", "16MiB", "--save-trace", "t.npz", str(script), cwd=script.parent)
    assert f"turned vtensor off before it ended: no summary, and {script.parent}/t.npz was not written" in done.stderr
    # What it did is said when it ends its session.
    script.write_text(f"import vtensor\n{SCRIPT}\nvtensor.disable()\nprint('goes on', flush=True)")
    done = run("run", "--budget", "16MiB", "--save-trace", "t.npz", str(script), cwd=script.parent)
    assert done.returncode == 0 and "goes on" in done.stdout
    assert done.stderr.count("moved out") == 1 and "turned vtensor off" not in done.stderr
    assert "t.npz was not written: no whole iteration is recorded yet" in done.stderr


def test_a_setting_that_comes_after_torch_has_read_it_is_told(script: Path) -> None:
    script.write_text("import os; os.environ['OMP_NUM_THREADS'] = '7'; import torch; torch.ones(1 << 20)")
    assert "the script set OMP_NUM_THREADS too late" in run("run", "--budget", "16MiB", str(script)).stderr
    script.write_text("import torch; torch.ones(1 << 20)")
    assert "too late" not in run("run", "--budget", "16MiB", str(script)).stderr
