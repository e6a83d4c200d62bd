"""What resolvers answer together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.api.wire import ActivityReport
from elasti.operator.handover.execute import combined_activity
from elasti.operator.model.state import Activity


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.builds(
                ActivityReport,
                held=st.integers(0, 2),
                open=st.integers(0, 2),
                last_arrival_age=st.one_of(st.none(), st.floats(0, 100)),
            ),
        ),
        max_size=4,
    ),
    st.floats(0.1, 50),
)
def test_the_answer_is_quiet_only_if_all_resolvers_are(reports, since):
    verdict = combined_activity(reports, since)
    quiet = bool(reports) and all(
        report is not None
        and not report.held
        and not report.open
        and (report.last_arrival_age is None or report.last_arrival_age >= since)
        for report in reports
    )
    assert (verdict is Activity.QUIET) is quiet
    if any(report and (report.held or report.open) for report in reports):
        assert verdict is Activity.BUSY
