"""The Kubeflow component of ingestion."""

from kfp import dsl

from components.core.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def ingest(
    home: str, run_id: str, recipe: str, code_version: str, expected_digest: str, snapshot: dsl.Output[dsl.Dataset]
) -> str:
    """Read the source's interval into an immutable snapshot named by its content.

    Args:
        home: Folder or volume that holds all state.
        run_id: Name of the run.
        recipe: The resolved recipe as JSON.
        code_version: Revision of the code; part of the cache key.
        expected_digest: Digest that the snapshot must have; empty to take what the source holds.
        snapshot: Folder with data.parquet, every column text, and record.json.

    Returns:
        The snapshot's digest.
    """
    from pathlib import Path

    from components.core.contracts import note_reading
    from components.core.steps import running
    from components.core.wiring import wired
    from components.ingestion.ingest import ingest as read_source

    with running("ingest", home, run_id, recipe) as step:
        contract = wired("name_contract")(step.recipe, step.home, expected_digest)
        store, generators = step.home.snapshots, wired("GENERATORS")
        ref = read_source(step.recipe, Path(snapshot.path), generators, expected_digest, store, contract)
        note_reading(step.home, step.recipe.contract.path, contract, ref.digest, from_store=bool(expected_digest))
        snapshot.metadata["digest"] = ref.digest
        snapshot.metadata["rows"] = ref.rows
        step.keep(ref)
    return ref.digest
