"""The report: as text, and in a browser."""

import copy
import itertools
import json
import math
import re
from collections import Counter
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest

from datarax._numbers import known_decimals, outward
from datarax.evaluation.html_report import render, render_comparison, visible
from datarax.evaluation.html_tables import Axis, shown
from tests.evaluation.browsing import chromium, console, requests, show
from tests.evaluation.report_samples import (
    HOSTILE,
    Drawn,
    binary,
    classes,
    comparison,
    drawn,
    rich,
    slices,
    summary_of,
    valued,
)

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


class Page(HTMLParser):
    """What a page consists of; fails where its elements are not nested."""

    VOID = frozenset({"input", "meta", "wbr"})

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.tables, self.ids = [], [], [], Counter()
        self.texts = Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th") and "tr" in self.open:
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids.update(value for name, value in attrs if name == "id")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts[data.strip()] += 1
        if "tbody" in self.open and {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def full():
    return render(rich(), drawn())


@pytest.fixture(scope="module")
def page(full):
    return Page(full)


@pytest.fixture(scope="module")
def comparison_page():
    return render_comparison(comparison())


# As text.


def test_the_page_of_a_comparison(comparison_page):
    page = Page(comparison_page)
    assert all(number == 1 for number in page.ids.values())
    assert {a["href"].removeprefix("#") for a in page.all("a")} <= page.ids.keys()
    metrics, by, *folded, excluded = page.tables
    assert [len(table) - 1 for table in (metrics, by, excluded)] == [4, len(HOSTILE) + 1, 1]
    assert [len(table) for table in folded] == [len(by)]
    assert metrics[1][:4] == ["accuracy", "0.8123", "0.8235", "+0.0112"]
    assert [row[5:8] for row in metrics[1:]] == [
        ["<0.0001", "<0.0001", "b is better"],
        ["0.3400", "1", "not clear"],
        ["", "", "not clear"],
        ["", "", ""],
    ]
    assert "0.0072 to 0.0152" in metrics[1][4]
    assert by[-1][0] == "fr"
    assert excluded[1][1] == visible(HOSTILE[1])
    # Names are text: no element but those of the template.
    assert {"img", "b", "a"} & {tag for tag, _ in page.elements} == {"a"}


def test_it_is_built_for_all_readers(page):
    assert page.all("html") == [{"lang": "en"}]
    for landmark in ("main", "nav", "header", "footer", "h1", "title"):
        assert len(page.all(landmark)) == 1, landmark
    assert all(th.get("scope") in ("col", "row") for th in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) == 5
    assert all(number == 1 for number in page.ids.values())
    targets = [a["href"] for a in page.all("a")]
    assert len(targets) == 8
    assert {target.removeprefix("#") for target in targets} <= page.ids.keys()
    for section in page.all("section"):
        assert section["aria-labelledby"] in page.ids
    drawings = [svg for svg in page.all("svg") if svg.get("class") != "marks"]
    assert [svg["aria-label"] for svg in drawings] == ["ROC curve", "Calibration"]
    assert all(svg["role"] == "img" and "width" not in svg for svg in drawings)
    assert all(s["aria-hidden"] == "true" for s in page.all("svg") if s.get("class") == "marks")


def test_it_says_what_the_summary_says(page):
    for said in ("multiclass", "1,234,567", "! Interrupted", "3 of 10", "datarax 0.1.0",
                 "2026-01-02 03:04 UTC", "0.9271 to 0.9355", f"3.17{TIMES}10⁻⁶", "↓ lower",
                 "0.98208 to 0.98217", "the result is NaN", "1,203",
                 "logit_0, logit_1, logit_2, …, logit_199 (200 columns)", "none"):  # fmt: skip
        assert page.texts[said], said
    metrics, by_class, country, device, excluded = page.tables
    assert [len(t) - 1 for t in page.tables] == [8, 200, 58, 4, 3]
    assert metrics[-1][1] == "—"
    values = rich()["by_class"]["columns"][0]["values"]
    shown = [row[1] for row in by_class[1:]]
    assert shown == ["—" if v is None else f"{v:.4f}" for v in values]
    assert [row[0] for row in device[1:]] == ["phone", "tablet", "desktop", "unknown"]
    assert excluded[3][0] == f"no value in column '{HOSTILE[1]}'"
    assert country[-1][1:3] == ["0", "—"]


def test_names_are_text_and_nothing_else(page):
    allowed = {"bdi", "wbr", "abbr", "circle", "line", "output", "input", "strong"}
    assert not {"img", "iframe", "object", "link", "base", "form", "embed"} & {
        tag for tag, _ in page.elements
    }
    assert len(page.all("script")) == len(page.all("style")) == len(page.all("body")) == 1
    assert allowed <= {tag for tag, _ in page.elements}
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    names = [row[0] for row in page.tables[1][1 : 1 + len(HOSTILE)]]
    assert names == [visible(name) for name in HOSTILE]
    titles = [bdi["title"] for bdi in page.all("bdi") if "title" in bdi]
    assert visible(HOSTILE[7]) in titles  # the whole of what is shortened


def test_hidden_characters_are_shown(full):
    assert visible("a\u202eb\u2066c\x00\n\ud800") == "a⟨U+202E⟩b⟨U+2066⟩c⟨U+0000⟩⟨U+000A⟩⟨U+D800⟩"
    assert visible(" ") == '" "'
    assert visible("") == '""'
    assert visible("\t") == r"'\t'"
    assert visible("Zoë עברית 👩\u200d💻 a&b") == "Zoë עברית 👩\u200d💻 a&b"
    full.encode()  # no lone surrogate is left
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", full)


def test_it_loads_nothing(full, page):
    policy = next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for _, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), attrs
    links = re.findall(r"https?://[^\s\"'<]*", full)
    assert set(links) == {"http://www.w3.org/2000/svg"}  # the name of a language, never loaded
    assert "url(" not in full.replace("url(#", "")
    assert "@import" not in full


def test_ids_of_pictures_do_not_meet(full):
    for i in (0, 1):
        assert f'<clipPath id="p{i}-clip">' in full
        assert f'clip-path="url(#p{i}-clip)"' in full
    assert "<metadata" not in full
    assert "<?xml" not in full


def test_it_depends_on_its_arguments_alone(full):
    summary = rich()
    before = copy.deepcopy(summary)
    assert render(summary, drawn()) == full
    assert summary == before
    assert render(json.loads(json.dumps(summary)), drawn()) == full


def test_small_evaluations_have_no_empty_parts():
    text = render(binary(), [])
    found = Page(text)
    assert found.texts["✓ Complete"]
    assert found.texts["Nothing: every row that was read counts in every number."]
    assert [row[0] for row in found.tables[0][1:]] == ["accuracy", "auroc", "log_loss"]
    assert len(found.tables) == 1
    assert found.ids.keys() == {"theme"} | {
        f"{key}{end}"
        for key in ("metrics", "excluded", "method", "more-data")
        for end in ("", "-title")
    }
    assert "Interrupted" not in text
    nothing = Page(render(summary_of([]), []))
    assert nothing.tables == []


def test_no_number_is_too_strange():
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, -1e-300, 5e-324, 2**63, 1.0, -17.25]
    metrics = [valued(f"m{i}", value) for i, value in enumerate(values)]
    metrics += [valued(f"i{i}", value, 0.25) for i, value in enumerate(values)]
    rows = [{"name": m["name"], "examples": 10**12, "values": {"x": m}} for m in metrics]
    columns = [{"name": "x", "values": values}]
    summary = summary_of(
        metrics,
        by_class={"classes": list(range(len(values))), "columns": columns},
        slices=[{"by": "x", "rows": rows}],
    )
    found = Page(render(summary, []))
    shown = [row[1] for row in found.tables[0][1 : 1 + len(values)]]
    assert [text.replace(TIMES, "x").replace(MINUS, "-") for text in shown] == [
        "—", "∞", "-∞", "0.000", "0.000", "1.000x10³⁰⁰", "-1.000x10⁻³⁰⁰", "4.941x10⁻³²⁴",
        "9.223x10¹⁸", "1.000", "-17.250",
    ]  # fmt: skip
    assert not any("nan" in str(attrs).lower() for _, attrs in found.elements if "cx" in attrs)


def test_digits_follow_from_what_is_known():
    assert known_decimals(0.9, 0.9) is None
    assert known_decimals(None, 1.0) is None
    for exponent in range(-12, 12):
        decimals = known_decimals(5.0, 5.0 + 4.2 * 10.0**exponent)
        if exponent > -10:  # the width is exact enough in floats
            assert decimals == 1 - exponent
    assert shown(1234567.891, -2) == "1,234,568"
    assert shown(5e10, -8) == f"5.00{TIMES}10¹⁰"
    assert shown(3.17123e-6, 8) == f"3.17{TIMES}10⁻⁶"


def test_rounded_bounds_still_hold_what_they_held(rng):
    for low, width in zip(rng.normal(size=200), np.exp(rng.uniform(-20, 2, 200)), strict=True):
        bounds = float(low), float(low + width)
        decimals = known_decimals(*bounds, digits=1)
        lower, upper = outward(*bounds, decimals)
        assert lower is not None
        assert upper is not None
        assert lower <= bounds[0] < bounds[1] <= upper
        assert upper - lower <= width * 5


def test_axes_hold_their_values(rng):
    for scale in 10.0 ** rng.uniform(-200, 200, 100):
        values = [float(v) for v in rng.normal(size=4) * scale]
        axis = Axis.of(values)
        assert axis.low <= min(values)
        assert axis.high >= max(values)
        assert axis.low < axis.high
        # Little more than the values, so that an interval is wider than its dot.
        assert max(values) - min(values) >= 0.5 * (axis.high - axis.low)
    assert Axis.of([0.93127, 0.927, 0.9355]) == pytest.approx((0.926, 0.936))
    assert Axis.of([None, math.nan, math.inf]) is None
    assert Axis.of([1e308, -1e308]) is None  # as wide as no float is


def test_a_thousand_classes_are_a_page_of_a_few_hundred_kilobytes(rng):
    names = [f"class_{i}" for i in range(1000)]
    text = render(summary_of([], by_class=classes(rng, names)), [])
    assert len(text.encode()) < 500_000
    assert len(render(binary(), []).encode()) < 30_000


def test_what_it_reads_is_installed_with_it():
    for name in ("report.css", "report.html", "report.js"):
        assert resources.files("datarax.evaluation").joinpath(name).is_file()


# In a browser.

# Every text that is shown: its contrast with the next background behind it, by the formula of WCAG,
# and its size on the screen.
TEXTS = r"""
const rgb = (colour) => {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return parts.length < 4 ? [...parts, 1] : parts;
};
const light = (colour) => rgb(colour).slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const found = [];
document.querySelectorAll("details").forEach((d) => { d.open = true; });
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim(), owner = walker.currentNode.parentElement;
  if (!text || owner.closest("script, .unseen, .skip") || !owner.checkVisibility()) continue;
  const style = getComputedStyle(owner), drawn = owner instanceof SVGElement;
  let behind = owner;
  while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const background = light(getComputedStyle(behind).backgroundColor);
  const contrast = ratio(light(drawn ? style.fill : style.color), background);
  const scale = drawn ? owner.getScreenCTM().a : 1;
  found.push([text.slice(0, 40), contrast, scale * parseFloat(style.fontSize), drawn]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def file(full, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(full)
    return path


def column(browser, table, index):
    """The cells of a column, as they are shown."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.table')[arguments[0]].querySelectorAll('tbody tr')]"
        ".filter((row) => !row.hidden).map((row) => row.cells[arguments[1]].textContent)",
        table, index,
    )  # fmt: skip


def header(browser, table, index):
    return browser.execute_script(
        "return document.querySelectorAll('.table')[arguments[0]].querySelectorAll('thead th')"
        "[arguments[1]]", table, index,
    )  # fmt: skip


def press(browser, table, index):
    """Clicks on a header, and returns how the column is said to be sorted."""
    found = header(browser, table, index)
    browser.execute_script("arguments[0].querySelector('button').click()", found)
    return found.get_attribute("aria-sort")


def test_it_opens_without_complaint_or_network(browser, file):
    show(browser, file)
    assert browser.title == f"{rich()['title']}, evaluated by datarax"
    assert console(browser) == []
    assert requests(browser) == [file.as_uri()]
    assert browser.execute_script("return window.hit") is None
    assert browser.execute_script("return document.images.length") == 0


def test_tables_sort(browser, file):
    show(browser, file)
    classes_of = rich()["by_class"]["classes"]
    original = column(browser, 1, 0)
    assert len(original) == len(classes_of)
    assert press(browser, 1, 1) == "descending"
    precision = column(browser, 1, 1)
    assert precision[-1] == "—"
    numbers = [float(v) for v in precision[:-1]]
    assert numbers == sorted(numbers, reverse=True)
    assert column(browser, 1, 0) != original
    assert press(browser, 1, 1) == "ascending"
    precision = column(browser, 1, 1)
    assert precision[-1] == "—"
    assert [float(v) for v in precision[:-1]] == numbers[::-1]
    assert press(browser, 1, 1) is None
    assert column(browser, 1, 0) == original
    # Names by the numbers in them; the column that was sorted before no longer says so.
    press(browser, 1, 1)
    assert press(browser, 1, 0) == "ascending"
    assert header(browser, 1, 1).get_attribute("aria-sort") is None
    names = [name for name in column(browser, 1, 0) if name.startswith("class_")]
    assert names == [f"class_{i}" for i in range(190)]
    # Numbers with separators, and slices by their size.
    press(browser, 2, 1)
    examples = [int(v.replace(",", "")) for v in column(browser, 2, 1)]
    assert examples == sorted(examples, reverse=True)
    assert max(examples) > 1000
    press(browser, 2, 3)  # the least certain first
    ends = [[float(end) for end in v.split(" to ")] for v in column(browser, 2, 3) if v]
    widths = [b - a for a, b in ends]
    assert all(a >= b - 0.0011 for a, b in itertools.pairwise(widths))
    assert column(browser, 2, 3)[-1] == ""
    assert console(browser) == []


def test_infinity_is_a_number_and_nan_is_none(browser, tmp_path):
    values = [1.0, math.inf, math.nan, -math.inf, 1e-300, None, -5.0]
    path = tmp_path / "infinite.html"
    path.write_text(render(summary_of([valued(str(v), v) for v in values]), []))
    show(browser, path)
    press(browser, 0, 1)
    assert column(browser, 0, 0) == ["inf", "1.0", "1e-300", "-5.0", "-inf", "nan", "None"]
    press(browser, 0, 1)
    assert column(browser, 0, 0) == ["-inf", "-5.0", "1e-300", "1.0", "inf", "nan", "None"]


def test_tables_sort_by_keyboard(browser, file):
    from selenium.webdriver.common.keys import Keys

    show(browser, file)
    found = header(browser, 0, 1)
    button = found.find_element("tag name", "button")
    button.send_keys(Keys.ENTER)
    assert found.get_attribute("aria-sort") == "descending"
    assert column(browser, 0, 0)[:2] == ["tokens_seen", "perplexity"]
    button.send_keys(Keys.SPACE)
    assert found.get_attribute("aria-sort") == "ascending"
    assert column(browser, 0, 0)[-1] == "cohen_kappa"  # no data is last both ways
    assert browser.switch_to.active_element == button
    assert (
        browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", button)
        == "solid"
    )


def test_search_filters(browser, file):
    show(browser, file)
    fields = browser.find_elements("css selector", "input[type=search]")
    assert [field.get_attribute("aria-label") for field in fields] == [
        "Search classes",
        "Search slices",
    ]
    output = browser.find_element("css selector", ".search output")
    assert output.text == "200 classes"
    fields[0].send_keys("CLASS_18")
    assert column(browser, 1, 0) == ["class_18", *(f"class_{i}" for i in range(180, 190))]
    assert output.text == "11 of 200 classes"
    assert len(column(browser, 2, 0)) == 58  # the other table is as it was
    press(browser, 1, 1)
    assert len(column(browser, 1, 0)) == 11
    fields[0].clear()
    fields[0].send_keys("<img")
    assert column(browser, 1, 0) == [HOSTILE[1]]
    fields[0].clear()
    fields[0].send_keys("no such class")
    assert column(browser, 1, 0) == []
    assert output.text == "0 of 200 classes"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_fits_the_window(browser, file, width):
    show(browser, file, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    root = "return [innerWidth, document.documentElement.scrollWidth - "
    root += "document.documentElement.clientWidth]"
    assert browser.execute_script(root) == [width, 0]
    # Each table within its own region, which the keyboard can scroll.
    outside = browser.execute_script(
        "return [...document.querySelectorAll('.scroll, figure, pre, .search, dl, li, .notice')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.className)"
    )
    assert outside == []
    wide = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth > e.clientWidth)"
    )
    assert any(wide) or width == 1280


@pytest.mark.parametrize("count", [2, 3, 5])
def test_pictures_fill_rows_and_have_one_size(browser, tmp_path, count):
    one, path = drawn()[0], tmp_path / "pictures.html"
    several = [one._replace(name=f"p{i}", title=f"Picture {i}") for i in range(count)]
    path.write_text(render(binary(), [*several, one._replace(is_wide=True)]))
    for width, columns in ((1280, 3 if count == 3 else 2), (800, 2), (400, 1)):
        show(browser, path, width=width)
        *drawings, wide = browser.execute_script(
            "return [...document.querySelectorAll('.drawing > svg')].map((e) => {"
            "const b = e.getBoundingClientRect();"
            "return [Math.round(b.x), Math.round(b.y), Math.round(b.width), Math.round(b.height)]})"
        )
        assert len(drawings) == count
        assert len({tuple(d[2:]) for d in drawings}) == 1
        assert [d[0] for d in drawings] == [drawings[i % columns][0] for i in range(count)]
        assert len({d[1] for d in drawings}) == -(-count // columns)
        assert wide[2] >= max(d[2] for d in drawings)
        # A row that no picture fills has the caption of its last one.
        last = browser.find_elements("css selector", ".grid > figure")[-1]
        caption = last.find_element("tag name", "figcaption").rect
        beside = columns == 2 and count % 2 == 1
        assert (caption["x"] > drawings[-1][0] + drawings[-1][2]) == beside


def test_nothing_is_cut_off_without_a_hint(browser, tmp_path, rng):
    overall = {f"metric_number_{i}": 0.5 + i / 30 for i in range(11)}
    names = ["phone", "tablet", "desktop", "unknown"]
    metrics = [valued(name, value, 0.004) for name, value in overall.items()]
    few = dict(list(overall.items())[:1])
    by = [slices(rng, "device", names, overall), slices(rng, "country", names, few)]
    path = tmp_path / "wide.html"
    path.write_text(render(summary_of(metrics, slices=by), []))
    show(browser, path)
    cut = "const e = arguments[0].querySelector('.scroll');"
    below = cut + "return e.scrollHeight - e.clientHeight"
    right = cut + "return e.scrollWidth - e.clientWidth"
    # Three metrics of slices stand side by side, and the others are folded below them.
    (fold,) = browser.find_elements("css selector", "#slices details")
    assert fold.text.startswith("8 more metrics: metric_number_3, ")
    opened = "for (const e of document.querySelectorAll('details')) e.open = true;"
    browser.execute_script(opened + "return new Promise((r) => setTimeout(r, 200))")
    tables = browser.find_elements("css selector", "#metrics .table, #slices .table")
    assert len(tables) == 1 + 4 + 1
    for table in tables:
        assert browser.execute_script(below, table) == 0
        assert browser.execute_script(right, table) == 0
        assert table.find_element("class name", "hint").text == ""
    # On a narrower page, a table says that it goes on.
    show(browser, path, width=600)
    wide = browser.find_elements("css selector", "#slices .table")[0]
    assert browser.execute_script(right, wide) > 0
    hint = wide.find_element("class name", "hint")
    assert hint.text == "Scroll sideways to see all columns →"
    assert "more" in wide.get_attribute("class")
    ends = cut + (
        "const c = e.querySelector('caption > span').getBoundingClientRect();"
        "return e.getBoundingClientRect().right - c.right"
    )
    assert browser.execute_script(ends, wide) >= 0
    to_the_end = cut + "e.scrollLeft = 1e6; return new Promise((r) => setTimeout(r, 200))"
    browser.execute_script(to_the_end, wide)
    assert "more" not in wide.get_attribute("class")
    # An interval is longer than the dot on it.
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#metrics .marks')].map((e) => ['.interval', '.dot']"
        ".map((kind) => e.querySelector(kind).getBoundingClientRect().width))"
    )
    assert len(shown) == 11
    assert all(line > 3 * dot for line, dot in shown)


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_the_page_of_a_comparison_fits_and_can_be_read(browser, comparison_page, tmp_path, width):
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page)
    for scheme in ("light", "dark"):
        show(browser, path, scheme=scheme, width=width)
        root = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(root) == 0
        texts = browser.execute_script(TEXTS)
        assert len(texts) > 100
        assert [text for text in texts if text[1] < 4.5] == []
        assert [text for text in texts if text[2] < 12] == []
    assert console(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(browser, file, scheme):
    show(browser, file, scheme=scheme, width=360)
    texts = browser.execute_script(TEXTS)
    assert len(texts) > 1000
    assert [text for text in texts if text[1] < 4.5] == []
    assert [text for text in texts if text[2] < (8 if text[3] else 12)] == []
    assert {"confidence", "false positive rate"} <= {text[0] for text in texts}
    lit = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert all((v > 200) == (scheme == "light") for v in browser.execute_script(lit))


def test_colours_can_be_switched(browser, file):
    lit = "return getComputedStyle(document.body).backgroundColor"
    show(browser, file, scheme="dark")
    dark = browser.execute_script(lit)
    button = browser.find_element("id", "theme")
    assert button.text == "Light"
    button.click()
    assert button.text == "Dark"
    light = browser.execute_script(lit)
    assert light != dark
    show(browser, file, scheme="light")
    assert browser.execute_script(lit) == light
    button = browser.find_element("id", "theme")
    button.click()
    assert browser.execute_script(lit) == dark
    texts = browser.execute_script(TEXTS)
    assert [text for text in texts if text[1] < 4.5] == []


def test_on_paper_everything_is_unfolded_and_light(browser, file):
    show(browser, file, scheme="dark", media="print")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    hidden = (
        "return [...document.querySelectorAll('.scroll')].map((e) => getComputedStyle(e).overflowY)"
    )
    assert set(browser.execute_script(hidden)) == {"visible"}
    shown = "return document.querySelector('.top').checkVisibility()"
    assert not browser.execute_script(shown)
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 4
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0


def test_it_is_useful_without_scripts(browser, file):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, file)
        assert browser.find_element("css selector", "#metrics td.value").text == "0.9313"
        controls = browser.find_elements("css selector", "button, input")
        assert not any(control.is_displayed() for control in controls)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_page_refuses_what_a_picture_should_not_do(browser, tmp_path):
    planted = (
        "<svg viewBox='0 0 9 9' onload='window.hit=1'><script>window.hit = 2</script>"
        "<image href='http://127.0.0.1:9/x.png' onerror='window.hit=3'/></svg>"
    )
    path = tmp_path / "planted.html"
    path.write_text(render(binary(), [Drawn("a", "a", "a", planted)]))
    show(browser, path)
    assert browser.execute_script("return window.hit") is None
    assert len([line for line in console(browser) if "Content Security Policy" in line]) >= 3
