"""The contract that a snapshot is judged by, and whether it may follow the one by which batches were last accepted.

A snapshot is judged by the contract that it was read under, taken from the home's archive: a replay of old rows meets
the rules of their time. What it is compared with is the contract that had been accepted last when its rows were first
read under it; so a resumed run and a replay come to the same answer. The ledger's entries of kind `contract` say which
was accepted when: by a batch that passed.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from components.contract.evolution.changes import Release
from components.contract.evolution.compare import compare
from components.contract.standard.contract import load
from components.contract.standard.rules import DataContract
from components.core import contracts
from components.core.contracts import ContractRef, Naming
from components.core.errors import IntegrityError, UserError
from components.core.home import Home
from components.core.ledger import Entry, Ledger
from components.core.paths import find
from components.core.recipe import Recipe
from components.core.records import ContractVerdict, RuleResult, SnapshotRef

KIND = "contract"
RULE = "contract version"
LIMIT = "no breaking change without a new major version"


class _Overtaken(Exception):
    """Another version was accepted since the comparison."""


@dataclass(frozen=True)
class Judged:
    """What a snapshot is judged by.

    path: the archived contract. results: what its place among the accepted versions says. now: when the rows were last
    read (ISO 8601 UTC), for service levels.
    """

    path: Path
    contract: ContractRef
    results: tuple[RuleResult, ...]
    now: str
    home: Home
    previous: str  # digest of the version compared with; "" where there was none

    def accept(self, verdict: ContractVerdict, run_id: str) -> None:
        """Note that a batch passed under this contract, once; not where a later version was accepted meanwhile."""
        if not verdict.passed:
            return

        def still_last(entries: list[Entry]) -> None:
            last = _last(entries, self.contract.identity)
            if (last.digest if last else "") != self.previous:
                raise _Overtaken

        payload = dict(self.contract.__dict__) | {"snapshot": verdict.snapshot_digest, "run_id": run_id}
        with closing(Ledger(self.home.ledger_url)) as ledger:
            try:
                ledger.append(KIND, f"contract:{self.contract.identity}:{self.contract.digest}", payload, still_last)
            except _Overtaken:  # a replay: what was accepted last stays so
                return


def name_contract(recipe: Recipe, home: Home, expected_digest: str = "") -> ContractRef:
    """The contract that rows are about to be read under, loaded; `contracts.note_reading` archives it afterwards.

    A snapshot that is only taken from the store again (`expected_digest`) and was read under other contracts keeps the
    one that it was read under last.

    Raises:
        UserError: the contract cannot be read; one line with its place.
        IntegrityError: the archive lacks the contract that the stored snapshot names.
    """
    earlier = contracts.namings(home, expected_digest) if expected_digest else []
    try:
        contract = load(find(recipe.contract.path, "contract"))
    except UserError:
        if not earlier:
            raise
    else:
        if not earlier or contract.digest in [naming.contract.digest for naming in earlier]:
            return _ref(contract)
    contracts.kept(home, earlier[-1].contract)
    return earlier[-1].contract


def contract_of(home: Home, snapshot: Path, recipe: Recipe) -> Judged:
    """The contract that a published snapshot names; the recipe's where its record names none.

    Raises:
        IntegrityError: neither the archive nor the recipe has the contract that the snapshot or the ledger names.
        UserError: the contract cannot be read, or its version cannot be compared.
    """
    record = SnapshotRef.read(snapshot)
    if record.contract_digest:
        named = ContractRef(record.contract_id, record.contract_version, record.contract_digest)
        path = _archived(home, named, recipe)
    else:
        named = name_contract(recipe, home)
        path = contracts.keep(home, find(recipe.contract.path, "contract"), named.digest)
    naming = contracts.naming(home, record.digest, named.digest) or contracts.name(home, record.digest, named)
    before = _accepted_before(home, naming)
    return Judged(
        path=path,
        contract=named,
        results=(_result(home, path, named, before),),
        now=record.until or naming.last,
        home=home,
        previous=before.digest if before else "",
    )


def _archived(home: Home, named: ContractRef, recipe: Recipe) -> Path:
    """The archived file; the recipe's is put back where it is the same."""
    try:
        return contracts.kept(home, named)
    except IntegrityError:
        try:
            path = find(recipe.contract.path, "contract")
            if load(path).digest == named.digest:
                return contracts.keep(home, path, named.digest)
        except UserError:
            pass
        raise


def _accepted_before(home: Home, naming: Naming) -> ContractRef | None:
    """The version accepted last before the rows were first read under the named one."""
    with closing(Ledger(home.ledger_url)) as ledger:
        entries = ledger.entries(KIND)
    return _last([entry for entry in entries if entry.time < naming.first], naming.contract.identity)


def _last(entries: list[Entry], identity: str) -> ContractRef | None:
    found = [entry.payload for entry in entries if entry.payload.get("identity") == identity]
    return ContractRef(**{name: found[-1][name] for name in ("identity", "version", "digest")}) if found else None


def _result(home: Home, path: Path, named: ContractRef, before: ContractRef | None) -> RuleResult:
    """The check of the verdict: refused where the contract breaks what was accepted, told where its number is low."""
    if before is None:
        reason = "no earlier version was accepted here; there is nothing to compare with"
        return RuleResult(rule=RULE, outcome="info", observed=named.version, limit=LIMIT, reason=reason)
    if before.digest == named.digest:
        return RuleResult(rule=RULE, outcome="pass", observed=f"{named.version}, as accepted", limit=LIMIT)
    found = compare(Release.read(contracts.kept(home, before)), Release.read(path))
    outcome = "fail" if found.refusal else "info" if found.warning else "pass"
    observed = f"{found.old_version} to {found.new_version}, {found.needed} changes"
    reason = found.refusal or found.warning
    return RuleResult(rule=RULE, outcome=outcome, observed=observed, limit=LIMIT, reason=reason)


def _ref(contract: DataContract) -> ContractRef:
    return ContractRef(contract.identity, contract.version, contract.digest)
