"""The roll-out step for Kubeflow."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def rollout(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    engine: str,
    version: dsl.Input[dsl.Artifact],
    training_set: dsl.Input[dsl.Dataset],
    evidence: dsl.Input[dsl.Artifact],
    report: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.Markdown],
) -> bool:
    """Serve the version beside the champion, replay requests, and say whether it may take over.

    Args:
        home: Folder that holds Pilotline's state.
        run_id: Name of the run.
        recipe: The resolved recipe as JSON.
        code_version: Revision of the code.
        engine: vllm, reference or auto.
        version: The registered version.
        training_set: Its training set; the test rows are replayed.
        evidence: Its evaluation; the candidate has to give the same scores.
        report: The rollout's verdict, timeline and figures.
        page: The same for people.

    Returns:
        Whether the candidate passed.
    """
    from contextlib import closing
    from functools import partial
    from pathlib import Path

    from components.core.ledger import Ledger
    from components.core.records import ModelVersionRef
    from components.core.steps import running
    from components.core.wiring import wired
    from components.rollout.page import page_markdown
    from components.rollout.rollout import roll_out

    with running("rollout", home, run_id, recipe) as step:
        places = [Path(artifact.path) for artifact in (version, training_set, evidence)]
        digests = {"candidate": (ref := ModelVersionRef.read(places[0])).digest, "stable": ref.champion_digest}
        dirs = {role: step.home.models / digest / "model" if digest else None for role, digest in digests.items()}
        opening = partial(wired("open_stack"), step, engine, places[1])
        with closing(Ledger(step.home.ledger_url)) as ledger:
            given = (places[0], places[1], places[2], Path(report.path))
            told = roll_out(step.recipe, *given, opening, dirs, ledger, run_id)
        report.metadata.update({"digest": told.record_digest, "outcome": told.outcome, "engine": told.engine})
        Path(page.path).write_text(page_markdown(told))
        step.keep(told)
        return told.outcome == "passed"
