"""Which runs make up a log."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.released_offsets import ReleasedUpTo
from recovery.logs.log_plan import EpochStart, Gap, LogRuns, PlanRules
from tests.recovery.stored_logs import ORDERS, ModelLog, model_logs, run, starts_of

NO_RULES = PlanRules()


@given(model_logs(), st.randoms(use_true_random=False))
def test_the_plan_is_the_last_leaders_log_whatever_was_uploaded_before(model: ModelLog, rng: Random) -> None:
    uploads = list(model.uploads)
    rng.shuffle(uploads)

    plan = LogRuns(uploads).plan(NO_RULES)

    taken = [
        (offset, extent.run.leader_epoch)
        for extent in plan.extents
        for offset in range(extent.first_offset, extent.last_offset + 1)
    ]
    assert taken == list(enumerate(model.writer))
    assert plan.leader_epochs == starts_of(model)
    assert plan.gap is None
    assert all(
        extent.run.first_offset <= extent.first_offset <= extent.last_offset <= extent.run.living_last_offset
        for extent in plan.extents
    )


@given(model_logs(), st.data())
def test_what_is_lost_ends_the_log_before_the_first_offset_that_nothing_holds(
    model: ModelLog, data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.sampled_from(model.uploads)))
    kept = [one for one in model.uploads if one not in lost]

    plan = LogRuns(kept, lost).plan(PlanRules(start_offset=0))

    held = {
        offset
        for one in kept
        for offset in range(one.first_offset, one.last_offset + 1)
        if offset < len(model.writer) and model.writer[offset] == one.leader_epoch
    }
    end = next((offset for offset in range(len(model.writer)) if offset not in held), len(model.writer))
    assert plan.end_offset == end
    assert sum(extent.last_offset + 1 - extent.first_offset for extent in plan.extents) == end
    if end < len(model.writer):
        behind = next((offset for offset in range(end, len(model.writer)) if offset in held), len(model.writer))
        assert plan.gap == Gap(end, behind)
    else:
        assert plan.gap is None


def test_an_epoch_without_records_is_none_of_the_logs_where_an_older_one_was_brought_back() -> None:
    # Epoch 1 was declared to begin at 5; the leader of epoch 2, unclean, had more of epoch 0 and uploaded it anew.
    brought_back = [run(0, 0, 9, 1, dead_from=5), run(0, 5, 9, 2), run(2, 10, 14, 3)]

    plan = LogRuns(brought_back, known_starts=[EpochStart(1, 5)]).plan(NO_RULES)

    assert (plan.end_offset, plan.gap) == (15, None)
    assert plan.leader_epochs == (EpochStart(0, 0), EpochStart(2, 10))


def test_leftovers_older_than_the_retention_do_not_end_the_log() -> None:
    leftover = run(1, 0, 9, 1, written_ms=100)
    stored = LogRuns([leftover, run(1, 50, 59, 2, written_ms=900), run(1, 60, 69, 3, written_ms=950)])

    plan = stored.plan(PlanRules(retention_horizon_ms=500))
    assert (plan.start_offset, plan.end_offset, plan.gap, len(plan.extents)) == (50, 70, None, 2)

    unexpired = stored.plan(PlanRules(retention_horizon_ms=50))
    assert (unexpired.end_offset, unexpired.gap) == (10, Gap(10, 50))

    asked_for = stored.plan(PlanRules(begins_behind_last_gap=True))
    assert (asked_for.start_offset, asked_for.end_offset) == (50, 70)


def test_a_compacted_log_may_have_holes() -> None:
    plan = LogRuns([run(1, 0, 9, 1), run(1, 30, 39, 2)]).plan(PlanRules(may_have_holes=True))

    assert (plan.start_offset, plan.end_offset, plan.gap) == (0, 40, None)


def test_the_checkpoint_begins_with_the_log() -> None:
    plan = LogRuns([run(1, 100, 109, 1), run(2, 110, 119, 2)]).plan(PlanRules(start_offset=105))

    assert plan.leader_epochs == (EpochStart(1, 105), EpochStart(2, 110))
    assert plan.extents[0].first_offset == 105


def test_other_copies_of_an_offset_are_found_the_furthest_reaching_first() -> None:
    short, long, other_epoch = run(1, 0, 5, 1), run(1, 3, 9, 2), run(0, 0, 9, 3)

    copies = LogRuns([short, long, other_epoch]).copies(4)

    assert [copy.run for copy in copies] == [long, short]


def declared(from_offset: int, to_offset: int, leader_epoch: int = 0) -> PlanRules:
    gap = DeclaredGap(ORDERS, from_offset, to_offset, leader_epoch, GapReason.RETENTION)
    return PlanRules(declared_gaps=(gap,))


def test_a_log_goes_on_behind_a_declared_gap_and_ends_before_one_that_nobody_declared() -> None:
    runs = [run(0, 0, 9, 1), run(0, 20, 29, 2), run(0, 40, 49, 3)]
    assert LogRuns(runs).plan(NO_RULES).gap == Gap(10, 20)
    plan = LogRuns(runs).plan(declared(10, 20))
    assert [(extent.first_offset, extent.last_offset) for extent in plan.extents] == [(0, 9), (20, 29)]
    assert (plan.end_offset, plan.declared_gaps, plan.gap) == (30, (Gap(10, 20),), Gap(30, 40))
    assert LogRuns(runs).plan(declared(10, 19)).gap == Gap(10, 20), "not all of it was declared"
    assert LogRuns(runs).plan(declared(5, 60)).gap is None


def test_a_gap_that_a_newer_epoch_has_written_over_counts_no_more() -> None:
    runs = [run(0, 0, 9, 1), run(2, 20, 29, 2), run(2, 15, 15, 3)]
    assert LogRuns(runs).plan(declared(10, 20, leader_epoch=1)).gap == Gap(16, 20)
    assert LogRuns(runs).plan(declared(10, 20, leader_epoch=2)).gap is None


def test_leftovers_before_a_declared_gap_do_not_come_back() -> None:
    old, young = run(0, 0, 9, 1), run(0, 20, 29, 9)
    rules = replace(declared(10, 20), retention_horizon_ms=5)
    plan = LogRuns([old, young]).plan(rules)
    assert (plan.start_offset, plan.end_offset, plan.declared_gaps) == (20, 30, ())


def test_a_declared_gap_at_the_known_end_or_start_of_a_log_is_none_of_the_plan() -> None:
    lost = run(0, 10, 19, 2)
    plan = LogRuns([run(0, 0, 9, 1)], [lost]).plan(declared(10, 20))
    assert (plan.end_offset, plan.gap) == (10, None)
    plan = LogRuns([lost]).plan(replace(declared(0, 10), start_offset=0))
    assert (plan.start_offset, plan.end_offset, plan.gap) == (10, 20, None)


def test_what_was_uploaded_anew_before_a_released_gap_does_not_hide_what_is_behind_it() -> None:
    young, old, behind = run(0, 0, 2, 7, written_ms=900), run(0, 3, 3, 4, written_ms=100), run(0, 4, 9, 8)
    released = PlanRules(retention_horizon_ms=500, released=(ReleasedUpTo(ORDERS, 0, 4),))
    plan = LogRuns([young, behind]).plan(released)
    assert (plan.start_offset, plan.end_offset, plan.gap) == (4, 10, None)
    assert LogRuns([young, old, behind]).plan(released).start_offset == 0, "nothing is missing"


def test_a_gap_that_reaches_beyond_what_was_released_ends_the_log_as_before() -> None:
    runs = LogRuns([run(0, 0, 2, 7), run(0, 6, 9, 8), run(1, 8, 11, 9)])
    assert runs.plan(PlanRules(released=(ReleasedUpTo(ORDERS, 0, 5),))).gap == Gap(3, 6)
    assert runs.plan(PlanRules(released=(ReleasedUpTo(ORDERS, 2, 6),))).gap == Gap(3, 6), "of another log"
    lost = (DeclaredGap(ORDERS, 3, 6, 1, GapReason.RETENTION),)
    plan = runs.plan(PlanRules(released=(ReleasedUpTo(ORDERS, 0, 6),), declared_gaps=lost))
    assert (plan.start_offset, plan.declared_gaps) == (0, (Gap(3, 6),)), "the log goes on behind what is declared"


def test_a_gap_of_which_a_part_was_released_and_the_rest_declared_hides_nothing() -> None:
    runs = LogRuns([run(0, 0, 2, 7), run(0, 6, 9, 8)])
    rest = (DeclaredGap(ORDERS, 4, 6, 1, GapReason.RETENTION),)
    plan = runs.plan(PlanRules(released=(ReleasedUpTo(ORDERS, 0, 4),), declared_gaps=rest))
    assert (plan.start_offset, plan.end_offset, plan.gap) == (6, 10, None)
    for too_little in (0, 3):
        rules = PlanRules(released=(ReleasedUpTo(ORDERS, 0, too_little),), declared_gaps=rest)
        assert runs.plan(rules).gap == Gap(3, 6), "offset 3 is missing, and nobody said so"


def test_a_released_gap_may_be_all_of_an_epoch() -> None:
    older, newer = run(0, 0, 2, 7), run(2, 6, 9, 8)
    plan = LogRuns([older, newer]).plan(PlanRules(released=(ReleasedUpTo(ORDERS, 1, 6),)))
    assert (plan.start_offset, plan.end_offset, plan.gap) == (6, 10, None)
    beyond = PlanRules(released=(ReleasedUpTo(ORDERS, 1, 8),))
    assert LogRuns([older, newer]).plan(beyond).start_offset == 6, "its end was overwritten"
    gap_above = LogRuns([older, newer, run(2, 12, 14, 9)]).plan(PlanRules(released=(ReleasedUpTo(ORDERS, 1, 12),)))
    assert (gap_above.start_offset, gap_above.gap) == (6, Gap(10, 12)), "it ends where the newer epoch begins"
