"""The registry's aliases follow the ledger, never the other way round."""

from __future__ import annotations

from collections.abc import Sequence

from components.core.errors import TransientError
from components.core.ledger import Anchor, Entry, Ledger
from components.registry.champions import PROMOTION, champion
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


def follow(name: str, ledger: Ledger, tracking: ModelRegistry) -> None:
    """Aliases as the ledger says, then the anchor of the model's last promotion entry; called again it changes nothing.

    The anchor, the entry's place and hash as a tag of its version, comes last: where it is there, all was done. It also
    shows where the ledger's end was cut off.
    """
    sync_aliases(name, ledger, tracking)
    if own := [entry for entry in ledger.entries(PROMOTION) if entry.payload["name"] == name]:
        tracking.set_tags(name, own[-1].payload["version"], {ANCHOR: f"{own[-1].seq}:{own[-1].hash}"})


def is_followed(entry: Entry, tracking: ModelRegistry) -> bool:
    """Whether aliases and anchor followed this promotion entry once."""
    return any((seen.seq, seen.hash) == (entry.seq, entry.hash) for seen in anchors(entry.payload["name"], tracking))


def anchors(name: str, tracking: ModelRegistry) -> list[Anchor]:
    """What the registry saw of the ledger."""
    found = []
    for item in tracking.versions(name):
        seq, _, seen = item["tags"].get(ANCHOR, "").partition(":")
        if seq.isdigit() and seen:
            found.append(Anchor(int(seq), seen, f"the registry's tag of {name} version {item['version']}"))
    return found


def check_chain(name: str, ledger: Ledger, tracking: ModelRegistry, seen: Sequence[Anchor] = ()) -> int:
    """Verify the ledger before something is decided or told by it, also against what the registry saw of it.

    A registry that does not answer leaves the chain alone to be judged: a roll-back does not wait for it.

    Args:
        name: model. seen: what others saw.

    Returns:
        The number of entries.

    Raises:
        IntegrityError: an entry is altered, missing or out of order.
    """
    try:
        known = anchors(name, tracking)
    except TransientError:
        known = []
    return ledger.verify([*seen, *known])
