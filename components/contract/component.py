"""The Kubeflow components of the data contract: before the features, and before training."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def validate(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    snapshot: dsl.Input[dsl.Dataset],
    clean: dsl.Output[dsl.Dataset],
    page: dsl.Output[dsl.HTML],
) -> bool:
    """Check a snapshot against its data contract; set broken rows aside or refuse the batch.

    Args:
        home: Folder or volume that holds all state.
        run_id: Name of the run.
        recipe: The resolved recipe as JSON; names the contract.
        code_version: Revision of the code; part of the cache key.
        snapshot: Folder that ingestion published.
        clean: Folder with clean.parquet, quarantine.parquet, profile.json and record.json.
        page: The verdict for people, rule by rule.

    Returns:
        Whether the contract holds.
    """
    from pathlib import Path

    from components.contract.evolution.accepted import contract_of
    from components.contract.meaning.profile_history import accept, history_of_run
    from components.contract.page import masked_examples, verdict_page
    from components.contract.validate import validate_snapshot
    from components.core.publish import write_atomic
    from components.core.steps import running

    with running("validate", home, run_id, recipe) as step:
        judged = contract_of(step.home, Path(snapshot.path), step.recipe)
        verdict = validate_snapshot(
            step.recipe,
            Path(snapshot.path),
            Path(clean.path),
            contract=judged.path,
            extra=judged.results,
            history=history_of_run(step, Path(snapshot.path), judged.path),
            now=judged.now,
        )
        clean.metadata["digest"] = verdict.record_digest
        write_atomic(Path(page.path), verdict_page(verdict, Path(clean.path), judged.path))
        step.keep(verdict)
        step.keep_beside("quarantine", {"rows": masked_examples(Path(clean.path), judged.path)})
        judged.accept(verdict, run_id)
        accept(step.home, Path(clean.path), verdict)
    return verdict.passed


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def guard(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    clean: dsl.Input[dsl.Dataset],
    training_set: dsl.Input[dsl.Dataset],
    handover: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
) -> bool:
    """Check what the feature step hands to training: its contract, its times, and that no outcome leaks.

    Args:
        home: Folder or volume that holds all state.
        run_id: Name of the run.
        recipe: The resolved recipe as JSON; names both contracts and the limits of the guards.
        code_version: Revision of the code; part of the cache key.
        clean: Rows that passed the data contract, from which the training set was made.
        training_set: Folder that featurise published.
        handover: Folder with record.json: every rule with what was seen.
        page: The same for people.

    Returns:
        Whether training may begin.
    """
    from pathlib import Path

    from components.contract.handover import guard_training_set
    from components.contract.handover_page import handover_page
    from components.core.publish import write_atomic
    from components.core.steps import running

    with running("guard", home, run_id, recipe) as step:
        verdict = guard_training_set(step.recipe, Path(clean.path), Path(training_set.path), Path(handover.path))
        handover.metadata["digest"] = verdict.record_digest
        write_atomic(Path(page.path), handover_page(verdict))
        step.keep(verdict)
    return verdict.passed
