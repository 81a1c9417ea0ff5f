"""How often what happens in a run of replication whole, and which runs are such."""

WEIGHTS = {
    "produce": 50,
    "burst": 6,
    "roll": 4,
    "retain": 2,
    "compact": 1,
    "move leader": 3,
    "elect unclean": 1,
    "crash broker": 2,
    "lose power": 1,
    "pause broker": 2,
    "crash agent": 3,
    "stop agent": 1,
    "pause agent": 2,
    "cut connections": 4,
    "cut zones apart": 2,
    "join zones": 3,
    "network": 2,
    "store": 4,
    "reads": 4,
    "lose object": 2,
    "topic": 3,
    "lose events": 1,
    "jump": 1,
    "let be": 5,
}


def is_replicated(seed: int) -> bool:
    """Every fourth run: it takes some three times as long as one of the write path alone."""
    return seed % 4 == 3
