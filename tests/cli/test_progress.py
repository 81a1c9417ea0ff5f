import pytest

from cli.progress import lines_from_time_to_time, shown_progress


class _Lines:
    def __init__(self) -> None:
        self.written: list[str] = []
        self.now_s = 0.0
        self.tell = lines_from_time_to_time(self.written.append, lambda: self.now_s)

    def at(self, now_s: float, text: str) -> None:
        self.now_s = now_s
        self.tell(text)


def test_without_a_terminal_a_step_is_told_when_it_begins_and_how_far_it_is_at_times() -> None:
    lines = _Lines()
    lines.at(0.0, "listing objects")
    lines.at(0.1, "reading objects: 1 of 900")
    lines.at(9.0, "reading objects: 200 of 900")
    lines.at(11.0, "reading objects: 400 of 900")
    lines.at(12.0, "reading objects: 500 of 900")
    lines.at(12.5, "listing objects")
    assert lines.written == [
        "listing objects\n",
        "reading objects: 1 of 900\n",
        "reading objects: 400 of 900\n",
        "listing objects\n",
    ]


def test_standard_output_is_left_to_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("reading settings") as tell:
        tell("listing objects")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "reading settings\nlisting objects\n")
