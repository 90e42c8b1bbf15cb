"""The report in headless Chromium: it loads alone, charts draw, controls work, print renders.

Needs playwright (pip install playwright) and a Chromium on the path; skipped without them.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from tightz.bounds import Bound, Proof, Side
from tightz.reports import ReportData
from tightz.reports.data import LevelTable, Marginals
from tightz.reports.page import render

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")


def example() -> ReportData:
    rng = np.random.default_rng(0)
    sure, likely = Proof.DETERMINISTIC, Proof.CONFIDENCE
    bounds = []
    for k in range(1, 60):
        t = 0.01 * 1.15**k
        low, high = 100 - 40 / k, 101 + 60 / k
        bounds.append(Bound(Side.LOWER, low, sure, "splitting", t, 1.0, "regions add up"))
        bounds.append(Bound(Side.UPPER, high, sure, "mini-bucket", 1.02 * t, 1.0, "Hoelder"))
    certificate = [
        Bound(side, 100.3 + sign * 3 / k, likely, "mini-bucket", 0.1 * 1.2**k, 0.95, "bets")
        for k in range(1, 30)
        for side, sign in ((Side.LOWER, -1), (Side.UPPER, 1))
    ]
    values = 99 + rng.normal(size=(8, 30)) - 0.3 * np.arange(8)[:, None]
    values[5:, ::4] = -np.inf
    probabilities = rng.beta(0.4, 0.4, size=40)
    return ReportData(
        title="a model with a name",
        method="log_partition",
        bounds=[*bounds, *certificate],
        confident_lower=certificate[-2],
        confident_upper=certificate[-1],
        together=0.95,
        estimate=100.3,
        estimate_error=0.01,
        table=LevelTable(np.arange(8), values),
        marginals=Marginals([np.array([1 - p, p]) for p in probabilities], "a test", (5, 6)),
        seconds=45.0,
    )


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(example()), encoding="utf-8")
    return path.as_uri()


class Watched:
    """A page together with everything that went wrong on it."""

    def __init__(self, page, address):
        self.page, self.problems, self.requests = page, [], []
        page.on("console", lambda m: self.problems.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: self.problems.append(str(e)))
        page.on("request", lambda r: self.requests.append(r.url))
        page.goto(address)
        page.wait_for_selector("#chart-levels path.series")

    def view(self, chart):
        """What is on the axes and where: tick texts, then their positions and the lines'."""
        svg = self.page.locator(f"#chart-{chart} svg")
        places = "all => all.map((e) => e.getAttribute('d') ?? e.getAttribute('x'))"
        drawn = svg.locator("path.series, .axes text").evaluate_all(places)
        return [*svg.locator(".axes text").all_text_contents(), *drawn]


@pytest.fixture
def watched(browser, address):
    page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
    seen = Watched(page, address)
    yield seen
    assert seen.problems == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [address]
    page.close()


def numbers(path):
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_charts_draw_with_finite_coordinates(watched):
    page = watched.page
    for chart, kinds in (
        ("interval", {"stepband", "step", "rule", "confident"}),
        ("widths", {"step", "confident"}),
        ("levels", {"band", "dots", "line", "rug", "rule"}),
        ("marginals", {"bars"}),
    ):
        paths = page.locator(f"#chart-{chart} path.series")
        drawn = set()
        for i in range(paths.count()):
            d = paths.nth(i).get_attribute("d")
            assert d
            assert "NaN" not in d
            assert "Infinity" not in d
            assert len(numbers(d)) >= 3
            drawn |= set(paths.nth(i).get_attribute("class").split()) & kinds
        assert drawn == kinds
    dots = page.locator("#chart-levels path.dots").get_attribute("d")
    assert dots.count("M") == np.isfinite(example().table.values).sum()
    picture = page.locator("#picture-0 > img")
    assert picture.evaluate("i => [i.complete, i.naturalWidth, i.naturalHeight]") == [True, 6, 5]


def test_a_name_in_the_legend_hides_its_series(watched):
    page = watched.page
    line = page.locator('#chart-interval path.series[data-series="upper end"]')
    key = page.locator('#chart-interval button[data-series="upper end"]')
    assert line.count() == 1
    key.click()
    assert line.count() == 0
    assert key.get_attribute("aria-pressed") == "false"
    key.press("Enter")
    assert line.count() == 1
    assert key.get_attribute("aria-pressed") == "true"


def test_drag_wheel_and_keys_zoom_and_reset_restores(watched):
    page = watched.page
    first = watched.view("interval")
    reset = page.locator("#chart-interval button", has_text="reset")
    svg = page.locator("#chart-interval svg")
    box = svg.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 150, y + 80, steps=4)
    page.mouse.up()
    assert watched.view("interval") != first
    reset.click()
    assert watched.view("interval") == first

    page.mouse.move(x, y)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(100)
    assert watched.view("interval") == first  # without focus the wheel scrolls the page
    page.evaluate("scrollTo(0, 0)")
    svg.focus()
    page.mouse.move(x, y + 1)
    old = page.locator("#chart-interval path.step").first.get_attribute("d")
    page.mouse.wheel(0, -400)
    page.wait_for_function(
        "old => document.querySelector('#chart-interval path.step').getAttribute('d') !== old",
        arg=old,
    )
    page.keyboard.press("0")
    assert watched.view("interval") == first

    for key in ("+", "ArrowRight", "ArrowUp", "-"):
        before = watched.view("interval")
        page.keyboard.press(key)
        assert watched.view("interval") != before
    page.keyboard.press("0")
    assert watched.view("interval") == first
    page.locator("#chart-interval button", has_text="all values").click()
    assert watched.view("interval") != first
    svg.dblclick()
    assert watched.view("interval") == first
    page.locator("#chart-interval button", has_text=re.compile("^confident$")).click()
    assert watched.view("interval") != first
    svg.dblclick()
    page.locator("#chart-interval button", has_text="log time").click()
    assert {"0.1", "1", "10"} <= set(watched.view("interval"))


def test_pointing_and_stepping_read_values(watched):
    page = watched.page
    svg = page.locator("#chart-interval svg")
    box = svg.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
    tip = page.locator("#chart-interval .tip")
    assert tip.is_visible()
    text = tip.inner_text()
    assert re.search(r"lower end 9\d\.\d+", text)
    assert re.search(r"upper end 10\d\.\d+", text)
    assert "estimate 100.3" in text
    inside = page.evaluate(
        "() => { const t = document.querySelector('#chart-interval .tip').getBoundingClientRect();"
        "return t.left >= 0 && t.right <= innerWidth; }"
    )
    assert inside
    page.locator("h1").hover()
    assert not tip.is_visible()
    widths = page.locator("#chart-widths svg")
    widths.focus()
    page.keyboard.press(",")
    told = page.locator("#chart-widths .unseen").inner_text()
    assert re.search(r"always [\d.]+; with confidence 0\.20\d", told)
    levels = page.locator("#chart-levels svg")
    levels.focus()
    said = page.locator("#chart-levels .unseen")
    page.keyboard.press(".")
    assert said.inner_text().startswith("m = 0")
    page.keyboard.press(".")
    page.keyboard.press(".")
    page.keyboard.press(",")
    assert said.inner_text().startswith("m = 1")
    assert "30 trials" in said.inner_text()
    picture = page.locator("#picture-0 > img")
    picture.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expected = example().marginals.vectors[7][1]
    assert page.locator("#picture-0 .unseen").inner_text() == (
        f"row 1, column 1, variable 7: {expected:.4f}"
    )


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_light_and_dark_follow_the_system_and_the_button(watched, browser, address):
    page = watched.page
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    page.locator("#theme").click()
    assert background(page) == light
    page.locator("#theme").click()
    assert background(page) == dark
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == light  # paper is white


def test_print_shows_every_section_and_no_controls(watched):
    page = watched.page
    page.emulate_media(media="print")
    for section in ("interval", "levels", "marginals", "certificate", "bounds", "provenance"):
        assert page.locator(f"#{section}").is_visible()
    assert not page.locator("#theme").is_visible()
    assert not page.locator("#chart-interval button.act").first.is_visible()
    assert page.locator("#bounds .scroll").evaluate("e => e.scrollHeight <= e.clientHeight + 1")
    assert page.locator("#chart-interval path.series").count() >= 4
    assert page.pdf(format="A4")[:5] == b"%PDF-"


@pytest.mark.parametrize("width", [400, 1000, 1600])
def test_nothing_sticks_out_at_any_width(width, browser, address):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(address)
    page.wait_for_selector("#chart-levels path.series")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    clipped = page.evaluate(
        "() => [...document.querySelectorAll('svg.plot')].flatMap((svg) => {"
        " const f = svg.getBoundingClientRect();"
        " return [...svg.querySelectorAll('.axes text')].filter((t) => {"
        "  const b = t.getBoundingClientRect();"
        "  return b.left < f.left - 1 || b.right > f.right + 1 || b.top < f.top - 1"
        "   || b.bottom > f.bottom + 1; }).map((t) => t.textContent); })"
    )
    assert clipped == []
    page.close()


def test_the_policy_stops_injected_scripts(browser, tmp_path):
    """The negative control: even markup that got past the escaping could not run."""
    text = render(example()).replace("</main>", "<script>document.title = 'gone'</script></main>")
    path = tmp_path / "injected.html"
    path.write_text(text, encoding="utf-8")
    page = browser.new_page()
    refused = []
    page.on("console", lambda m: refused.append(m.text))
    page.goto(path.as_uri())
    assert page.title() != "gone"
    assert any("Content Security Policy" in text for text in refused)
    page.close()
