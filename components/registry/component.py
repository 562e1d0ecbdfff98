"""The Kubeflow wrappers of registration and promotion."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def register(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    model: dsl.Input[dsl.Model],
    training_set: dsl.Input[dsl.Dataset],
    evidence: dsl.Input[dsl.Artifact],
    version: dsl.Output[dsl.Artifact],
) -> bool:
    """Register the model with its digests and judge it at the gate; returns whether the gate passes.

    Args:
        home: Folder that holds all state.
        run_id: Name of this run.
        recipe: The resolved recipe as JSON.
        code_version: Digest of the code.
        model: The trained model.
        training_set: Its training set.
        evidence: Its evaluation.
        version: The registered version with the gate's table and the model card.
    """
    from contextlib import closing
    from pathlib import Path

    from components.core.ledger import Ledger
    from components.core.steps import read_record, running
    from components.registry.register import register as register_model
    from components.tracking.mlflow_tracking import Tracking

    with running("register", home, run_id, recipe) as step, closing(Ledger(step.home.ledger_url)) as ledger:
        ref = register_model(
            step.recipe, Path(model.path), Path(training_set.path), Path(evidence.path), Path(version.path),
            Tracking.at(step.home), ledger, step.home.models, run_id, code_version,
            contract_digest=(read_record(step.home, run_id, "validate") or {}).get("contract_digest", ""),
        )  # fmt: skip
        version.metadata["digest"] = ref.record_digest
        step.keep(ref)
        return ref.gate_passed


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def promote(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    version: dsl.Input[dsl.Artifact],
    report: dsl.Input[dsl.Artifact],
) -> str:
    """Make the candidate champion, or note why it was stopped; returns the outcome.

    Args:
        home: Folder that holds all state.
        run_id: Name of this run.
        recipe: The resolved recipe as JSON.
        code_version: Digest of the code.
        version: The registered candidate.
        report: How it met traffic.
    """
    from contextlib import closing
    from pathlib import Path

    from components.core.ledger import Ledger
    from components.core.steps import running
    from components.registry.promote import promote as promote_version
    from components.registry.promote import read_inputs
    from components.tracking.mlflow_tracking import Tracking

    with running("promote", home, run_id, recipe) as step, closing(Ledger(step.home.ledger_url)) as ledger:
        candidate, met = read_inputs(Path(version.path), Path(report.path))
        promotion = promote_version(candidate, met, ledger, Tracking.at(step.home), run_id)
        step.keep(promotion)
        return promotion.outcome
