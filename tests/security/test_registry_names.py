"""Failures 27 and 28 where a person or a user's text reaches the registry: names and hostile texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.core.errors import UserError
from components.core.home import Home, safe_name
from components.core.recipe import load_recipe
from components.registry.gate import judge, passed, refusal
from components.registry.trust import trust
from pipelines.cli import main
from tests.fakes.gating import STRICT, full_evidence, handed, interval
from tests.fakes.judged import ledger_of, small_recipe

ODD = [
    "a/b",
    "../x",
    "a\nb",
    "%2e%2e",
    ".hidden",
    "..",
    "a b",
    "tri\u0430ge",
    "a\u2215b",
    "",
    "x" * 200,
    "a\x00b",
    "a\\b",
]
VERBS = [("show", 2), ("history", 1), ("verify", 2), ("card", 2), ("repair", 1)]
MOVES = [("promote", 2), ("rollback", 1), ("approve", 2), ("reject", 2)]


@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.parametrize(("verb", "names"), [*VERBS, *MOVES])
def test_failure27_the_command_refuses_odd_names_and_writes_nothing_outside(
    tmp_path: Path, capsys: Any, verb: str, names: int, name: str
) -> None:
    """Every verb of `pilotline models`: exit status 2 or 3, one line, and no file but those of the home.

    A verb that only reads makes no home where there is none.
    """
    home = tmp_path / "in" / "home"
    reason = ["--reason", "why"] if (verb, names) in MOVES else []
    argv = ["models", verb, "--home", str(home), *reason, "--", name, *(["1"] if names == 2 else [])]
    assert main(argv) in (2, 3)
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    written = [path for path in tmp_path.rglob("*") if path not in (tmp_path / "in", home)]
    assert [path for path in written if not path.is_relative_to(home)] == []


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_failure27_a_recipe_refuses_odd_model_names(tmp_path: Path, name: str) -> None:
    """When it is read, before anything is done."""
    if "\x00" in name:
        pytest.skip("no TOML file can hold it")
    import json

    values = small_recipe().model_dump(mode="json")
    path = tmp_path / "recipe.toml"
    lines = [f"name = {json.dumps(values.pop('name'))}"]
    for section, content in values.items():
        if section in ("source", "contract", "features", "model", "evaluation", "gate"):
            lines += [
                f"[{section}]",
                *(f"{key} = {_toml(value)}" for key, value in content.items() if value is not None),
            ]
    good = "\n".join(lines)
    path.write_text(good)
    load_recipe(path)
    path.write_text(good.replace('name = "triage"', f"name = {json.dumps(name)}"))
    with pytest.raises(UserError, match=r"model\.name|model name"):
        load_recipe(path)


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    import json

    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value)


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_failure27_a_run_id_names_no_other_folder(tmp_path: Path, name: str) -> None:
    """The folder of a run lies in the home's runs, or there is none."""
    with pytest.raises(UserError):
        Home.at(tmp_path).run(name)
    with pytest.raises(UserError):
        safe_name(name, "name")


def test_a_key_file_is_not_trusted_because_of_its_name(tmp_path: Path) -> None:
    """A reason with a newline stays one line in the ledger."""
    from components.models.signing import public_key_at

    ledger = ledger_of(tmp_path)
    key = public_key_at(Home.at(tmp_path), {})
    assert "\n" not in trust(ledger, key, "one\ntwo")["reason"]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"invalid_rate": interval(0.03, 90)}, "invalid_rate"),
        ({"invalid_rate": None}, "invalid_rate"),
        ({"injection": {"mean_shift": interval(0.4, 90), "flip_rate": interval(0.02, 90)}}, "robustness injection"),
        ({"injection": {"mean_shift": interval(0.01, 90), "flip_rate": interval(0.4, 90)}}, "robustness injection"),
        ({"injection": {}}, "robustness injection"),
    ],
)
def test_failure28_a_model_that_users_texts_can_steer_is_refused(changes: dict[str, Any], rule: str) -> None:
    """Answers outside of the closed set of labels, or scores that hostile texts move; unmeasured is refused too."""
    found = full_evidence()
    if "injection" in changes:
        changes = {"robustness": found.robustness | changes}
    steered = replace(found, **changes)
    rules = judge(steered, STRICT, champion_version="4", handed=handed(steered))
    assert not passed(rules)
    assert refusal(rules).startswith(rule)


def test_failure28_the_shipped_recipe_gates_the_invalid_rate_and_injection() -> None:
    """The rule is not only there, it is switched on."""
    gate = load_recipe(Path("pipelines/recipes/laptop.toml")).gate
    assert gate.max_invalid_rate is not None
    assert "injection" in gate.max_mean_shift
    assert "injection" in gate.max_flip_rate
