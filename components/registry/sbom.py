"""The software bill of materials of a model version: CycloneDX JSON, by the standard's own library.

Its subject is the model with the sha256 of every file. Components are the training set (as data) and every package
installed where the version was registered, with the licence that its metadata states. No time stamp and a serial number
made from what it is about: the same inputs, the same document.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.core.digest import file_digest, value_digest
from components.core.paths import PROJECT_ROOT
from components.models.files import check_files

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

LOCK = "requirements.lock"
LONGEST_LICENCE = 120  # some packages put the whole text into the field


def bill_of_materials(
    name: str, version: str, model_dir: Path, digests: Mapping[str, str], training_rows: int, features: Iterable[str]
) -> str:
    """The document as JSON text.

    Args:
        name: the model. version: of the registry.
        model_dir: whose files are listed with their hashes.
        digests: what the version comes from, by name; "model" and "training_set" have to be there.
        training_rows: rows of the training set's splits together.
        features: names of the features it holds.
    """
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    subject = _model(name, version, model_dir, digests)
    rows = _training_set(digests["training_set"], training_rows, features)
    packages = installed_packages()
    about = value_digest([name, version, dict(digests), [str(package.purl) for package in packages]])
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, about),
        metadata=BomMetaData(component=subject),
        components=[rows, *packages],
    )
    bom.register_dependency(subject, [rows, *packages])
    document = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    document["metadata"].pop("timestamp", None)
    return json.dumps(document, indent=1, sort_keys=True)


def environment_digest() -> str:
    """sha256 of the lock file beside the code, else of what is installed."""
    lock = PROJECT_ROOT / LOCK
    if lock.is_file():
        return file_digest(lock)
    return value_digest(sorted(str(package.purl) for package in installed_packages()))


@lru_cache(maxsize=1)
def installed_packages() -> tuple[Component, ...]:
    """Every installed distribution once, by name; the first one found is the one that is imported."""
    found: dict[str, Distribution] = {}
    for item in distributions():
        if item.name:
            found.setdefault(_normal(item.name), item)
    return tuple(_package(name, found[name]) for name in sorted(found))


def _model(name: str, version: str, model_dir: Path, digests: Mapping[str, str]) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom_ref import BomRef
    from cyclonedx.model.component import Component, ComponentType

    files = [
        Component(
            type=ComponentType.FILE,
            name=path.name,
            bom_ref=BomRef(f"file:{path.name}"),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file_digest(path))],
            properties=[Property(name="pilotline:bytes", value=str(path.stat().st_size))],
        )
        for path in check_files(model_dir)
    ]
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=name,
        version=version,
        bom_ref=BomRef(f"model:{digests['model']}"),
        components=files,
        properties=[Property(name=f"pilotline:{key}", value=value) for key, value in sorted(digests.items()) if value],
    )


def _training_set(digest: str, rows: int, features: Iterable[str]) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom_ref import BomRef
    from cyclonedx.model.component import Component, ComponentType

    about = {"rows": str(rows), "features": ", ".join(features)}
    return Component(
        type=ComponentType.DATA,
        name="training set",
        version=digest[:12],
        bom_ref=BomRef(f"training-set:{digest}"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        properties=[Property(name=f"pilotline:{key}", value=value) for key, value in about.items()],
    )


def _package(name: str, item: Distribution) -> Component:
    from cyclonedx.model.bom_ref import BomRef
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    purl = PackageURL(type="pypi", name=name, version=item.version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=item.version,
        purl=purl,
        bom_ref=BomRef(str(purl)),
        licenses=_licences(item.metadata),
    )


def _licences(metadata: Any) -> list[Any]:
    """The licence as the metadata has it: an SPDX expression, else the classifiers', else a short text."""
    from cyclonedx.contrib.license.factories import LicenseFactory

    make = LicenseFactory().make_from_string
    if expression := metadata.get("License-Expression"):
        return [make(expression)]
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License :: ")]
    names = sorted({text.split(" :: ")[-1] for text in classifiers} - {"OSI Approved"})
    text = " ".join((metadata.get("License") or "").split())
    if not names and 0 < len(text) <= LONGEST_LICENCE and text.upper() != "UNKNOWN":
        names = [text]
    made = [make(name) for name in names]
    expressions = [one for one in made if type(one).__name__ == "LicenseExpression"]
    return expressions[:1] or made  # the schema allows one expression or several licences


def _normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return name.lower().replace("_", "-").replace(".", "-")
