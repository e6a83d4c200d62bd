"""Which targets' pods a Service leads to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.operator.watch.event_mapping import PodLabels
from kubeloop.controller.reconcile import Request

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
REQUESTS = st.builds(Request, st.sampled_from(["shop", "desk"]), st.sampled_from(["web", "api"]))


@given(st.lists(st.tuples(REQUESTS, st.none() | LABELS)), LABELS)
def test_a_selector_finds_exactly_those_whose_labels_have_all_of_it(changes, selector):
    filed = PodLabels()
    known: dict[Request, dict[str, str]] = {}
    for request, labels in changes:
        if labels is None:
            filed.forget(request)
            known.pop(request, None)
        else:
            filed.put(request, labels)
            known[request] = labels
    expected = [
        request
        for request, labels in sorted(known.items())
        if request.namespace == "shop" and selector and selector.items() <= labels.items()
    ]
    assert list(filed.selected_by("shop", selector)) == expected
