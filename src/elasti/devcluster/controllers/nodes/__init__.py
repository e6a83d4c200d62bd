"""Nodes: where pods go, and what becomes of pods whose node is lost."""
