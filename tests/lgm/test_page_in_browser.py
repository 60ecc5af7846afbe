"""The page in a real browser: nothing is fetched, names appear under the pointer, dragging zooms both pictures.

Needs ``playwright`` and an installed Chromium; ``make long`` runs it where both are.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lgm.command.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRACES = Path(__file__).resolve().parents[2] / "traces"
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    folder = tmp_path_factory.mktemp("page")
    plan, file = folder / "plan.npz", folder / "page.html"
    trace = str(TRACES / "mobilenet_v2.npz")
    assert main(["analyze", trace, "--budget", "50%", "--link", "1GB/s", "--recompute", "auto", "-o", str(plan)]) == 0
    assert main(["report", str(plan), "-o", str(file)]) == 0
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 1100})
        opened.wrong, opened.fetched = [], []
        opened.on("pageerror", lambda error: opened.wrong.append(str(error)))
        opened.on("request", lambda request: opened.fetched.append(request.url))
        opened.goto(file.as_uri())
        opened.wait_for_selector(".plotly-graph-div .nsewdrag")
        yield opened
        browser.close()


def box(page: Any, plot: str) -> dict[str, float]:
    """Where one of the two pictures lies."""
    found: dict[str, float] = page.locator(f".nsewdrag[data-subplot='{plot}']").bounding_box()
    return found


def ranges(page: Any) -> list[list[float]]:
    shown: list[list[float]] = page.evaluate(
        "() => { const l = document.querySelector('.plotly-graph-div')._fullLayout;"
        " return [l.xaxis.range, l.xaxis2.range] }"
    )
    return shown


def test_nothing_is_fetched_and_nothing_fails(page: Any) -> None:
    assert page.wrong == []
    assert [url for url in page.fetched if not url.startswith(("file:", "data:", "blob:"))] == []
    assert "MobileNetV2" in page.inner_text("h1")


@pytest.mark.parametrize(("plot", "text"), [("xy", "MiB"), ("x2y2", "operation")])
def test_names_under_the_pointer(page: Any, plot: str, text: str) -> None:
    at = box(page, plot)
    said = set()
    for share in (0.3, 0.45, 0.6, 0.75):
        for height in (0.2, 0.5, 0.8, 0.95):
            page.mouse.move(at["x"] + share * at["width"], at["y"] + height * at["height"])
            page.wait_for_timeout(120)
            said.update(page.locator(".hoverlayer .hovertext").all_text_contents())
    assert any(text in each for each in said), said


def test_dragging_zooms_both_pictures_and_a_double_click_undoes_it(page: Any) -> None:
    at, before = box(page, "xy"), ranges(page)
    middle = at["y"] + at["height"] / 2
    page.mouse.move(at["x"] + 0.4 * at["width"], middle)
    page.mouse.down()
    page.mouse.move(at["x"] + 0.6 * at["width"], middle, steps=8)
    page.mouse.up()
    page.wait_for_timeout(500)
    zoomed = ranges(page)
    width = before[0][1] - before[0][0]
    assert zoomed[0] == zoomed[1]
    assert zoomed[0][1] - zoomed[0][0] == pytest.approx(0.2 * width, rel=0.1)
    page.mouse.dblclick(at["x"] + 0.5 * at["width"], middle)
    page.wait_for_timeout(800)
    assert ranges(page)[0] == pytest.approx(before[0], rel=0.02, abs=0.02 * width)
