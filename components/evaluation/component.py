"""The Kubeflow wrapper of the evaluation."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    training_set: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    handover: dsl.Input[dsl.Artifact],
    evidence: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    roc: dsl.Output[dsl.ClassificationMetrics],
    page: dsl.Output[dsl.HTML],
    notes: dsl.Output[dsl.Markdown],
) -> float:
    """Score the untouched test rows once, beside baselines, by group and against the champion; returns the AUC.

    Args:
        home: Folder that holds all state.
        run_id: Name of this run.
        recipe: The resolved recipe as JSON.
        code_version: Digest of the code.
        training_set: The training set with its test split.
        model: The trained model.
        handover: The guard's verdict on the training set.
        evidence: What the test rows say.
        metrics: Test metrics.
        roc: ROC curve and confusion matrix at the serving threshold.
        page: The evidence as a page.
        notes: The evidence in a few lines.
    """
    from pathlib import Path

    from components.core.steps import read_record, running
    from components.evaluation.evaluate import evaluate as evaluate_model
    from components.evaluation.kubeflow_view import show
    from components.evaluation.opponent import champion_of
    from components.evaluation.windows import WindowsInHome
    from components.models.trusted import keys_at

    with running("evaluate", home, run_id, recipe) as step:
        found = evaluate_model(
            step.recipe, Path(training_set.path), Path(model.path), Path(evidence.path), champion_of(step),
            handover=Path(handover.path), windows=WindowsInHome(step.home.test_windows),
            public_keys=keys_at(step.home),
            contract_digest=(read_record(step.home, run_id, "validate") or {}).get("contract_digest", ""),
        )  # fmt: skip
        evidence.metadata["digest"] = found.record_digest
        show(step.recipe, Path(evidence.path), metrics, roc, Path(page.path), Path(notes.path))
        step.keep(found)
        return float(found.metrics["auc"].value or 0.0)
