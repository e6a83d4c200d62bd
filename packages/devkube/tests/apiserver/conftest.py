from __future__ import annotations

import pytest
from tests.apiserver.harness import DEFINITIONS, definition, running


@pytest.fixture
async def kube():
    async with running() as kube:
        yield kube


@pytest.fixture
async def widgets(kube):
    reply = await kube.create(DEFINITIONS, definition())
    assert reply.code == 201, reply
    return kube
