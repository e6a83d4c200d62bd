"""The controllers of the dev cluster: kubeloop programs that any API server can have.

`manager.ControllerManager` is the whole of it. Each controller is a file: planners that are pure, and a
reconciler that observes, plans and writes; a long plan has a file of its own beside it.
"""
