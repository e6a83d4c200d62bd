"""Autoscalers that share a target with Elasti: paused while it sleeps, resumed before it wakes."""
