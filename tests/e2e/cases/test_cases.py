"""Cases with real programs as pods, on the dev cluster and on the real control plane."""

from __future__ import annotations

import pytest

from tests.e2e.cases import exclusive_cases, kubeelasti
from tests.e2e.cases.session import Case, Session

# Others play on when a case has ended, with threads of their own.
pytestmark = [pytest.mark.timeout(450), pytest.mark.allow_leaks("threads")]


@pytest.mark.parametrize("case", kubeelasti.CASES, ids=lambda case: case.__name__)
def test_kubeelastis(session: Session, case: Case):
    session.outcome(case)


@pytest.mark.parametrize(
    "exclusive_case", exclusive_cases.EXCLUSIVE_CASES, ids=lambda case: case.__name__
)
def test_alone(session: Session, exclusive_case: Case):
    session.alone(exclusive_case)
