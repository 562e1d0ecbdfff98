"""The report in a real browser: nothing is requested, nothing complains, and axe finds no serious barrier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from components.core.home import Home
from pipelines.report import write_report
from tests.fakes.sample_run import sample_run

pytestmark = pytest.mark.chromium
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "<script>document.title='pwned'</script><img src=http://127.0.0.1:9/x onerror=\"document.title='pwned'\">"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium with a profile of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")), executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        yield context
        context.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that notes each request and each console message."""
    page = browser.new_page()
    page.requests, page.complaints = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    yield page
    page.close()


@pytest.mark.parametrize("outcome", ["promoted", "refused_contract", "failed"])
def test_page_requests_nothing_and_says_nothing(page: Any, home: Home, outcome: str) -> None:
    """The only request is the file itself, and the console stays empty."""
    path = write_report(home, sample_run(home, outcome))
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    assert page.requests == [path.as_uri()]
    assert page.complaints == []


def test_hostile_values_do_not_execute(page: Any, home: Home) -> None:
    """Script and image texts in data, group names and reasons change nothing and load nothing."""
    path = write_report(home, sample_run(home, "refused_contract", run_id="hostile", wish=HOSTILE))
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    assert page.title() == "Refused: hostile"
    assert page.requests == [path.as_uri()]
    assert page.evaluate("document.querySelectorAll('script, img').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("outcome", ["promoted", "refused_gate", "inconclusive"])
def test_axe_finds_no_serious_barrier(page: Any, home: Home, outcome: str, scheme: str) -> None:
    """Contrast, headings, tables, names and focus hold in both colour schemes, with everything unfolded."""
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    page.goto(write_report(home, sample_run(home, outcome)).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(found => found.open = true)")
    found = Axe().run(page).response["violations"]
    assert [f"{item['id']}: {item['nodes'][0]['html'][:120]}" for item in found] == []


@pytest.mark.parametrize("width", [320, 400, 820, 1200])
def test_page_never_scrolls_sideways(page: Any, home: Home, width: int) -> None:
    """From a small phone to a desk the page fits its window; wide tables scroll by themselves."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(write_report(home, sample_run(home, "promoted")).as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(found => found.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_prints_on_a_few_pages(page: Any, home: Home) -> None:
    """The page prints, folded parts included, to a PDF of reasonable size."""
    page.goto(write_report(home, sample_run(home, "promoted")).as_uri())
    pdf = page.pdf(format="A4", print_background=False)
    assert pdf.startswith(b"%PDF")
    assert 1 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 14
