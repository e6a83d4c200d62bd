from __future__ import annotations

from typing import Any

import pytest

from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.meta import DICT_ACCESS, ObjectMeta, OwnerReference, PartialObjectMetadata
from kubeloop.objects.owners import (
    AlreadyOwnedError,
    OwnershipError,
    controller_of,
    is_of_kind,
    is_same_owner,
    owner_reference,
    remove_controller_reference,
    set_controller_reference,
    with_owner,
)


def deployment(name: str = "web", namespace: str = "shop", uid: str = "u1") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "uid": uid}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta}


def child(namespace: str = "shop") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}}


@pytest.mark.spec("C20")
def test_a_controller_reference_names_the_owner_and_blocks_its_deletion() -> None:
    pod = child()
    set_controller_reference(pod, deployment())
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u1",
         "controller": True, "blockOwnerDeletion": True}
    ]  # fmt: skip


@pytest.mark.spec("C20")
def test_setting_the_reference_again_replaces_an_older_version_of_it() -> None:
    pod = child()
    old = {"apiVersion": "apps/v1beta1", "kind": "Deployment", "name": "web", "uid": "u0"}
    pod["metadata"]["ownerReferences"] = [old]
    set_controller_reference(pod, deployment(uid="u2"))
    (owner,) = DICT_ACCESS.owners(pod)
    assert (owner.api_version, owner.uid, owner.controller) == ("apps/v1", "u2", True)


@pytest.mark.spec("C20")
def test_second_controller_is_refused_and_object_stays_as_it_was() -> None:
    pod = child()
    set_controller_reference(pod, deployment("first"))
    with pytest.raises(AlreadyOwnedError, match="controlled by Deployment 'first'") as caught:
        set_controller_reference(pod, deployment("second"))
    assert caught.value.owner.name == "first"
    assert [owner.name for owner in DICT_ACCESS.owners(pod)] == ["first"]


@pytest.mark.spec("C20")
def test_an_owner_in_another_namespace_is_refused() -> None:
    with pytest.raises(OwnershipError, match="'other' cannot own an object in 'shop'"):
        set_controller_reference(child(), deployment(namespace="other"))


@pytest.mark.spec("C20")
def test_a_namespaced_owner_of_a_cluster_scoped_object_is_refused() -> None:
    with pytest.raises(OwnershipError, match="cluster-scoped"):
        set_controller_reference(child(namespace=""), deployment())


@pytest.mark.spec("C20")
def test_a_cluster_scoped_owner_may_own_anything() -> None:
    for namespace in ("", "shop"):
        pod = child(namespace)
        set_controller_reference(pod, deployment(namespace=""))
        assert controller_of(DICT_ACCESS.owners(pod)) is not None


@pytest.mark.spec("C20")
def test_removing_takes_the_controller_and_leaves_the_other_owners() -> None:
    pod = child()
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u9"}
    ]
    set_controller_reference(pod, deployment())
    remove_controller_reference(pod, deployment())
    assert [owner.kind for owner in DICT_ACCESS.owners(pod)] == ["Node"]


@pytest.mark.spec("C20")
def test_removing_what_does_not_control_is_an_error() -> None:
    pod = child()
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u1"}
    ]
    with pytest.raises(OwnershipError, match="does not control"):
        remove_controller_reference(pod, deployment())


def test_structs_carry_owners_too() -> None:
    pod = PartialObjectMetadata("v1", "Pod", ObjectMeta(name="p", namespace="shop"))
    set_controller_reference(pod, deployment(), GroupVersionKind("apps", "v1", "Deployment"))
    owner = controller_of(pod.metadata.owner_references or ())
    assert owner is not None
    assert owner.name == "web"


def test_an_owner_without_uid_or_kind_is_refused() -> None:
    with pytest.raises(OwnershipError, match="has no uid"):
        owner_reference(deployment(uid=""))
    with pytest.raises(ValueError, match="GroupVersionKind"):
        owner_reference({"metadata": {"name": "x", "uid": "u"}})


def test_owners_are_the_same_in_every_version_of_their_group() -> None:
    left = OwnerReference("apps/v1", "Deployment", "web", "u1")
    right = OwnerReference("apps/v1beta1", "Deployment", "web", "u2")
    other = OwnerReference("extensions/v1beta1", "Deployment", "web", "u1")
    assert is_same_owner(left, right)
    assert not is_same_owner(left, other)
    assert is_of_kind(right, "apps", "Deployment")
    assert not is_of_kind(other, "apps", "Deployment")


def test_a_plain_owner_may_stand_beside_a_controller() -> None:
    controller = OwnerReference("apps/v1", "ReplicaSet", "rs", "u1", controller=True)
    plain = OwnerReference("v1", "ConfigMap", "cm", "u2")
    assert with_owner((controller,), plain) == (controller, plain)
