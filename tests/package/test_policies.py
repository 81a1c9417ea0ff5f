"""What stands in deploy/aws: each role may do what the code asks for, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugin import s3, s3_express
from tests.package.bare_environment import ROOT

POLICIES = ROOT / "deploy" / "aws"
READS = {"get", "head", "list"}
ASKED = {"agent": set(s3.PERMISSIONS), "reader": READS, "janitor": READS | {"delete"}}
"""The store's requests, by role."""
KEY_USE = {"agent": {"kms:GenerateDataKey", "kms:Decrypt"}, "reader": {"kms:Decrypt"}, "janitor": {"kms:Decrypt"}}


def _statements(policy: Path) -> list[dict[str, Any]]:
    told = json.loads(policy.read_text())
    assert told["Version"] == "2012-10-17"
    found: list[dict[str, Any]] = told["Statement"]
    return found


def _actions(statement: dict[str, Any]) -> set[str]:
    action = statement["Action"]
    return {action} if isinstance(action, str) else set(action)


@pytest.mark.parametrize("policy", sorted(POLICIES.glob("*.json")), ids=lambda policy: policy.stem)
def test_a_role_may_do_what_is_asked_for_and_no_more(policy: Path) -> None:
    kind, role = policy.stem.split("-")
    permissions = {"s3": s3.PERMISSIONS, "s3express": s3_express.PERMISSIONS}[kind]
    statements = _statements(policy)
    assert {statement["Effect"] for statement in statements} == {"Allow"}
    allowed = set[str]().union(*map(_actions, statements))
    assert allowed == {permissions[request] for request in ASKED[role] & permissions.keys()} | KEY_USE[role]
    assert not any(statement["Resource"] == "*" for statement in statements)


def test_readers_of_a_directory_bucket_get_sessions_that_cannot_write() -> None:
    sessions, _ = _statements(POLICIES / "s3express-reader.json")
    assert sessions["Condition"] == {"StringEquals": {"s3express:SessionMode": "ReadOnly"}}
    assert "Condition" not in _statements(POLICIES / "s3express-agent.json")[0]
