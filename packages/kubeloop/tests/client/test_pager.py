"""Pages of a list as one iteration."""

from __future__ import annotations

import pytest

from kubeloop.client.errors import Gone, Status, StatusListMeta, error_from_status
from kubeloop.client.pager import Pager
from kubeloop.objects.list_watch import ListOptions, Page

FIRST = ListOptions(
    limit=2, label_selector="a=b", resource_version="5", resource_version_match="Exact"
)


class Server:
    """Answers list requests from a script and remembers them."""

    def __init__(self, *answers: Page[str] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[ListOptions] = []

    async def fetch(self, options: ListOptions) -> Page[str]:
        self.asked.append(options)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def expired(token: str = "") -> Gone:
    status = Status(code=410, reason="Expired", metadata=StatusListMeta(continue_token=token))
    error = error_from_status(status)
    assert isinstance(error, Gone)
    return error


@pytest.mark.spec("R5")
async def test_later_pages_carry_only_token_limit_and_selectors():
    server = Server(
        Page(["a", "b"], "10", "t1", 3), Page(["c", "d"], "11", "t2"), Page(["e"], "12")
    )
    pager = Pager(server.fetch, FIRST)
    assert pager.resource_version == ""
    assert [item async for item in pager] == ["a", "b", "c", "d", "e"]
    assert pager.resource_version == "10"
    assert server.asked == [
        FIRST,
        ListOptions(limit=2, label_selector="a=b", continue_token="t1"),
        ListOptions(limit=2, label_selector="a=b", continue_token="t2"),
    ]


async def test_pages_are_fetched_as_they_are_wanted():
    server = Server(Page(["a"], "10", "t1", 7))
    pager = Pager(server.fetch, FIRST)
    async for item in pager:
        assert item == "a"
        break
    assert len(server.asked) == 1
    assert pager.remaining == 7


async def test_whole_pages_can_be_had():
    server = Server(Page(["a"], "10", "t1"), Page([], "10"))
    sizes = [len(page.items) async for page in Pager(server.fetch, FIRST).pages()]
    assert sizes == [1, 0]


async def test_every_iteration_starts_over():
    server = Server(Page(["a"], "10"), Page(["b"], "20"))
    pager = Pager(server.fetch, FIRST)
    assert await pager.to_list() == ["a"]
    assert await pager.to_list() == ["b"]
    assert pager.resource_version == "20"


async def test_an_expired_token_is_the_callers_to_handle():
    server = Server(Page(["a"], "10", "t1"), expired("fresh"))
    items = aiter(Pager(server.fetch, FIRST))
    assert await anext(items) == "a"
    with pytest.raises(Gone):
        await anext(items)


async def test_where_inconsistency_is_allowed_it_goes_on_from_same_place():
    server = Server(Page(["a"], "10", "t1"), expired("fresh"), Page(["b"], "30"))
    pager = Pager(server.fetch, FIRST, allow_inconsistent=True)
    assert await pager.to_list() == ["a", "b"]
    assert [options.continue_token for options in server.asked] == ["", "t1", "fresh"]
    assert pager.resource_version == "10"


@pytest.mark.parametrize("answers", [[expired("x")], [Page(["a"], "10", "t1"), expired("")]])
async def test_gone_on_first_page_or_without_new_token_is_final(answers):
    with pytest.raises(Gone):
        await Pager(Server(*answers).fetch, FIRST, allow_inconsistent=True).to_list()
