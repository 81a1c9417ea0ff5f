"""What stands in deploy/terraform: AWS's provider takes it, and its policies are those of deploy/aws.

Nobody asks AWS: Terraform's own tests make resources that are nowhere. `terraform init` must find the provider;
`TF_CLI_ARGS_init=-plugin-dir=DIRECTORY` names a copy on disk.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.settings.agent_settings import AgentSettings
from plugin.loading import CLASS_NAME_KEY, storage_manager_class
from tests.package.bare_environment import ROOT

TERRAFORM = ROOT / "deploy" / "terraform"
PATIENCE_S = 300
KEY = "arn:aws:kms:us-east-1:111122223333:key/KEY-ID"
"""As the policies of deploy/aws name it, like the buckets."""
RUNS = {"s3": ((), KEY), "s3express": (("use1-az4",), KEY), "zones": (("use1-az4", "use1-az5", "use1-az6"), None)}
"""By name: zones and key."""
TEST = """
mock_provider "aws" {
  mock_resource "aws_s3_directory_bucket" {
    defaults = { arn = "arn:aws:s3express:us-east-1:111122223333:bucket/my-kafka-wal--use1-az4--x-s3" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = { arn = "arn:aws:s3:::my-kafka-wal" }
  }
}
variables {
  name            = "my-kafka-wal"
  region          = "us-east-1"
  vpc_id          = "vpc-1"
  route_table_ids = ["rtb-1"]
  tags            = { team = "streams" }
}
"""
RUN = """
run "%s" {
  state_key = "%s"
  variables {
    zones       = %s
    kms_key_arn = %s
  }
}
"""

pytestmark = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not here")


def _terraform(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["terraform", f"-chdir={directory}", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    here = tmp_path_factory.mktemp("made")
    for part in ("aws", "terraform"):
        shutil.copytree(ROOT / "deploy" / part, here / part)
    runs = (RUN % (name, name, json.dumps(zones), json.dumps(key)) for name, (zones, key) in RUNS.items())
    (here / "terraform" / "made.tftest.hcl").write_text(TEST + "".join(runs))
    if _terraform(here / "terraform", "init").returncode != 0:
        pytest.skip("AWS's provider cannot be had")
    told = _terraform(here / "terraform", "test", "-json", "-verbose")
    assert told.returncode == 0, told.stdout
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    return {line["@testrun"]: line["test_state"] for line in lines if "test_state" in line}


def _resources(state: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    found = state["root_module"]["resources"]
    return {str(one.get("index", "")): one["values"] for one in found if one["type"] == kind}


def test_it_is_formatted_as_terraform_does() -> None:
    told = _terraform(TERRAFORM, "fmt", "-check", "-diff")
    assert (told.returncode, told.stdout) == (0, "")


@pytest.mark.thorough
@pytest.mark.timeout(2 * PATIENCE_S)
def test_roles_have_the_policies_of_deploy_aws(made: dict[str, dict[str, Any]]) -> None:
    assert made.keys() == RUNS.keys()
    for kind in ("s3", "s3express"):
        policies = _resources(made[kind], "aws_iam_policy")
        assert {f"{kind}-{role}" for role in policies} == {path.stem for path in TERRAFORM.parent.glob(f"aws/{kind}-*")}
        for role, values in policies.items():
            expected = json.loads((TERRAFORM.parent / "aws" / f"{kind}-{role}.json").read_text())
            for statement in expected["Statement"]:
                statement["Resource"] = [statement["Resource"]]
            assert json.loads(values["policy"]) == expected
    without_key = json.loads(_resources(made["zones"], "aws_iam_policy")["agent"]["policy"])["Statement"]
    assert [statement["Sid"] for statement in without_key] == ["Sessions"]
    assert len(without_key[0]["Resource"]) == 3


@pytest.mark.thorough
@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_standard_bucket_is_never_public_and_is_asked_by_tls_alone(made: dict[str, dict[str, Any]]) -> None:
    [block] = _resources(made["s3"], "aws_s3_bucket_public_access_block").values()
    assert all(block[key] for key in block if key.startswith(("block_", "ignore_", "restrict_")))
    [policy] = _resources(made["s3"], "aws_s3_bucket_policy").values()
    [statement] = json.loads(policy["policy"])["Statement"]
    assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    for kind in ("aws_s3_bucket", "aws_iam_policy", "aws_vpc_endpoint"):
        assert all(values["tags"] == {"team": "streams"} for values in _resources(made["s3"], kind).values())


@pytest.mark.thorough
@pytest.mark.timeout(2 * PATIENCE_S)
def test_agents_take_the_lines_that_it_tells(made: dict[str, dict[str, Any]]) -> None:
    for name, (zones, key) in RUNS.items():
        buckets = _resources(made[name], "aws_s3_directory_bucket" if zones else "aws_s3_bucket")
        encrypted = _resources(made[name], "aws_s3_bucket_server_side_encryption_configuration")
        assert len(encrypted) == (len(buckets) if key else 0)
        lines = dict(line.split("=", 1) for line in made[name]["outputs"]["settings"]["value"].splitlines())
        assert storage_manager_class(lines[CLASS_NAME_KEY], None)
        told = {one for text in lines.values() for one in text.replace("=", ",").split(",")}
        assert {values["bucket"] for values in buckets.values()} <= told
        known = AgentSettings.documented().keys()
        assert [line for line in lines if line not in known] == [
            line for line in lines if line in ("rsm.wal.config.bucket", "rsm.wal.config.region")
        ]
    (endpoint,) = _resources(made["zones"], "aws_vpc_endpoint").values()
    assert endpoint["service_name"] == "com.amazonaws.us-east-1.s3express"
