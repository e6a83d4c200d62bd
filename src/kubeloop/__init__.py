"""kubeloop: Kubernetes clients, shared informers and controllers for asyncio.

Importing the package loads nothing heavy: the names below are resolved when they are first used.
"""
