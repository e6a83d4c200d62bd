from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.parsing import misspelt_variables, parse_duration
from elasti.api.triggers.cluster import PodsMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.api.types import ElastiServiceSpec
from elasti.api.validation import problems

TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


def spec(**fields):
    return msgspec.convert(
        {"service": "web", "scaleTargetRef": TARGET, **fields}, ElastiServiceSpec
    )


def test_a_good_spec_has_no_problems():
    good = spec(
        triggers=[
            {"type": "prometheus", "metadata": {"query": "up", "threshold": 0.5}},
            {"type": "pods", "metadata": {"metric": "requests_total", "threshold": "1"}},
        ],
        enabledPeriod={"schedule": "0 9 * * 1-5", "duration": "8h", "timezone": "Europe/Berlin"},
    )
    assert problems(good) == []


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"autoscaler": {"type": "vpa", "name": "web"}}, "spec.autoscaler.type", "hpa, keda"),
        ({"enabledPeriod": {"schedule": "99 * * * *"}}, "spec.enabledPeriod.schedule", "99"),
        ({"enabledPeriod": {"schedule": "* * *"}}, "spec.enabledPeriod.schedule", "five fields"),
        ({"enabledPeriod": {"duration": "-1h"}}, "spec.enabledPeriod.duration", "above zero"),
        ({"enabledPeriod": {"duration": "99999999h"}}, "spec.enabledPeriod.duration", "8784h"),
        ({"enabledPeriod": {"duration": "1 hour"}}, "spec.enabledPeriod.duration", "8h"),
        ({"enabledPeriod": {"timezone": "Mars/Base"}}, "spec.enabledPeriod.timezone", "IANA"),
        ({"enabledPeriod": {"timezone": "../etc/passwd"}}, "spec.enabledPeriod.timezone", "IANA"),
        (
            {"triggers": [{"type": "prometheus", "metadata": {"query": "up"}}]},
            "spec.triggers[0].metadata",
            "threshold",
        ),
        (
            {"triggers": [{"type": "pods", "metadata": {"metric": "a b", "threshold": 1}}]},
            "spec.triggers[0].metadata",
            "metric",
        ),
        (
            {
                "triggers": [
                    {"type": "prometheus", "metadata": {"query": "up", "threshold": "many"}}
                ]
            },
            "spec.triggers[0].metadata",
            "many",
        ),
        (
            {"triggers": [{"type": "prometeus"}]},
            "spec.triggers[0].type",
            "unknown trigger 'prometeus'; did you mean 'prometheus'?",
        ),
        (
            {"triggers": [{"type": "pods", "metadata": {"metrics": "a", "threshold": 1}}]},
            "spec.triggers[0].metadata",
            "unknown key 'metrics'; did you mean 'metric'?",
        ),
        (
            {"probeResponse": [{"path": {"type": "RegularExpression", "value": "("}}]},
            "spec.probeResponse[0].path.value",
            "regular expression",
        ),
        *(
            (
                {"probeResponse": [{"path": {"type": "RegularExpression", "value": value}}]},
                "spec.probeResponse[0].path.value",
                "regular expression",
            )
            for value in ("a{1001}", "[z-a]")
        ),
        *(
            (
                {"probeResponse": [{"headers": [header]}]},
                "spec.probeResponse[0].headers.value",
                words,
            )
            for header, words in (
                ({"name": "a", "type": "RegularExpression", "value": "(?=a)"}, "look-arounds"),
                ({"name": "a", "type": "RegularExpression", "value": "(abc){700}"}, "too large"),
            )
        ),
        *(
            (
                {"sleep": {"mode": "Doze", "doze": {"cpu": cpu}}},
                "spec.sleep.doze.cpu",
                f"'{cpu}' is not a CPU request of at least 1m",
            )
            for cpu in ("2Gb", "", "-1", "0", "999u")
        ),
        *(
            (
                {"handover": {"engageSettle": settle}},
                "spec.handover.engageSettle",
                f"{settle!r} is not a settle; write Auto, or whole seconds from 1 to 600",
            )
            for settle in (-1, 0, 601, 1_000_000_000, "5m", "auto", "")
        ),
    ],
)
def test_each_problem_names_its_field_and_the_remedy(fields, field, words):
    (problem,) = problems(spec(**fields))
    assert problem.field == field
    assert words in str(problem)


def test_all_problems_are_found_at_once():
    bad = spec(enabledPeriod={"schedule": "x", "duration": "x", "timezone": "x"})
    assert len(problems(bad)) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86400.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("-2s", -2.0), ("300ms", 0.3), ("0", 0.0)],
)
def test_durations_are_those_of_go(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.text(alphabet="0123456789.-+ hmsx", max_size=8).filter(lambda text: "x" in text))
def test_any_other_text_is_refused_as_a_duration(text):
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_a_counter_is_known_by_its_name_unless_its_type_is_given():
    def read(**metadata):
        return read_metadata("pods", {"threshold": 0, **metadata})

    counter, gauge, said = (
        read(metric="a_total"),
        read(metric="a"),
        read(metric="a", kind="counter"),
    )
    assert isinstance(counter, PodsMetadata)
    assert isinstance(gauge, PodsMetadata)
    assert isinstance(said, PodsMetadata)
    assert (counter.is_counter, gauge.is_counter, said.is_counter) == (True, False, True)


def test_headers_do_not_show_in_the_representation():
    secret = {"query": "up", "threshold": 1, "headers": {"Authorization": "Bearer secret"}}
    assert "secret" not in repr(read_metadata("prometheus", secret))


def test_a_variable_that_is_nearly_known_is_named_with_the_nearest():
    known = ("POLLING_INTERVAL", "ELASTI_RESOLVER_PORT", "ELASTI_ENGAGE_SETTLE")
    environ = (
        *("POLING_INTERVAL", "ELASTI_ENGAGE_SETTEL", "ELASTI_RESOLVER_PORT", "PATH"),
        # What Kubernetes sets for a Service of the namespace.
        *("ELASTI_RESOLVER_SERVICE_PORT", "ELASTI_RESOLVER_PORT_8012_TCP"),
    )
    assert misspelt_variables(known, environ) == {
        "POLING_INTERVAL": "POLLING_INTERVAL",
        "ELASTI_ENGAGE_SETTEL": "ELASTI_ENGAGE_SETTLE",
    }
