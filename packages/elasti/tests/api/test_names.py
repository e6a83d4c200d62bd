from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.api.names import private_service_name, resolver_slice_name

service_names = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def test_names_are_those_that_kubeelasti_gives():
    assert private_service_name("target-deployment") == "elasti-target-deployment-pvt-9696239e87"
    assert private_service_name("service") == "elasti-service-pvt-9df6b026a8"
    assert (
        resolver_slice_name("target-deployment")
        == "elasti-target-deployment-endpointslice-to-resolver-9696239e87"
    )


def test_a_cut_name_keeps_the_hash_of_the_whole_and_no_double_dash():
    name = private_service_name("a" * 40 + "-" + "b" * 22)
    assert len(name) <= 63
    assert name.startswith("elasti-" + "a" * 40 + "-pvt-")


@given(service_names)
def test_names_fit_their_kinds(service):
    assert len(private_service_name(service)) <= 63
    assert len(resolver_slice_name(service)) <= 253


@given(service_names, service_names)
def test_different_services_get_different_names(one, other):
    assert (private_service_name(one) == private_service_name(other)) == (one == other)
