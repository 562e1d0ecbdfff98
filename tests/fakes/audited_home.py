"""A home in which versions were promoted and decisions were made, as runs leave it, without the minutes of a run."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from components.core import contracts
from components.core.contracts import ContractRef
from components.core.digest import file_digest, value_digest
from components.core.home import Home
from components.core.ledger import Ledger
from components.core.people import Person, Policy, note_start
from components.core.records import ContractVerdict, ModelVersionRef, Record, RuleResult, SnapshotRef
from components.models.files import model_digest
from components.models.signing import Signer
from components.models.spec import spec_for
from components.registry.approvals import approve
from components.registry.decision_signature import signed
from components.registry.promote import promote
from components.registry.store import keep_model
from components.registry.trust import pin_first
from components.serving.decision_log import DECISION_LOG, DecisionLog, Keeping, kept_text
from components.serving.decision_log.keys import SubjectKeys
from components.tracking.mlflow_tracking import Tracking
from pipelines.outcome import conclude, store
from pipelines.settling import settle
from tests.fakes.judged import good_evidence, model_ref, publish_training_set, rollout_report
from tests.fakes.serving_case import make_model, tiny_recipe

NAME = "tiny"
CONTRACT = "contract of the test\n"
FEATURES = {"count": 12.0, "rate": None}
TEXT = "my card was charged twice"


class AuditedHome:
    """Versions of model `tiny` by runs `run-1`, `run-2`; `decide` makes a decision as the service logs it."""

    def __init__(self, root: Path) -> None:
        self.home, self.root = Home.at(root / "home"), root
        self.tracking = Tracking.at(self.home)
        self.models = {number: make_model(root / f"model-{number}", seed=int(number)) for number in ("1", "2", "3")}
        self.digests = {number: model_digest(folder) for number, folder in self.models.items()}
        self.scorers = {number: spec_for("causal_lm").scorer(folder) for number, folder in self.models.items()}
        self.decided = 0

    def promote(self, number: str, before: str = "", policy: dict[str, Any] | None = None) -> str:
        """A run that registers and promotes a version; with a policy it ends awaiting approval. Returns its outcome."""
        run_id = f"run-{number}"
        recipe = tiny_recipe(**({"approval": policy} if policy else {}))
        version = self._records(run_id, number, before)
        keep_model(self.models[number], version.digest, self.home.models)
        kept = self.home.models / version.digest / "model"
        made = self.tracking.ensure_version(NAME, version.digest, kept, "", {"pilotline.key": number})
        assert made == number
        note_start(self.home, run_id, Person("ana", "--as", "tester"))
        with closing(Ledger(self.home.ledger_url)) as ledger:
            payload = {"name": NAME, "version": number, "digest": version.digest, "event": "registered"}
            payload |= {"reason": "gate passed", "run_id": run_id, "auc": 0.85, "record": version.to_dict()}
            signer = Signer.at(self.home, {}) if number != "1" else None  # the first one is unsigned
            trusted = pin_first(ledger, signer.public_key) if signer else []
            ledger.append("candidate", f"registered:{run_id}", signed(payload, signer, trusted))
            report = rollout_report(version)
            self._keep(run_id, "rollout", report)
            ended = promote(
                version, report, ledger, self.tracking, run_id, policy=Policy.of(recipe), requesters=("ana",)
            )
        self._keep(run_id, "promote", ended)
        folder = self.home.run(run_id)
        (folder / "recipe.json").write_text(recipe.to_json())
        (folder / "steps").mkdir(exist_ok=True)
        note = {"name": "promote", "status": "done", "started": time.time(), "seconds": 0.1}
        (folder / "steps" / "promote.json").write_text(json.dumps(note))
        outcome = conclude(self.home, run_id, recipe, "src-0123456789abcdef")
        store(self.home, outcome)
        return outcome.outcome

    def approve(self, number: str, who: str) -> str:
        """A person approves; returns the outcome of the run."""
        with closing(Ledger(self.home.ledger_url)) as ledger:
            person = Person(who, "--as", "tester")
            approve(NAME, number, person, "fine", ledger, self.tracking, self.home.models)
        settled = settle(self.home, f"run-{number}")
        assert settled is not None
        return settled.outcome

    def decide(
        self,
        number: str,
        run_id: str,
        keep: str = "plain",
        arm: str = "stable",
        into: Path | None = None,
        **changes: Any,
    ) -> str:
        """A decision by a version, with the score that it really gives; returns its id. `into`: another home."""
        import pandas as pd

        self.decided += 1
        renderer = spec_for("causal_lm").renderer(self.models[number])
        frame = pd.DataFrame({"count": [12.0], "rate": [float("nan")], "text": [TEXT]})
        score = float(self.scorers[number].score(frame)[0])
        decision_id = f"{self.decided:032x}"
        about = {"as_of": "2026-01-01T00:00:00+00:00", "fresh": True}
        values: dict[str, Any] = {
            "id": decision_id,
            "status": "ok",
            "failure": "",
            "drawn": arm,
            "weight": 0.5,
            "answered_by": arm,
            "model": NAME,
            "version": number,
            "digest": self.digests[number],
            "label": renderer.label(score, 0.5),
            "score": score,
            "threshold": 0.5,
            "prompt_digest": value_digest(renderer.token_ids(FEATURES, TEXT)),
            "seconds": 0.01,
            "model_seconds": 0.005,
            "entities": {"shop": "shop-1"},
            "features": {name: {"value": value, **about} for name, value in FEATURES.items()},
            **(kept_text(TEXT, keep) if keep != "encrypted" else {"text": TEXT}),
        }
        folder = into or self.home.root
        keeping = Keeping("encrypted", "shop", SubjectKeys.at(folder)) if keep == "encrypted" else None
        log = DecisionLog(folder / DECISION_LOG, run_id, keeping)
        log.decision(**(values | changes))
        log.close()
        return decision_id

    def _records(self, run_id: str, number: str, before: str) -> ModelVersionRef:
        """What the steps of a run keep, each naming the one before by its digest."""
        snapshot = self._snapshot(run_id)
        contract = self._contract(snapshot)
        verdict = ContractVerdict(
            passed=True, contract=contract.identity, version=contract.version, contract_digest=contract.digest,
            snapshot_digest=snapshot.digest, rows=10, clean=9, quarantined=1, engine="duckdb", checks=(),
        )  # fmt: skip
        rows = replace(publish_training_set(self.root / f"rows-{number}", rows=30), snapshot_digest=snapshot.digest)
        model = replace(model_ref(self.digests[number], rows), training_set_digest=rows.digest)
        evidence = good_evidence(model_digest=model.digest, training_set_digest=rows.digest)
        rule = RuleResult(rule="min_auc", outcome="pass", observed=0.85, limit=0.6)
        version = ModelVersionRef(
            name=NAME, version=number, digest=model.digest, gate_passed=True, gate=(rule,), champion_version=before,
            champion_digest=self.digests[before] if before else "", evidence_digest=evidence.record_digest,
            reason="gate passed",
        )  # fmt: skip
        kept: dict[str, Record] = {
            "ingest": snapshot, "validate": verdict, "featurise": rows, "train": model, "evaluate": evidence,
            "register": version,
        }  # fmt: skip
        for step, record in kept.items():
            self._keep(run_id, step, record)
        return version

    def _snapshot(self, run_id: str) -> SnapshotRef:
        place = self.root / f"data-{run_id}"
        place.write_text(f"rows of {run_id}")
        digest = file_digest(place)
        kept = self.home.snapshots / digest
        kept.mkdir(parents=True, exist_ok=True)
        place.rename(kept / "data.parquet")
        return SnapshotRef(
            digest=digest, rows=10, columns=("id",), time_column="t", time_min="2026-01-01", time_max="2026-02-01",
            source="x.csv", since="", until="",
        )  # fmt: skip

    def _contract(self, snapshot: SnapshotRef) -> ContractRef:
        path = self.root / "contract.yaml"
        path.write_text(CONTRACT)
        contract = ContractRef("complaints", "1.0.0", file_digest(path))
        contracts.keep(self.home, path, contract.digest)
        contracts.name(self.home, snapshot.digest, contract)
        return contract

    def _keep(self, run_id: str, step: str, record: Record) -> None:
        path = self.home.run(run_id) / "records" / f"{step}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record.to_dict(), indent=1, sort_keys=True))
