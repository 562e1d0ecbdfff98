"""One TOML file describes one run completely; unknown keys are refused with the nearest known key."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from components.core.clear_text import holds_secret
from components.core.digest import value_digest
from components.core.errors import UserError
from components.core.sections.base import NamePattern, Section
from components.core.sections.card import Card
from components.core.sections.data import Contract, Features, Leakage, Source
from components.core.sections.judging import BaselineMargin, Evaluation, Gate, Group
from components.core.sections.people import Approval, Lineage, Roles
from components.core.sections.serving import Monitoring, Rollout, Serving
from components.core.sections.training import Model, Resources, Training

__all__ = [
    "Approval",
    "BaselineMargin",
    "Card",
    "Contract",
    "Evaluation",
    "Features",
    "Gate",
    "Group",
    "Leakage",
    "Lineage",
    "Model",
    "Monitoring",
    "Recipe",
    "Resources",
    "Roles",
    "Rollout",
    "Section",
    "Serving",
    "Source",
    "Training",
    "load_recipe",
    "parse_recipe",
]


class Recipe(Section):
    """The whole run."""

    name: Annotated[str, Field(pattern=NamePattern)]
    source: Source
    contract: Contract
    features: Features
    model: Model
    leakage: Leakage = Leakage()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    card: Card = Card()
    serving: Serving = Serving()
    rollout: Rollout = Rollout()
    monitoring: Monitoring = Monitoring()
    resources: Resources = Resources()
    roles: Roles = Roles()
    approval: Approval = Approval()
    lineage: Lineage = Lineage()

    @property
    def digest(self) -> str:
        """sha256 of the resolved recipe."""
        return value_digest(self.model_dump(mode="json"))

    @property
    def evaluation_digest(self) -> str:
        """sha256 of all that evidence depends on: the evaluation section and the threshold of a decision."""
        return value_digest([self.evaluation.model_dump(mode="json"), self.serving.threshold])

    def to_json(self) -> str:
        """The resolved recipe as canonical JSON, for pipeline parameters."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply `path.to.key=value` overrides (values in TOML syntax, else taken as text).

    Raises:
        UserError: the file is absent or not TOML, a key is unknown or a value does not fit; one line with the key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"recipe {path}: no such file; see `pilotline run --help` for the recipes shipped") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {path}: cannot be read ({error}); give a UTF-8 TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {path}: not valid TOML ({error}); mend that line") from error
    for override in overrides:
        _apply(values, override)
    return parse_recipe(values, where=f"recipe {path.name}")


def parse_recipe(values: dict[str, Any] | str, where: str = "recipe") -> Recipe:
    """Build a recipe from plain values or from `Recipe.to_json`; UserError as in `load_recipe`."""
    try:
        if isinstance(values, str):
            values = json.loads(values)
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error)}") from error
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from error
    _check_together(recipe, where)
    return recipe


def _refuse_secrets(uri: str, key: str, where: str) -> None:
    """A recipe is stored, compiled and shown: a password or token in it would be everywhere. Never echoes it."""
    if holds_secret(uri):
        raise UserError(
            f"{where}: {key} holds a password or token in clear text; write ${{NAME}} in its place, which is "
            "filled from the environment when it is used"
        )


def _apply(values: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    parts = key.strip().split(".")
    if not sep or not all(parts) or "\n" in text:
        raise UserError(f"--set {override!r}: write it as path.to.key=value, for example training.steps=200")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if not isinstance(value, (bool, int, float, str, list, dict)):  # a TOML date stays the text that was typed
        value = text
    table = values
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: {part} is a value, not a section")
    table[parts[-1]] = value


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"unknown key {where!r}{_nearest(first['loc'])}{more}"
    if first["type"] == "missing":
        return f"key {where!r} is missing; add it{more}"
    seen = str(first.get("input"))
    return f"{where}: {first['msg']}, got {'a value with a secret' if holds_secret(seen) else repr(seen[:60])}{more}"


def _nearest(loc: tuple[int | str, ...]) -> str:
    known = list(Recipe.model_fields)
    section = Recipe.model_fields.get(str(loc[0])) if len(loc) > 1 else None
    if section is not None and isinstance(section.annotation, type) and issubclass(section.annotation, Section):
        known = list(section.annotation.model_fields)
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"


def _check_together(recipe: Recipe, where: str) -> None:
    """Rules that span keys."""
    training, evaluation = recipe.training, recipe.evaluation
    _refuse_secrets(recipe.source.uri, "source.uri", where)
    _refuse_secrets(recipe.features.online, "features.online", where)
    _refuse_secrets(recipe.lineage.url, "lineage.url", where)
    _check_people(recipe, where)
    _check_kept(recipe, where)
    if taken := [name for name in ("text", "event_timestamp") if name in recipe.features.request]:
        raise UserError(f"{where}: features.request: every request carries {taken[0]!r}; leave it out")
    if recipe.model.labels[0] == recipe.model.labels[1]:
        raise UserError(f"{where}: model.labels are the same word twice; the two answers need different ones")
    if list(recipe.rollout.steps) != sorted(set(recipe.rollout.steps)):
        raise UserError(f"{where}: rollout.steps have to rise, got {list(recipe.rollout.steps)}")
    _check_training(training, where)
    if evaluation.test_share + evaluation.validation_share >= 0.9:
        raise UserError(f"{where}: evaluation.test_share and validation_share leave under a tenth for training")
    if not recipe.model.initial and training.tuning == "lora":
        raise UserError(f"{where}: training.tuning lora adapts a trained model; name one in model.initial")
    if recipe.model.hidden_size % recipe.model.heads:
        raise UserError(f"{where}: model.hidden_size must be a multiple of model.heads")
    if any(not 0 < step <= 100 for step in recipe.rollout.steps):
        raise UserError(f"{where}: rollout.steps are percentages between 1 and 100, got {list(recipe.rollout.steps)}")
    looked_at = {group.name for group in evaluation.groups} | {f"{a} & {b}" for a, b in evaluation.intersections}
    named = {name for name in recipe.gate.blocking_groups if name.partition("=")[0] not in evaluation.slices}
    unknown = named - looked_at
    if unknown:
        raise UserError(f"{where}: gate.blocking_groups names {min(unknown)!r}, which is no evaluation group")
    unknown = {margin.baseline for margin in recipe.gate.baselines} - set(evaluation.baselines)
    if unknown:
        raise UserError(f"{where}: gate.baselines names {min(unknown)!r}, which evaluation.baselines does not run")


def _check_kept(recipe: Recipe, where: str) -> None:
    """What is kept of a subject can be forgotten again."""
    serving = recipe.serving
    _refuse_secrets(serving.log_store, "serving.log_store", where)
    if serving.review_from > serving.review_below:
        raise UserError(f"{where}: serving.review_from is above serving.review_below; no score lies between")
    if serving.subject and serving.subject not in recipe.features.entities:
        known = ", ".join(recipe.features.entities)
        raise UserError(f"{where}: serving.subject {serving.subject!r} is no entity of features.entities ({known})")
    if serving.keep_text == "encrypted" and not serving.subject:
        raise UserError(f"{where}: serving.keep_text encrypted needs serving.subject, whose key it is encrypted with")
    if serving.keep_text == "plain" and serving.subject:
        raise UserError(f"{where}: serving.keep_text plain cannot be forgotten with serving.subject; use encrypted")


def _check_training(training: Training, where: str) -> None:
    """Batch = micro-batch x accumulation x ranks, and what ZeRO's stages can offload."""
    batch, ranks, accumulation = training.batch_size, training.ranks, training.accumulation
    if batch % ranks:
        raise UserError(f"{where}: training.batch_size {batch} is not a multiple of training.ranks {ranks}")
    if batch % (ranks * accumulation):
        raise UserError(
            f"{where}: training.batch_size {batch} is not a multiple of training.ranks {ranks} x training.accumulation "
            f"{accumulation}; take {max(1, round(batch / (ranks * accumulation))) * ranks * accumulation}"
        )
    if training.offload_optimizer != "none" and not training.zero_stage:
        raise UserError(
            f"{where}: training.offload_optimizer needs training.zero_stage 1 or more; ZeRO 0 has no shards"
        )
    if training.offload_parameters != "none" and training.zero_stage != 3:
        raise UserError(f"{where}: training.offload_parameters needs training.zero_stage 3, got {training.zero_stage}")


def _check_people(recipe: Recipe, where: str) -> None:
    """As many people have to be able to approve as are asked for."""
    roles, approval = recipe.roles, recipe.approval
    named = set(approval.approvers or roles.approves)
    if any((roles.runs, roles.approves, roles.reads)):
        named &= set(roles.approves)
    elif not approval.approvers:
        return  # anybody may
    if len(named) < approval.required:
        raise UserError(
            f"{where}: approval.required is {approval.required}, but only {len(named)} named in approval.approvers and "
            "roles.approves can approve; name more"
        )
