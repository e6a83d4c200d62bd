"""Cases with real programs as pods, on the dev cluster and on the real control plane."""

from __future__ import annotations

import pytest

from tests.e2e.cases import kubeelasti, solos
from tests.e2e.cases.theatre import Case, Theatre

# Others play on when a case has ended, with threads of their own.
pytestmark = [pytest.mark.timeout(450), pytest.mark.allow_leaks("threads")]


@pytest.mark.parametrize("case", kubeelasti.CASES, ids=lambda case: case.__name__)
def test_kubeelastis(theatre: Theatre, case: Case):
    theatre.outcome(case)


@pytest.mark.parametrize("solo", solos.SOLOS, ids=lambda case: case.__name__)
def test_alone(theatre: Theatre, solo: Case):
    theatre.alone(solo)
