"""A broker that is away is told of once."""

from replication.wire.peer_listener import News


def test_the_same_is_told_anew_once_it_was_over_and_another_error_at_once() -> None:
    news = News()
    assert [news.is_new(error) for error in ("refused", "refused", "timed out", "timed out", "refused")] == [
        True,
        False,
        True,
        False,
        True,
    ]
    news.is_over()
    assert news.is_new("refused")
