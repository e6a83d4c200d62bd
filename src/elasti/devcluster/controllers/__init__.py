"""The controllers of the dev cluster: kubeloop programs that any API server can have.

`controllers.Controllers` is the whole of it. Each kind has a package: its objects as slim Structs,
planners that are pure, and a reconciler that observes, plans and writes.
"""
