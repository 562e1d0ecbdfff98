"""The sections of a contract that hold no rules: their keys and types are those of the standard, or refused."""

from __future__ import annotations

from components.contract.standard.yaml_file import CUSTOM_KEYS, Node, words

TOP_KEYS = words(
    "apiVersion kind id name version status tenant domain dataProduct description tags team roles support price "
    "servers schema slaProperties slaDefaultElement authoritativeDefinitions customProperties contractCreatedTs context"
)
API_VERSIONS = ("v3.0.0", "v3.0.1", "v3.0.2", "v3.1.0", "v3.2.0")
TEXTS = ("id", "version", "apiVersion", "kind", "name", "status", "tenant", "domain", "dataProduct")
LISTS = {
    "support": words("id channel url description tool scope invitationUrl customProperties"),
    "roles": words("id role description access firstLevelApprovers secondLevelApprovers customProperties"),
    "authoritativeDefinitions": words("id url type description"),
    "customProperties": CUSTOM_KEYS,
}
MEMBER = words(
    "id username name description role dateIn dateOut replacedByUsername tags customProperties authoritativeDefinitions"
)
SECTIONS = {
    "description": words("purpose usage limitations authoritativeDefinitions customProperties"),
    "price": words("id priceAmount priceCurrency priceUnit"),
    "team": words("id name description members tags customProperties authoritativeDefinitions"),
    "context": words("instructions verifiedStatements constraints"),
}
SERVER = words(
    "id server type description environment roles customProperties account catalog catalogUrl database dataset "
    "delimiter encoding endpointUrl format host location namespace path port project region regionName schema "
    "serviceName stagingDir stream warehouse workgroup"
)


def check_sections(root: Node) -> Node:
    """The document itself; UserError where a section holds a key that the standard does not know, or lacks one."""
    root.keys(TOP_KEYS)
    for key in ("id", "version", "apiVersion"):
        if not isinstance(root.value.get(key), str):
            root.fail(f"{key} is missing or no text; write it, in quotes where it looks like a number")
    if root.value["apiVersion"] not in API_VERSIONS:
        root.at("apiVersion").fail(f"is {root.value['apiVersion']!r}; write the contract in ODCS v3, such as v3.2.0")
    if root.get("kind", str, "DataContract") != "DataContract":
        root.at("kind").fail(f"is {root.value['kind']!r}; write DataContract")
    for key in TEXTS:
        root.get(key, str)
    for tag in root.items("tags"):
        if not isinstance(tag.value, str):
            tag.fail(f"is {tag.value!r}; write a text")
    _check_sections(root)
    for name, keys in LISTS.items():
        for item in root.items(name):
            item.keys(keys)
    for server in root.items("servers"):
        server.keys(SERVER)
        for key in ("server", "type"):
            if not isinstance(server.value.get(key), str):
                server.at(key).fail("is missing; write it")
    return root


def _check_sections(root: Node) -> None:
    for name, keys in SECTIONS.items():
        node = root.at(name)
        if isinstance(node.value, list) and name == "team":
            members = root.items("team")
        elif isinstance(node.value, dict):
            node.keys(keys)
            members = node.items("members") if name == "team" else []
        elif node.value is None or (isinstance(node.value, str) and name == "context"):
            continue
        else:
            node.fail(f"is {node.value!r}; write a mapping")
        for member in members:
            member.keys(MEMBER)
