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
    clean: dsl.Input[dsl.Dataset],
    handover: dsl.Input[dsl.Artifact],
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
        clean: The data contract's verdict on the rows behind it.
        handover: The guard's verdict on the training set.
        version: The registered version with the gate's table, the model card and the bill of materials.
    """
    from contextlib import closing
    from pathlib import Path

    from components.core.ledger import Ledger
    from components.core.steps import running
    from components.models.signing import public_key_at, signer_at
    from components.registry.given import Folders
    from components.registry.register import Place
    from components.registry.register import register as register_model
    from components.tracking.mlflow_tracking import Tracking

    with running("register", home, run_id, recipe) as step, closing(Ledger(step.home.ledger_url)) as ledger:
        given = Folders(*(Path(item.path) for item in (model, training_set, evidence, clean, handover)))
        key = public_key_at(step.home)
        place = Place(Tracking.at(step.home), ledger, step.home.models, key, signer_at(step.home))
        ref = register_model(step.recipe, given, Path(version.path), place, run_id, code_version)
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
    started_by: str = "",
) -> str:
    """Make the candidate champion, ask for approval, or note why it was stopped; returns the outcome.

    Args:
        home: Folder that holds all state.
        run_id: Name of this run.
        recipe: The resolved recipe as JSON.
        code_version: Digest of the code.
        version: The registered candidate.
        report: How it met traffic.
        started_by: Who submitted the run; empty takes what the home notes.
    """
    from contextlib import closing
    from pathlib import Path

    from components.core.ledger import Ledger
    from components.core.people import Policy, starters
    from components.core.steps import running
    from components.registry.aliases import check_chain
    from components.registry.promote import promote as promote_version
    from components.registry.promote import read_inputs
    from components.tracking.mlflow_tracking import Tracking

    with running("promote", home, run_id, recipe) as step, closing(Ledger(step.home.ledger_url)) as ledger:
        candidate, met = read_inputs(Path(version.path), Path(report.path))
        tracking = Tracking.at(step.home)
        check_chain(candidate.name, ledger, tracking)
        promotion = promote_version(
            candidate, met, ledger, tracking, run_id,
            policy=Policy.of(step.recipe), models_root=step.home.models,
            requesters=(started_by,) if started_by else starters(step.home, run_id),
        )  # fmt: skip
        step.keep(promotion)
        return promotion.outcome
