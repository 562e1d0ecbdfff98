"""Compile a pipeline to the one file that is run locally and uploaded to Kubeflow Pipelines."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.errors import IntegrityError, PolicyRefusal, UserError
from components.core.publish import write_atomic

if TYPE_CHECKING:
    from components.core.recipe import Recipe

INSTALLS = re.compile(r"\bpip3?\s+install\b|\bensurepip\b|\bpackages_to_install\s*=\s*\[\s*['\"]", re.IGNORECASE)
GPU_FIELDS = ("nodeSelector",)


@dataclass(frozen=True)
class Package:
    """A compiled file as its two documents: the pipeline, and the settings for Kubernetes ({} where none)."""

    spec: dict[str, Any]
    platform: dict[str, Any]

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return str(self.spec["pipelineInfo"]["name"])

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """Inputs by name: {"parameterType", "defaultValue", "isOptional", ...}."""
        found: dict[str, dict[str, Any]] = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        return found

    @property
    def executors(self) -> dict[str, dict[str, Any]]:
        """Containers by executor label."""
        found: dict[str, dict[str, Any]] = self.spec["deploymentSpec"].get("executors", {})
        return found

    @property
    def kubernetes(self) -> dict[str, dict[str, Any]]:
        """Kubernetes settings by executor label."""
        platform: dict[str, Any] = self.platform.get("platforms", {}).get("kubernetes", {})
        found: dict[str, dict[str, Any]] = platform.get("deploymentSpec", {}).get("executors", {})
        return found


def compile_pipeline(
    pipeline_func: Any,
    out: Path,
    profile: str = "laptop",
    defaults: Mapping[str, Any] | None = None,
    on_gpus: bool = True,
) -> Path:
    """Compile a `@dsl.pipeline` function to `out`; the same input gives the same bytes.

    Args:
        pipeline_func: the decorated function.
        out: file ending .yaml or .yml; written whole or not at all.
        profile: what the file is for; a gpu-pool file that names no pool, or a laptop file that does, is refused.
        on_gpus: whether a gpu-pool file has a step on GPUs; not where training goes into a TrainJob or runs on CPUs.
        defaults: values that become the pipeline parameters' defaults.

    Raises:
        UserError: the ending is wrong or the folder cannot be written.
        PolicyRefusal: a step would install packages when it starts, or the file does not fit the profile.
        IntegrityError: what the compiler wrote is not a PipelineSpec.
    """
    from kfp import compiler

    if out.suffix not in (".yaml", ".yml"):
        raise UserError(f"{out}: name the compiled file with the ending .yaml")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "pipeline.yaml"
        compiler.Compiler().compile(pipeline_func, str(written), pipeline_parameters=dict(defaults or {}) or None)
        text = written.read_text(encoding="utf-8")
    package = parse_package(text, str(out))
    _refuse_installs(package, out)
    _refuse_misfit(package, profile, on_gpus, out)
    try:
        write_atomic(out, text)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}); choose another with -o") from error
    return out


def compile_retrain(recipe: Recipe, out: Path, profile: str, with_recipe: bool = True) -> Path:
    """Compile the retraining pipeline for a recipe's resources; the recipe becomes a default unless told otherwise."""
    from components.training.backends.pools import pool_for
    from pipelines.gpu_pools import for_cluster
    from pipelines.preflight import check_pool
    from pipelines.retrain import pipeline

    recipe = for_cluster(recipe, profile)
    if profile == "gpu-pool":
        check_pool(recipe)
    defaults = {"recipe": recipe.to_json()} if with_recipe else {}
    made = pipeline(profile, recipe.resources, recipe.training)
    on_gpus = recipe.training.backend == "local" and pool_for(recipe.resources).has_gpus
    return compile_pipeline(made, out, profile, defaults, on_gpus)


def read_package(path: Path) -> Package:
    """Read a compiled file.

    Raises:
        UserError: there is no such file.
        IntegrityError: it is not a compiled pipeline.
    """
    try:
        return parse_package(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); write it with `pilotline compile`") from error


def parse_package(text: str, where: str) -> Package:
    """Parse a compiled file's text, strictly: unknown fields are refused. IntegrityError where it does not parse."""
    import yaml
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    try:
        documents = [document for document in yaml.safe_load_all(text) if document]
        if not documents or len(documents) > 2 or not isinstance(documents[0], dict):
            raise ValueError(f"{len(documents)} YAML documents; one pipeline and at most one platform are expected")
        spec = json_format.ParseDict(documents[0], pipeline_spec_pb2.PipelineSpec())
        platform = json_format.ParseDict(documents[1] if len(documents) == 2 else {}, pipeline_spec_pb2.PlatformSpec())
        if not spec.pipeline_info.name or not spec.HasField("root"):
            raise ValueError("no pipeline name or no root component")
    except (yaml.YAMLError, json_format.ParseError, ValueError) as error:
        raise IntegrityError(f"{where}: not a compiled pipeline ({' '.join(str(error).split())[:200]})") from error
    return Package(json_format.MessageToDict(spec), json_format.MessageToDict(platform))


def _refuse_installs(package: Package, out: Path) -> None:
    """Look in the values, not in the text: YAML folds long lines, and a folded command must not slip through."""
    for label, executor in package.executors.items():
        for value in _strings(executor):
            if found := INSTALLS.search(value):
                raise PolicyRefusal(
                    f"{out}: step {label.removeprefix('exec-')} would run {found.group(0)!r} when it starts; "
                    "put the package into the image and set install_kfp_package=False"
                )


def _refuse_misfit(package: Package, profile: str, on_gpus: bool, out: Path) -> None:
    pooled = [label for label, found in package.kubernetes.items() if all(found.get(name) for name in GPU_FIELDS)]
    if profile == "gpu-pool" and on_gpus and not pooled:
        raise PolicyRefusal(
            f"{out}: compiled for gpu-pool, but no step names a GPU pool; call apply_profile on the task"
        )
    if profile == "laptop" and package.platform:
        raise PolicyRefusal(f"{out}: compiled for laptop, but it carries cluster settings; use --profile gpu-pool")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
