"""A report with something in each of its places."""

from retention_job.cost.cost_tables import AMOUNTS, CLIENT_AMOUNTS, CLIENT_DOLLARS
from retention_job.findings.apply import Handover
from retention_job.page.report_data import (
    Bar,
    BrokerCosts,
    ClientZone,
    Costs,
    DayCosts,
    Finding,
    FindingCount,
    GroupReads,
    Objects,
    PartitionLag,
    ReportData,
    TopicCosts,
)

SECONDS = 8 * 86_400.0
HOSTILE = "<script>alert('x')</script>&"


def topic(name: str, mb_s: float, saved: float | None = 0.6) -> TopicCosts:
    uploaded = mb_s * 1e6 * SECONDS
    stock = uploaded * 2 * 0.02 / 1e9
    paid = None if saved is None else stock * (1 - saved)
    return TopicCosts(name, uploaded, uploaded * 1.8, uploaded * 0.2, paid, stock, 0 if saved is not None else 2)


def client_zone(zone: str, gb: float, untold: float) -> ClientZone:
    """Half of its producers' bytes and a third of its consumers' go by object storage."""
    amounts = dict.fromkeys(CLIENT_AMOUNTS, 4e6) | {
        "sent_bytes": gb * 1e9, "sent_crossed_bytes": gb * 0.5e9, "given_bytes": gb * 3e9,
        "given_crossed_bytes": gb * 2e9, "near_bytes": gb * 1e9 * (1 - untold), "untold_bytes": gb * 1e9 * untold,
    }  # fmt: skip
    dollars = dict.fromkeys(CLIENT_DOLLARS, gb * 0.001) | {
        "direct_usd": gb * 0.08,
        "follower_fetching_usd": gb * (0.06 + 0.02 * untold),
        "follower_fetching_least_usd": gb * 0.06,
        "gateway_usd": gb * 0.055,
        "saved_usd": gb * 0.025,
    }
    return ClientZone(zone, amounts, dollars)


def sample_report(days: int = 8) -> ReportData:
    topics = [
        topic("orders", 12), topic("payments.eu-west.settled-transactions.v2", 8, 0.5), topic("clicks", 5, 0.7),
        topic("audit", 0.4, -0.8), topic("heartbeats", 0.02, -3), topic("legacy", 2, None),
    ]  # fmt: skip
    day_costs = [
        DayCosts(
            20_770 + day,
            {"put_usd": 11.7, "upload_usd": 6.2 + day / 4, "storage_usd": 0.4, "get_usd": 0.6, "retrieval_usd": 2.3,
             "read_fee_usd": 0.0, "crossing_usd": 5.1, "archive_put_usd": 0.2, "archive_get_usd": 0.1,
             "archive_storage_usd": 0.7, "clients_store_usd": 1.4, "clients_crossing_usd": 3.1},
            78.0 + day if day else None,
            3.2,
            has_usage={1: day > 0},
        )
        for day in range(days)
    ]  # fmt: skip
    findings = [
        Finding("deleted_too_early", "critical", "orders", 3, "1-00000000000a-0000000000ff",
                "offsets 100 to 199 are in no object, and the log still needs them", 7_200_000, 48_000,
                "remote-wal doctor --broker-config server.properties"),
        Finding("object_without_metadata", "warning", None, None, "2-00000000000b-000000000001", HOSTILE,
                90_000_000, 1_048_576, "remote-wal orphans --heal"),
        Finding("dead_entries", "info", "<b>bold</b>", 0, None, "3 entries of epoch 4", None, None, "nothing to do"),
    ]  # fmt: skip
    return ReportData(
        "20261121T060000Z", 1_795_240_800_000, "MkU3OEVBNTcwNTJENDM2Qg", False, 5_123_456,
        [FindingCount(found.kind, found.severity, 1, found.size_bytes or 0) for found in findings],
        findings,
        {"truncated": 2, "foreign_key": 1},
        Costs(
            "prices.toml", "2026-10-04", 0.0, SECONDS, day_costs, topics,
            [BrokerCosts(number, {**dict.fromkeys(AMOUNTS, 1e12), "remote_followers": 2}, 60.0, 190.0)
             for number in range(3)],
            clients=[client_zone("eu-central-1a", 820, 0), client_zone("<b>az2</b>", 90, 0.6)],
            group=GroupReads(3, 4.2e13, 840.0),
        ),
        Objects(
            [Bar(label, count, count * 1000) for label, count in
             (("16 KiB", 40), ("32 KiB", 900), ("64 KiB", 5200), ("128 KiB", 21000), ("256 KiB", 9000))],
            [PartitionLag("orders", 3, 120_000, 119_400, 200, 400), PartitionLag("audit", 0, 50, None, 0, None)],
            1_234_567,
        ),
        Handover(12, 1_048_576, True, 1),
    )  # fmt: skip
