"""What the local service needs of the ledger's champion: recipe, training set, model directory and golden row."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.protocols import GoldenRow
from components.core.recipe import Recipe, parse_recipe
from components.core.records import TrainingSetRef
from components.core.steps import read_record
from components.models.feature_source import FeatureSource
from components.registry.champions import CANDIDATE, PROMOTION, champion
from components.rollout.golden import golden_row
from components.rollout.replay import Replay

GOLDEN_ROWS = 16


@dataclass(frozen=True)
class Servable:
    """A version as it is served; `golden` is what it has to score as registered, None where nothing was kept."""

    name: str
    version: str
    digest: str
    run_id: str
    recipe: Recipe
    model_dir: Path
    training_set: Path
    golden: GoldenRow | None

    @property
    def source(self) -> FeatureSource:
        """The features that it reads."""
        return FeatureSource.of(TrainingSetRef.read(self.training_set), self.recipe.features.model_inputs)


def champion_of(home: Home, name: str = "") -> tuple[str, str, str]:
    """Name, version and digest of the champion; of the only model where none is named.

    Raises:
        UserError: nothing was promoted yet, or several models were and none is named.
    """
    with closing(Ledger(home.ledger_url)) as ledger:
        names = sorted({str(entry.payload["name"]) for entry in ledger.entries(PROMOTION)})
        if not name and len(names) > 1:
            raise UserError(f"models {', '.join(names)} have champions; name one with --name")
        found = champion(name or names[0], ledger) if name or names else None
    if found is None:
        raise UserError("no version is champion yet; `pilotline run` trains and promotes one")
    return name or names[0], found.version, found.digest


def servable(home: Home, name: str, version: str, digest: str) -> Servable:
    """Look up what serves a version.

    Raises:
        IntegrityError: the run that registered it, or what that run made, is not in this home.
    """
    run_id = _registered_by(home, name, version, digest)
    path = home.run(run_id) / "recipe.json"
    if not path.exists():
        raise IntegrityError(f"{name} version {version}: run {run_id} is not in this home; serve where it was made")
    recipe = parse_recipe(path.read_text())
    training_set = _training_set(home, run_id)
    golden = _golden(home, run_id, training_set, recipe)
    return Servable(name, version, digest, run_id, recipe, home.models / digest / "model", training_set, golden)


def _registered_by(home: Home, name: str, version: str, digest: str) -> str:
    with closing(Ledger(home.ledger_url)) as ledger:
        for entry in reversed(ledger.entries(CANDIDATE)):
            told = entry.payload
            if (told["name"], told["version"], told.get("digest")) == (name, version, digest) and "record" in told:
                return str(told["run_id"])
    raise IntegrityError(f"{name} version {version}: the ledger does not know which run registered it")


def _training_set(home: Home, run_id: str) -> Path:
    """The published training set of a run, by the digest in its record."""
    record = read_record(home, run_id, "featurise")
    for path in sorted(published(home, run_id, "featurise")):
        if record and TrainingSetRef.read(path).digest == record["digest"]:
            return path
    raise IntegrityError(f"run {run_id}: its training set is not in {home.pipeline_root}; run it again with --force")


def _golden(home: Home, run_id: str, training_set: Path, recipe: Recipe) -> GoldenRow | None:
    for path in published(home, run_id, "evaluate"):
        if (path / "predictions.parquet").exists():
            replay = Replay.read(training_set, path, recipe.rollout.seed)
            return golden_row(replay.golden(GOLDEN_ROWS), replay.evaluated, recipe.rollout.golden_tolerance)
    return None


def published(home: Home, run_id: str, step: str) -> list[Path]:
    """Folders that a step's attempts published."""
    return [path.parent for path in (home.pipeline_root / run_id).glob(f"*/{step}/*/record.json")]
