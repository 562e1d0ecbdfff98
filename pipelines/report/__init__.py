"""The run report: one self-contained page that a person reads without a server.

It is built from what the steps left in the run's folder. Anything may be missing: a run refused early or broken half
way still gives a page, which says what was not reached. The page loads nothing and runs no script.
"""

from __future__ import annotations

from pathlib import Path

from components.core.home import Home
from components.core.publish import write_atomic
from pipelines.report.facts import read_facts
from pipelines.report.view import page

TEMPLATES = Path(__file__).parent / "templates"
REPORT = "report.html"


def build_report(home: Home, run_id: str) -> str:
    """The page as HTML; never raises for missing or unreadable records, which it names instead.

    Raises:
        UserError: the run id is no plain name.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = Markup((TEMPLATES / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
    return environment.get_template("report.html").render(page=page(read_facts(home, run_id)), style=style)


def write_report(home: Home, run_id: str) -> Path:
    """Write `runs/<run_id>/report.html`, whole or not at all, and return its path."""
    path = home.run(run_id) / REPORT
    write_atomic(path, build_report(home, run_id))
    return path
