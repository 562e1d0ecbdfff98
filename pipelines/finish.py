"""The last step of every run, whatever happened: the outcome in words, the ledger entry and the report."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def finish(
    home: str,
    run_id: str,
    recipe: str,
    code_version: str,
    page: dsl.Output[dsl.HTML],
) -> str:
    """State the outcome of the run and write its report.

    Args:
        home: Folder that holds all state.
        run_id: Name of this run.
        recipe: The resolved recipe as JSON.
        code_version: Digest of the code.
    """
    from pathlib import Path

    from components.core.home import Home
    from components.core.publish import write_atomic
    from components.core.recipe import parse_recipe
    from pipelines.cluster_serving import settle_after
    from pipelines.outcome import conclude, store
    from pipelines.report import write_report

    place = Home.at(home)
    write_atomic(place.run(run_id) / "recipe.json", recipe)
    outcome = conclude(place, run_id, parsed := parse_recipe(recipe), code_version)
    report = write_report(place, run_id)
    Path(page.path).write_text(report.read_text(encoding="utf-8"), encoding="utf-8")
    store(place, outcome)
    settle_after(place, run_id, parsed)
    return outcome.outcome
