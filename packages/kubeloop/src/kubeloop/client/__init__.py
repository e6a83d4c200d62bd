"""Configuration, authentication and REST: the only package that speaks to an API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import homes_of, lazy_attributes
from kubeloop.client.errors import AlreadyExists as AlreadyExists
from kubeloop.client.errors import AmbiguousMatch as AmbiguousMatch
from kubeloop.client.errors import ApiError as ApiError
from kubeloop.client.errors import ApplyConflict as ApplyConflict
from kubeloop.client.errors import BadRequest as BadRequest
from kubeloop.client.errors import CertificateError as CertificateError
from kubeloop.client.errors import ConfigError as ConfigError
from kubeloop.client.errors import Conflict as Conflict
from kubeloop.client.errors import ConnectionLost as ConnectionLost
from kubeloop.client.errors import ConnectionRefused as ConnectionRefused
from kubeloop.client.errors import CredentialError as CredentialError
from kubeloop.client.errors import Forbidden as Forbidden
from kubeloop.client.errors import Gone as Gone
from kubeloop.client.errors import HostNotFound as HostNotFound
from kubeloop.client.errors import InternalError as InternalError
from kubeloop.client.errors import Invalid as Invalid
from kubeloop.client.errors import KubeError as KubeError
from kubeloop.client.errors import MethodNotAllowed as MethodNotAllowed
from kubeloop.client.errors import NoMatch as NoMatch
from kubeloop.client.errors import NotFound as NotFound
from kubeloop.client.errors import OutputTooLong as OutputTooLong
from kubeloop.client.errors import ProtocolError as ProtocolError
from kubeloop.client.errors import RequestTimeout as RequestTimeout
from kubeloop.client.errors import ServerTimeout as ServerTimeout
from kubeloop.client.errors import ServiceUnavailable as ServiceUnavailable
from kubeloop.client.errors import TooManyRequests as TooManyRequests
from kubeloop.client.errors import TransportError as TransportError
from kubeloop.client.errors import Unauthorized as Unauthorized

if TYPE_CHECKING:
    from kubeloop.client.access import AccessDecision as AccessDecision
    from kubeloop.client.access import can_i as can_i
    from kubeloop.client.auth.identity import Impersonation as Impersonation
    from kubeloop.client.changes import retry_on_conflict as retry_on_conflict
    from kubeloop.client.client import Client as Client
    from kubeloop.client.config.client_config import ClientConfig as ClientConfig
    from kubeloop.client.config.endpoint import Endpoint as Endpoint
    from kubeloop.client.discovery import ResourceInfo as ResourceInfo
    from kubeloop.client.mapper import RestMapper as RestMapper
    from kubeloop.client.pager import Pager as Pager
    from kubeloop.client.pod_streams import CommandResult as CommandResult
    from kubeloop.client.pod_streams import ContainerProcess as ContainerProcess
    from kubeloop.client.pod_streams import PodStreams as PodStreams
    from kubeloop.client.ratelimit import RateLimit as RateLimit
    from kubeloop.client.request import Preconditions as Preconditions
    from kubeloop.client.request import Request as Request
    from kubeloop.client.resource import Resource as Resource
    from kubeloop.client.retry import RetryPolicy as RetryPolicy
    from kubeloop.client.subresource import Subresource as Subresource
    from kubeloop.client.waiting import has_condition as has_condition
    from kubeloop.client.waiting import wait_for as wait_for
    from kubeloop.client.waiting import wait_until_deleted as wait_until_deleted
    from kubeloop.client.wire.transport import Timeouts as Timeouts

_EXPORTS = homes_of(
    {
        "kubeloop.client.access": "AccessDecision can_i",
        "kubeloop.client.auth.identity": "Impersonation",
        "kubeloop.client.changes": "retry_on_conflict",
        "kubeloop.client.client": "Client",
        "kubeloop.client.config.client_config": "ClientConfig",
        "kubeloop.client.config.endpoint": "Endpoint",
        "kubeloop.client.discovery": "ResourceInfo",
        "kubeloop.client.mapper": "RestMapper",
        "kubeloop.client.pager": "Pager",
        "kubeloop.client.pod_streams": "CommandResult ContainerProcess PodStreams",
        "kubeloop.client.ratelimit": "RateLimit",
        "kubeloop.client.request": "Preconditions Request",
        "kubeloop.client.resource": "Resource",
        "kubeloop.client.retry": "RetryPolicy",
        "kubeloop.client.subresource": "Subresource",
        "kubeloop.client.waiting": "has_condition wait_for wait_until_deleted",
        "kubeloop.client.wire.transport": "Timeouts",
    }
)

if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
