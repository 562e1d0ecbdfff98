"""A pipeline from a finished model to promotion, with a rollout that only says passed."""

from kfp import dsl

from components.core.image import IMAGE
from components.evaluation.component import evaluate
from components.registry.component import promote, register


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def hand_over(folder: str, out: dsl.Output[dsl.Artifact]):  # type: ignore[no-untyped-def] # kfp reads the signature
    """Give a published folder to the next step.

    Args:
        folder: The folder.
        out: A copy of it.
    """
    import shutil

    shutil.copytree(folder, out.path)


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def pass_rollout(version: dsl.Input[dsl.Artifact], report: dsl.Output[dsl.Artifact]):  # type: ignore[no-untyped-def]
    """Say that the version passed its rollout.

    Args:
        version: The version.
        report: A report that says so.
    """
    from pathlib import Path

    from components.core.publish import publishing
    from components.core.records import ModelVersionRef
    from tests.fakes.judged import rollout_report

    with publishing(Path(report.path)) as staging:
        rollout_report(ModelVersionRef.read(Path(version.path))).write(staging)


@dsl.pipeline(name="judge-and-promote")
def judge_and_promote(home: str, run_id: str, recipe: str, inputs: str) -> None:
    """Evaluate, register and promote.

    Args:
        home: Folder of state.
        run_id: Name of the run.
        recipe: The recipe as JSON.
        inputs: Folder with rows/, model/, clean/ and handover/.
    """
    common = {"home": home, "run_id": run_id, "recipe": recipe, "code_version": "code"}
    rows = hand_over(folder=f"{inputs}/rows").outputs["out"]
    model = hand_over(folder=f"{inputs}/model").outputs["out"]
    clean = hand_over(folder=f"{inputs}/clean").outputs["out"]
    handover = hand_over(folder=f"{inputs}/handover").outputs["out"]
    evidence = evaluate(training_set=rows, model=model, handover=handover, **common).outputs["evidence"]
    kept = register(model=model, training_set=rows, evidence=evidence, clean=clean, handover=handover, **common)
    with dsl.If(kept.outputs["Output"] == True):  # noqa: E712 - builds a condition
        version = kept.outputs["version"]
        promote(version=version, report=pass_rollout(version=version).outputs["report"], **common)
