"""Admission webhooks: functions that the API server asks before it stores an object.

    admission = Admission(service="websites")

    @admission.validating("example.com/v1/websites", Website)
    async def limit_text(site: Website, request: AdmissionRequest[Website]) -> None:
        if len(site.spec.text) > 1000:
            raise Denied("spec.text is too long; 1000 characters are the most")

    run(websites, admission=admission)

The program makes its certificates, keeps them in a Secret that all replicas share, renews them while
it runs, and writes the webhook configuration with the authority that the API server is to trust.
`AdmissionServer` is the part to add to a manager of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import homes_of, lazy_attributes

if TYPE_CHECKING:
    from kubeloop.webhook.admission import Admission as Admission
    from kubeloop.webhook.certificate_secret import Lifetimes as Lifetimes
    from kubeloop.webhook.review import AdmissionRequest as AdmissionRequest
    from kubeloop.webhook.review import Denied as Denied
    from kubeloop.webhook.review import UserInfo as UserInfo
    from kubeloop.webhook.server import AdmissionServer as AdmissionServer

_EXPORTS = homes_of(
    {
        "kubeloop.webhook.admission": "Admission",
        "kubeloop.webhook.certificate_secret": "Lifetimes",
        "kubeloop.webhook.review": "AdmissionRequest Denied UserInfo",
        "kubeloop.webhook.server": "AdmissionServer",
    }
)

if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
