"""The recipe refuses what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.core.errors import UserError
from components.core.recipe import Recipe, load_recipe, parse_recipe
from pipelines.recipes import FOLDER, locate

SHIPPED = sorted(path.stem for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_load_and_survive_their_json_form(name: str) -> None:
    """What goes through a pipeline parameter comes back as the same recipe."""
    recipe = load_recipe(locate(name))
    assert parse_recipe(recipe.to_json()) == recipe
    assert parse_recipe(recipe.to_json()).digest == recipe.digest


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("training.stepz=5", "did you mean 'steps'"),
        ("trainin.steps=5", "did you mean 'training'"),
        ("training.steps=0", "training.steps"),
        ("training.steps=many", "training.steps"),
        ("training.learning_rate=nan", "training.learning_rate"),
        ("training.steps", "path.to.key=value"),
        ("name.x=1", "is a value"),
        ("training.batch_size=33", "multiple of training.ranks"),
        ("rollout.steps=[0]", "between 1 and 100"),
        ('gate.blocking_groups=["Nobody"]', "Nobody"),
        ('gate.baselines=[{baseline="magic", margin=0.1}]', "magic"),
        ('model.name="a/b"', "model.name"),
        ('model.labels=["a", "a"]', "model.labels"),
        ("model.positive_values=[]", "model.positive_values"),
        ("rollout.steps=[50, 20]", "have to rise"),
        ("rollout.steps=[]", "rollout.steps"),
        ("rollout.alpha=0", "rollout.alpha"),
        ("source.key=[]", "source.key"),
        ("evaluation.test_share=0", "evaluation.test_share"),
        ("training.steps=3\nx=4", "path.to.key=value"),
    ],
)
def test_a_bad_override_is_one_line_with_the_key(override: str, says: str) -> None:
    """What is wrong, where, and what was meant."""
    with pytest.raises(UserError) as caught:
        load_recipe(locate("laptop"), [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_override_changes_that_key_and_the_digest() -> None:
    """The resolved recipe carries the override."""
    plain, changed = load_recipe(locate("laptop")), load_recipe(locate("laptop"), ["training.steps=7"])
    assert changed.training.steps == 7
    assert changed.digest != plain.digest
    assert changed.model_copy(update={"training": plain.training}) == plain


def test_a_date_stays_text() -> None:
    """TOML would read a bare date as a date; the recipe wants what was typed."""
    assert load_recipe(locate("laptop"), ["source.until=2025-08-01"]).source.until == "2025-08-01"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"name = ", b""])
def test_an_unreadable_recipe_is_bad_input(tmp_path: Path, content: bytes) -> None:
    """Bad bytes, bad TOML and an empty file are told apart from a fault of ours."""
    path = tmp_path / "r.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"r\.toml"):
        load_recipe(path)


@pytest.mark.parametrize("name", ["nothing", "no/such.toml"])
def test_an_unknown_recipe_is_bad_input(name: str) -> None:
    """A name that is not shipped, or a file that is not there."""
    with pytest.raises(UserError):
        load_recipe(locate(name))


@pytest.mark.parametrize(
    "uri",
    [
        "https://bob:hunter2@host/x.csv",
        "postgresql://bob:hunter2@host/db",
        "simplecache::https://bob:hunter2@host/x.csv",
        "https://host/x.csv?a=1&token=hunter2",
        "https://host/x.csv?X-Amz-Signature=hunter2",
        "https://host/x.csv?sig=hunter2",
    ],
)
def test_a_secret_in_the_source_is_refused_and_not_echoed(uri: str) -> None:
    """A recipe is stored, compiled and shown; ${NAME} is the way, and is taken."""
    with pytest.raises(UserError, match=r"\$\{NAME\}") as caught:
        load_recipe(locate("laptop"), [f'source.uri="{uri}"'])
    assert "hunter2" not in str(caught.value)
    safe = uri.replace("hunter2", "${SECRET}")
    assert load_recipe(locate("laptop"), [f'source.uri="{safe}"']).source.uri == safe


@given(st.text(min_size=1, max_size=12).filter(lambda key: key not in Recipe.model_fields))
def test_no_unknown_section_is_accepted(key: str) -> None:
    """Whatever its name, a key that is not known is refused."""
    values = load_recipe(locate("laptop")).model_dump(mode="json") | {key: {}}
    with pytest.raises(UserError):
        parse_recipe(values)
