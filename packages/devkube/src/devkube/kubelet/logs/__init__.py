"""What containers print: stored, read, and served."""

from __future__ import annotations
