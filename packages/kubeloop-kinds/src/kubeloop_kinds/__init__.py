"""Kubernetes' built-in kinds as msgspec Structs, one module for each group and version.

    from kubeloop_kinds.apps.v1 import Deployment

Nothing is imported but the modules that you name and the parts that they use.
"""

from kubeloop_kinds._version import __version__ as __version__
