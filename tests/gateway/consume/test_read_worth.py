"""Links pay for a consumer by what its answers hold, or would hold if they waited."""

from gateway.consume.consumer_links import ReadCosts, ReadWorth


def test_bytes_pay_by_their_reads() -> None:
    worth = ReadWorth(ReadCosts(read_bytes=1000, interval_s=0.025))
    assert worth.pays(1000, 1, 0.0)
    assert not worth.pays(999, 1, 0.0)
    assert not worth.pays(1999, 2, 0.0)


def test_small_answers_pay_where_their_rate_brings_enough_in_an_uploads_interval() -> None:
    worth, now_s = ReadWorth(ReadCosts(read_bytes=1000, interval_s=0.1)), 0.0
    assert not worth.pays(100, 1, now_s)
    for _ in range(1000):  # 20,000 bytes a second
        worth.answered(100, now_s)
        now_s += 0.005
    assert worth.pays(100, 1, now_s)
    assert not worth.pays(100, 3, now_s)
    assert not worth.pays(100, 1, now_s + 5.0), "a load that ended does not last"
