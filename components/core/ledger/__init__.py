"""The append-only, hash-chained record of what happened: runs, verdicts, promotions, approvals.

An entry's hash covers its content and the hash before it, so an altered, missing or reordered entry shows; anchors kept
elsewhere show an end that was cut off. Every entry has an idempotency key: appending the same key again returns the
entry that is there. A lease with a fencing token keeps a writer that was paused from deciding late.
"""

from components.core.ledger.book import Ledger
from components.core.ledger.chain import Anchor
from components.core.ledger.entries import GENESIS, Entry
from components.core.ledger.leases import Lease, StaleLeaseError

__all__ = ["GENESIS", "Anchor", "Entry", "Lease", "Ledger", "StaleLeaseError"]
