"""The run report: the answer first, every outcome, missing parts named, texts escaped, nothing loaded."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from components.core.errors import UserError
from components.core.home import Home
from pipelines.report import build_report, write_report
from tests.fakes.sample_run import OUTCOMES, sample_run

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
WORDS = {
    "promoted": "Promoted",
    "first_version": "Promoted",
    "refused_contract": "Refused",
    "refused_leakage": "Refused",
    "refused_gate": "Refused",
    "rolled_back": "Rolled back",
    "inconclusive": "Inconclusive",
    "failed": "Failed",
    "awaiting_approval": "Awaiting approval",
}


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in its order; keeps tags, attributes and text by element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element of SVG that closes itself."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which has to be this one."""
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of order"

    def handle_data(self, data: str) -> None:
        """Keep text by its element."""
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def text(self) -> str:
        """All words of the page, style apart."""
        return " ".join(word for tag, words in self.texts.items() if tag != "style" for word in words)


def _page(home: Home, outcome: str, wish: str = "") -> Page:
    return Page(build_report(home, sample_run(home, outcome, wish=wish)))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_gives_a_whole_page_with_the_answer_on_top(home: Home, outcome: str) -> None:
    """The headline is the outcome, the reason follows it, and the markup is well formed."""
    page = _page(home, outcome)
    assert page.texts["h1"] == [WORDS[outcome]]
    reason = json.loads((home.run(f"laptop-{outcome.replace('_', '-')}") / "run.json").read_text())["reason"]
    assert reason in page.texts["p"]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_page_loads_nothing_and_runs_nothing(home: Home, outcome: str) -> None:
    """No script, no address of anything outside, no handler; the page's own policy forbids them as well."""
    page = _page(home, outcome)
    assert not {"script", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    assert not re.search(r"url\(|@import|@font-face", " ".join(page.texts["style"]))
    policy = next(found["content"] for tag, found in page.elements if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_texts_of_users_and_data_are_shown_as_text(home: Home) -> None:
    """A script tag in a value, a reason, a column, a group or a recipe stays text everywhere it appears."""
    for outcome in ("promoted", "refused_contract", "refused_gate", "failed"):
        page = _page(home, outcome, wish=HOSTILE)
        assert not {"script", "img"} & {tag for tag, _ in page.elements}
        assert "<script>alert(1)</script>" in page.text()
        assert "{{7*7}}" in page.text()
        assert not [found for _, found in page.elements if "onerror" in found]


def test_charts_are_well_formed_and_told_in_words(home: Home) -> None:
    """Every SVG parses as XML and has a title and a label, decorations apart."""
    text = build_report(home, sample_run(home, "promoted"))
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) >= 9
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        if root.get("aria-hidden") != "true":
            assert root.get("role") == "img"
            assert root.get("aria-label")
            assert root.findtext("title")


def test_engine_is_said_plainly(home: Home) -> None:
    """vLLM and the reference engine cannot be mistaken for each other."""
    run_id = sample_run(home, "promoted")
    assert "vLLM 0.32.0" in Page(build_report(home, run_id)).text()
    path = home.run(run_id) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "reference"}))
    assert "the reference engine, not vLLM" in Page(build_report(home, run_id)).texts["span"]


def test_refusal_shows_the_failing_rules_first(home: Home) -> None:
    """In the gate's table what did not pass stands above what passed."""
    text = build_report(home, sample_run(home, "refused_gate"))
    gate = text[text.index('id="gate"') : text.index('id="canary"')]
    assert gate.index("AUC floor") < gate.index("Model signature")
    assert "0.712" in gate
    assert "not enough evidence" in gate


def test_what_was_not_reached_is_said(home: Home) -> None:
    """A run refused by its contract shows the failing rows and names the later parts as not reached."""
    page = _page(home, "refused_contract")
    assert page.text().count("not reached") >= 6
    assert "31.12.2025" in page.text()
    assert "None registered" in page.text()


def test_empty_folder_gives_a_page(home: Home) -> None:
    """A run that left nothing still has a page that says so."""
    page = Page(build_report(home, "nothing"))
    assert page.texts["h1"] == ["Not concluded"]


@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', "null", '{"digest": 1}', "\x00\xff"])
@pytest.mark.parametrize("name", ["run.json", "records/evaluate.json", "steps/train.json", "records/statistics.json"])
def test_unreadable_file_is_named_and_the_rest_is_shown(home: Home, name: str, content: str) -> None:
    """Half a file or a wrong one costs its own part only."""
    run_id = sample_run(home, "promoted")
    (home.run(run_id) / name).write_text(content, encoding="latin-1")
    page = Page(build_report(home, run_id))
    assert page.texts["h1"]
    assert "complaint_triage_v1" in page.text()
    if content != '{"digest": 1}':
        assert name in page.text()


def test_broken_hand_over_is_shown(home: Home) -> None:
    """A model that is not the one that was evaluated makes the lineage red."""
    run_id = sample_run(home, "promoted")
    path = home.run(run_id) / "records" / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"digest": "0" * 64}))
    text = build_report(home, run_id)
    assert "does not match" in text
    assert 'class="bad" href="#lineage"' in text


def test_lineage_matches_where_everything_belongs_together(home: Home) -> None:
    """The undisturbed run shows all six hand-overs as matching."""
    page = _page(home, "promoted")
    assert page.texts["span"].count("matches") == 6


def test_margins_and_their_reason_are_said(home: Home) -> None:
    """The canary's margins are named with why they are wide on one machine."""
    assert "these margins are wide on purpose" in _page(home, "rolled_back").text()


def test_written_whole_and_again_the_same(home: Home) -> None:
    """The file holds the page and nothing is left beside it; the same run gives the same bytes."""
    run_id = sample_run(home, "promoted")
    path = write_report(home, run_id)
    first = path.read_bytes()
    assert path == home.run(run_id) / "report.html"
    assert write_report(home, run_id).read_bytes() == first
    assert not [found for found in path.parent.iterdir() if found.name.startswith(".")]


def test_run_id_that_leaves_the_home_is_refused(home: Home) -> None:
    """A run id is a plain name."""
    with pytest.raises(UserError):
        build_report(home, "../elsewhere")


def test_templates_are_part_of_the_package() -> None:
    """The template and the style lie beside the code with endings that the package data takes along."""
    folder = Path(build_report.__code__.co_filename).parent / "templates"
    assert {path.suffix for path in folder.iterdir()} == {".html", ".css"}
