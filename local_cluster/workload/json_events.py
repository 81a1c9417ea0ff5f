"""Makes events in JSON, such as web shops send: half of a text repeats, and ids, sizes and prices do not."""

import json
import random
from typing import Final

_TYPES: Final = ("page_view", "add_to_cart", "purchase", "search", "login")
_AGENTS: Final = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 "
    "Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 "
    "Mobile/15E148 Safari/604.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
)
SHORTEST_EVENT: Final = 400
"""No event has fewer bytes."""


def json_event(source: random.Random, number: int) -> bytes:
    """Return a JSON event of some 510 bytes, as web shops send them: half of it repeats in others."""
    pick, below = source.choice, source.randrange
    return json.dumps(
        {
            "event_id": f"{source.getrandbits(128):032x}",
            "ts": 1_780_000_000_000 + number,
            "type": pick(_TYPES),
            "user_id": below(10**7),
            "session": f"{source.getrandbits(64):016x}",
            "page": f"/{pick(('shop', 'help', 'blog'))}/{pick(('shoes', 'coats', 'bags', 'books'))}/{below(50_000)}",
            "referrer": pick(("https://www.google.com/", "https://news.example.org/", "direct")),
            "user_agent": pick(_AGENTS),
            "ip": f"10.{below(256)}.{below(256)}.{below(256)}",
            "price": round(source.random() * 500, 2),
            "currency": pick(("EUR", "USD", "GBP")),
            "country": pick(("DE", "US", "FR", "GB", "IN", "BR", "JP")),
            "items": [
                {"sku": f"SKU-{below(10**6):06d}", "qty": 1 + below(4), "price": round(source.random() * 90, 2)}
                for _ in range(1 + below(3))
            ],
        }
    ).encode()
