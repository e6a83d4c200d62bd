"""Endpoints of Services: EndpointSlices and classic Endpoints."""
