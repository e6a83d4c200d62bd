"""Work of several parties."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kubeloop.aio.fairness import FairQueue


@given(st.lists(st.sampled_from("abc")), st.integers(1, 3), st.data())
def test_every_job_is_done_once_and_no_lane_is_overfull(jobs, per_group, data):
    lanes: FairQueue[int] = FairQueue(per_group=per_group)
    for number, lane in enumerate(jobs):
        lanes.add(lane, number)
    under_way: list[tuple[str, int]] = []
    done: list[int] = []
    while len(lanes) or under_way:
        taken = lanes.take()
        if taken is not None:
            under_way.append(taken)
            assert jobs[taken[1]] == taken[0]
            assert max(Counter(lane for lane, _ in under_way).values()) <= per_group
        else:
            # Nobody is left to begin, or every lane with something to do is full.
            assert under_way
        if under_way and (taken is None or data.draw(st.booleans())):
            lane, number = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            lanes.done(lane)
            done.append(number)
    assert sorted(done) == list(range(len(jobs)))


def test_lanes_take_turns():
    lanes: FairQueue[str] = FairQueue(per_group=9)
    for job in ("a1", "a2", "a3", "b1", "c1", "c2"):
        lanes.add(job[0], job)
    taken = [found[1] for found in iter(lanes.take, None)]
    assert taken == ["a1", "b1", "c1", "a2", "c2", "a3"]
