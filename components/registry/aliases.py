"""The registry's aliases follow the ledger, never the other way round."""

from __future__ import annotations

from components.core.errors import TransientError
from components.core.ledger import Anchor, Entry, Ledger
from components.registry.champions import champion
from components.registry.ports import ModelRegistry

CHAMPION, CHALLENGER = "champion", "challenger"
ANCHOR = "pilotline.ledger"
ROUNDS = 8


def sync_aliases(name: str, ledger: Ledger, tracking: ModelRegistry) -> str | None:
    """Make alias `champion` name the ledger's champion and return its version.

    The registry has no compare-and-set. Each writer therefore reads the ledger again after it wrote: whoever wrote
    something older than the ledger's last entry puts it right before it returns.

    Raises:
        TransientError: the registry does not answer, or others keep writing.
    """
    for _ in range(ROUNDS):
        live = champion(name, ledger)
        wanted = live.version if live else None
        if tracking.alias(name, CHAMPION) == wanted:
            if wanted is not None:
                drop_challenger(name, wanted, tracking)
            return wanted
        if wanted is None:
            tracking.delete_alias(name, CHAMPION)
        else:
            tracking.set_alias(name, CHAMPION, wanted)
    raise TransientError(f"model {name}: alias champion keeps changing; run again")


def drop_challenger(name: str, version: str, tracking: ModelRegistry) -> None:
    """Remove alias `challenger` where it names this version."""
    if tracking.alias(name, CHALLENGER) == version:
        tracking.delete_alias(name, CHALLENGER)


def anchor(entry: Entry, tracking: ModelRegistry) -> None:
    """Note the entry's place and hash at its version: the registry then shows where the ledger's end was cut off."""
    tracking.set_tags(entry.payload["name"], entry.payload["version"], {ANCHOR: f"{entry.seq}:{entry.hash}"})


def anchors(name: str, tracking: ModelRegistry) -> list[Anchor]:
    """What the registry saw of the ledger."""
    found = []
    for item in tracking.versions(name):
        seq, _, seen = item["tags"].get(ANCHOR, "").partition(":")
        if seq.isdigit() and seen:
            found.append(Anchor(int(seq), seen, f"the registry's tag of {name} version {item['version']}"))
    return found
