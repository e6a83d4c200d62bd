"""Lists: selectors, versions, pages of one consistent snapshot.

A page's token names the version of the first page and the last key given out; later pages are read
from the history at that version, so a list seen in pages is a list as it was at one moment. When
the history no longer reaches back, 410 tells the client to start again, and carries a token for
those who would rather go on with what there is now.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.representation import ListMeta
from elasti.devcluster.apiserver.selectors import Selection, parse_fields, parse_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Collection, Record, Store

_MATCH = "resourceVersionMatch"
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a"
    " new list without the continue parameter, or use the continue token in this response to retrieve"
    " the remainder of the results. Continuing with the provided token results in an inconsistent list"
    " - objects that were created, modified, or deleted between the time the first chunk was returned"
    " and now may show up in the list."
)


class Token(msgspec.Struct, frozen=True):
    """A continue token: the snapshot's version (-1: whatever is there now) and the last key."""

    version: int
    key: str

    def write(self) -> str:
        """Return the token as clients carry it."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def read(cls, text: str) -> Token:
        """Read a client's token; 400 for one that is not ours."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
            raise status.bad_request(
                f"invalid continue token: continue key is not valid: {error}"
            ) from error


def selection(call: Call) -> Selection:
    """Return what a list, a watch or a deletion of a collection is about."""
    allowed = ("metadata.name", "metadata.namespace", *call.resource.strategy.selectable)
    fields = parse_fields(call.query.get("fieldSelector", ""), allowed)
    if call.name:
        fields = (*fields, ("metadata.name", True, call.name))
    return Selection(
        namespace=call.namespace,
        labels=parse_labels(call.query.get("labelSelector", "")),
        fields=fields,
    )


def whole_number(call: Call, name: str) -> int:
    """Read a number that may not be negative; 0 where it is not given."""
    text = call.query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def read_version(call: Call) -> int | None:
    """Read `resourceVersion`; None where it is not given."""
    text = call.query.get("resourceVersion", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        why = (
            f'resourceVersion: Invalid value: "{text}":'
            f' strconv.ParseUint: parsing "{text}": invalid syntax'
        )
        # Where the real server's storage stumbles over it, it says 500: a mistake of the sender's.
        if call.attributes.verb == "list":
            why = f"invalid resource version: {why}"
        raise status.bad_request(why)
    return int(text)


class Lister:
    """The list verb."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self, call: Call) -> tuple[list[Record], ListMeta]:
        """Return the page asked for."""
        collection = self._store.collection(call.resource.stored_in)
        limit = whole_number(call, "limit")
        token = call.query.get("continue", "")
        wanted = selection(call)
        if token:
            return self._continue(call, collection, wanted, limit, Token.read(token))
        version, records = self._first(call, collection)
        if call.query.get("resourceVersion") == "0":
            limit = 0  # a real server answers this one from its cache, in one piece
        return self._cut(records, wanted, limit, version)

    def _first(self, call: Call, collection: Collection) -> tuple[int, Iterable[Record]]:
        asked, match = read_version(call), call.query.get("resourceVersionMatch", "")
        current = self._store.version
        if "sendInitialEvents" in call.query:
            raise bad_match(
                status.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
            )
        if match not in ("", "Exact", "NotOlderThan"):
            raise bad_match(status.unsupported(_MATCH, match, ["Exact", "NotOlderThan", ""]))
        if match and asked is None:
            raise bad_match(
                status.forbidden(
                    _MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"
                )
            )
        if asked is not None and asked > current:
            raise status.too_large(asked, current)
        if match == "Exact":
            if not asked:
                raise bad_match(
                    status.forbidden(
                        _MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                    )
                )
            if asked < collection.log.compacted:
                raise status.expired(
                    f"The resourceVersion for the provided list is too old: {asked}"
                )
            return asked, collection.at(asked).values()
        return current, collection.scan(call.namespace)

    def _continue(
        self, call: Call, collection: Collection, wanted: Selection, limit: int, token: Token
    ) -> tuple[list[Record], ListMeta]:
        if read_version(call):
            raise status.bad_request(
                "specifying resource version is not allowed when using continue"
            )
        records: Iterable[Record]
        if token.version < 0:
            version, records = self._store.version, collection.scan(call.namespace)
        elif token.version < collection.log.compacted or token.version > self._store.version:
            raise _expired(token)
        else:
            version, records = token.version, collection.at(token.version).values()
        later = (record for record in records if record.key > token.key)
        return self._cut(later, wanted, limit, version)

    def _cut(
        self, records: Iterable[Record], wanted: Selection, limit: int, version: int
    ) -> tuple[list[Record], ListMeta]:
        found: Iterator[Record] = (record for record in records if wanted.covers(record))
        if not limit:
            return list(found), ListMeta(version=version)
        page = list(itertools.islice(found, limit))
        rest = sum(1 for _ in found)
        if not rest:
            return page, ListMeta(version=version)
        token = Token(version, page[-1].key).write()
        # With a selector a real server does not count what remains.
        remaining = rest if wanted.is_empty else None
        return page, ListMeta(version=version, continue_token=token, remaining=remaining)


def _expired(token: Token) -> status.StatusError:
    refusal = status.expired(_EXPIRED)
    refusal.status["metadata"] = {"continue": Token(-1, token.key).write()}
    return refusal


def bad_match(error: status.FieldError) -> status.StatusError:
    """422: `resourceVersionMatch` does not go with the other parameters."""
    return status.invalid_options("ListOptions", error)
