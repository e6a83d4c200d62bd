from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.fields import FieldSelector, FieldTerm, escape_field_value, read_field
from kubeloop.objects.selectors import SelectorError

_terms = st.builds(
    FieldTerm,
    st.sampled_from(["metadata.name", "spec.nodeName", "status.phase", "type"]),
    st.text(alphabet="ab\\,=! .", max_size=10) | st.text(max_size=10),
    st.booleans(),
)
_selectors = st.lists(_terms, max_size=4).map(lambda terms: FieldSelector(tuple(terms)))

POD = {
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"hostNetwork": True, "unschedulable": False, "priority": 7},
    "status": {"phase": "Running", "conditions": []},
}


@given(_selectors)
def test_text_of_field_selector_parses_to_same_selector(selector: FieldSelector) -> None:
    assert FieldSelector.parse(str(selector)) == selector


@given(st.text(alphabet="ab\\,=!", max_size=12))
def test_an_escaped_value_comes_back_whole(value: str) -> None:
    assert FieldSelector.parse(f"f={escape_field_value(value)}").exact("f") == value


@given(st.text(alphabet="ab\\,=!", max_size=15))
def test_any_text_either_round_trips_or_is_refused(text: str) -> None:
    try:
        selector = FieldSelector.parse(text)
    except SelectorError:
        return
    assert FieldSelector.parse(str(selector)) == selector


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("x=a,y=b,z!=c", "x=a,y=b,z!=c"),
        ("x==a", "x=a"),
        ("b=1,,a=2,", "a=2,b=1"),
        ("x=", "x="),
        (r"x=a\,b\=c\\", r"x=a\,b\=c\\"),
        ("x=a b", "x=a b"),
    ],
)
def test_text_is_read_into_the_normal_form(text: str, normal: str) -> None:
    assert str(FieldSelector.parse(text)) == normal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "'x' is not 'field=value'"),
        ("x=a=b", "must be escaped"),
        ("x=a\\n", "is not an escape"),
        ("x=a\\", "is not an escape"),
        ("x||y=b=c", "must be escaped"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        FieldSelector.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("metadata.name=web", True),
        ("metadata.name!=web", False),
        ("metadata.name=web,status.phase=Running", True),
        ("metadata.name=web,status.phase!=Running", False),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("spec.hostNetwork=true", True),
        ("spec.unschedulable=false", True),
        ("spec.priority=7", True),
        ("status.phase.deeper=", True),
        ("status.conditions=", True),
    ],
)
def test_objects_match_by_dotted_path(text: str, expected: bool) -> None:
    assert FieldSelector.parse(text).matches_object(POD) is expected


def test_fields_may_be_read_by_the_callers_own_function() -> None:
    selector = FieldSelector.parse({"a": "A", "b": "B"})
    assert selector.matches(str.upper)
    assert not selector.matches(str)


def test_exact_returns_the_value_only_if_there_is_one() -> None:
    selector = FieldSelector.parse("metadata.name=web,spec.nodeName!=n1")
    assert selector.exact("metadata.name") == "web"
    assert selector.exact("spec.nodeName") is None
    assert selector.exact("status.phase") is None


def test_a_missing_field_reads_as_empty_text() -> None:
    assert read_field({}, "metadata.name") == ""
    assert read_field({"metadata": None}, "metadata.name") == ""
