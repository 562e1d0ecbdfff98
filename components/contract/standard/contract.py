"""Load an Open Data Contract Standard file into a frozen list of rules; nothing in it is skipped silently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from components.contract.meaning.drift_settings import drift_settings
from components.contract.standard.document_keys import check_sections
from components.contract.standard.own_properties import check_own
from components.contract.standard.properties import key_rules, property_rules, read_columns
from components.contract.standard.quality import Scope, check_together, quality_rules
from components.contract.standard.relationships import relationship_rules
from components.contract.standard.rules import DataContract, Rule
from components.contract.standard.sla import sla_rules
from components.contract.standard.yaml_file import Node, read_yaml, words
from components.core.digest import file_digest

OBJECT_KEYS = words(
    "id name physicalName physicalType logicalType description businessName deprecated synonyms tags quality "
    "properties relationships customProperties authoritativeDefinitions dataGranularityDescription context"
)
MAX_QUARANTINE_PERCENT = 10.0


def load(path: Path) -> DataContract:
    """Read a contract with one schema object.

    Extension points in use (customProperties): of a property `columnPresence: optional`, `ruleSeverity` and
    `availability: at_event | after_outcome`; of the schema object `maxQuarantinePercent` (default 10); of an SLA
    property `ruleSeverity`. Service levels need the time of reading: see `sla.at_time`.

    Raises:
        UserError: no such file, not YAML, an unknown key or a rule that cannot be checked; names the YAML path.
    """
    root = check_sections(read_yaml(path))
    check_own(root)
    tables = root.items("schema")
    if len(tables) != 1:
        root.at("schema").fail(f"describes {len(tables)} objects; give one contract a table")
    table = tables[0].keys(OBJECT_KEYS)
    name = table.get("name", str)
    if not name:
        table.at("name").fail("is missing; name the table")
    if table.get("logicalType", str, "object") != "object":
        table.at("logicalType").fail(f"{table.value['logicalType']!r} holds no rows; write object")
    properties = table.items("properties")
    columns = read_columns(properties)
    rules = [rule for pair in zip(properties, columns, strict=True) for rule in property_rules(*pair, name, columns)]
    key, key_rule = key_rules(properties, columns, table)
    rules += key_rule + relationship_rules(table, properties)
    rules += quality_rules(table, Scope(name, columns)) + sla_rules(root, table, columns)
    try:
        check_together(rules)
    except ValueError as error:
        Node(None, root.file).fail(str(error))
    return DataContract(
        identity=root.value["id"],
        name=root.get("name", str, root.value["id"]),
        version=root.value["version"],
        status=root.get("status", str, ""),
        digest=file_digest(path),
        columns=columns,
        rules=tuple(_distinct(rules)),
        max_quarantine_percent=_cap(table),
        table=name,
        owner=_owner(root),
        key=key,
        drift=drift_settings(table, properties),
    )


def _owner(root: Node) -> str:
    """The member with the role owner, else the team's name; "" where nobody is named."""
    team = root.value.get("team")
    members = team.get("members") or [] if isinstance(team, dict) else team or []
    owners = [member for member in members if str(member.get("role", "")).lower() == "owner"]
    named = [str(member.get("name") or member.get("username")) for member in owners]
    return named[0] if named else str(team.get("name") or "") if isinstance(team, dict) else ""


def _cap(table: Node) -> float:
    cap = table.custom().get("maxQuarantinePercent", MAX_QUARANTINE_PERCENT)
    if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 <= cap <= 100:
        table.at("customProperties").fail(f"maxQuarantinePercent {cap!r}; write a number from 0 to 100")
    return float(cap)


def _distinct(rules: Iterable[Rule]) -> list[Rule]:
    """Rules whose name and subject tell them apart."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for rule in rules:
        count = seen[rule.name, rule.subject] = seen.get((rule.name, rule.subject), 0) + 1
        found.append(replace(rule, name=f"{rule.name} #{count}") if count > 1 else rule)
    return found
