"""Records held against `results.schema.json`, which also must know every member they have."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA: dict[str, Any] = json.loads((files("tightz") / "results.schema.json").read_text())


def loads(text: str) -> dict[str, Any]:
    """Strict JSON: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def check(record: dict[str, Any]) -> None:
    """The record follows the schema, says nothing that the schema does not know, and every null
    has its reason."""
    _validator(None).validate(record)
    name = record.get("result", record.get("command"))
    known = SCHEMA["$defs"][name]["properties"]
    _validator(name).validate(
        {k: v for k, v in record.items() if k in known or k not in SCHEMA["properties"]}
    )
    assert _unexplained(record) == 0


@cache
def _validator(name: str | None) -> Draft202012Validator:
    """Of the schema itself, or of one of its types with no further members."""
    Draft202012Validator.check_schema(SCHEMA)
    if name is None:
        return Draft202012Validator(SCHEMA)
    closed = deepcopy(SCHEMA["$defs"])
    for one in closed.values():
        if "properties" in one:
            one["additionalProperties"] = False
            one["patternProperties"] = {"_null$": {"$ref": "#/$defs/reason"}}
    return Draft202012Validator({"$defs": closed, "$ref": f"#/$defs/{name}"})


def _unexplained(value: Any) -> int:
    """Nulls in a value, less those that a member beside them explains."""
    if isinstance(value, list):
        return sum(map(_unexplained, value))
    if not isinstance(value, dict):
        return int(value is None)
    total = 0
    for name, one in value.items():
        count, reason = _unexplained(one), value.get(f"{name}_null")
        assert not isinstance(reason, list) or len(reason) == count
        total += count if reason is None else 0
        assert (reason is None) or count
    return total
