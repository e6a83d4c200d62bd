from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
# The inner runs leak on purpose, and in this process.
pytestmark = pytest.mark.allow_leaks

ROOT = Path(__file__).parents[2]
CONFTEST = """
    import pytest

    @pytest.fixture(autouse=True)
    def leak_guard(leak_guards): ...
"""
IMPORTS = """
    import asyncio, socket, threading, warnings
    import pytest
"""


@pytest.fixture(autouse=True)
def plugin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run in a process of its own import the plugin."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(
    pytester: pytest.Pytester, test: str, *, conftest: str = CONFTEST, apart: bool = False
) -> pytest.RunResult:
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest(textwrap.dedent(conftest))
    pytester.makepyfile(textwrap.dedent(IMPORTS) + textwrap.dedent(test))
    runner = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
    return runner("-p", "no:cacheprovider", "-p", "tests.leaks")


def test_a_task_left_running_fails_the_test_and_is_named(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        async def forgotten(): await asyncio.Event().wait()

        async def test_leak():
            asyncio.get_running_loop().kept = asyncio.create_task(forgotten(), name="lost one")
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*left tasks behind:*", "*lost one: forgotten at *"])


def test_a_task_that_is_about_to_end_may_do_so(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        async def brief():
            for _ in range(5): await asyncio.sleep(0)

        async def test_fine():
            asyncio.create_task(brief())
            task = asyncio.create_task(asyncio.Event().wait())
            await asyncio.sleep(0)
            task.cancel()
        """,
    )
    result.assert_outcomes(passed=1)


def test_tasks_of_fixtures_are_checked_after_the_fixtures_are_gone(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        """
        @pytest.fixture
        async def server():
            task = asyncio.create_task(asyncio.Event().wait())
            yield
            task.cancel()

        async def test_fine(server): pass
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_thread_left_running_fails_the_test_and_is_named(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        STOP = threading.Event()

        def test_leak():
            threading.Thread(target=STOP.wait, name="lost thread", daemon=True).start()

        def test_after(): STOP.set()
        """,
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*left threads behind:*", "*lost thread*"])


def test_threads_of_the_loops_own_executor_are_not_a_leak(pytester: pytest.Pytester) -> None:
    result = run(pytester, "async def test_fine(): await asyncio.to_thread(int)")
    result.assert_outcomes(passed=1)


def test_an_unclosed_socket_fails_the_test_and_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_leak(): socket.socket()")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*ResourceWarning: unclosed <socket.socket*"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("await asyncio.start_server(print, '127.0.0.1', 0)", "*server at ('127.0.0.1', *"),
        ("await asyncio.open_connection(sock=PAIR[0])", "*SelectorSocketTransport*"),
    ],
)
def test_transport_or_server_left_open_fails_test_and_is_named(
    pytester: pytest.Pytester, body: str, named: str
) -> None:
    result = run(
        pytester,
        f"""
        PAIR = socket.socketpair()

        async def test_leak():
            asyncio.get_running_loop().kept = {body}
        """,
        apart=True,
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*left sockets behind:*", named])


def test_a_socket_in_a_cycle_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        def test_leak():
            class Node: pass
            node = Node()
            node.self, node.socket = node, socket.socket()
        """,
    )
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*ResourceWarning: unclosed <socket.socket*"])


def test_a_transport_that_is_being_closed_may_end(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        async def test_fine():
            left, right = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=left)
            writer.write(b"x" * 100)
            writer.close()
            right.close()
        """,
    )
    result.assert_outcomes(passed=1)


def test_an_unretrieved_exception_fails_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        async def fails(): raise ValueError("unseen")

        async def test_leak():
            task = asyncio.create_task(fails())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del task
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*left errors behind:*", "*exception was never retrieved*", "*(ValueError('unseen'))*"]
    )


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        ("tasks", "asyncio.get_running_loop().kept = asyncio.create_task(asyncio.sleep(9))"),
        ("resources", "socket.socket()"),
        ("errors", "asyncio.get_running_loop().call_exception_handler({'message': 'x'})"),
    ],
)
def test_a_marker_allows_one_kind_of_leak_or_all(
    pytester: pytest.Pytester, kind: str, test: str
) -> None:
    result = run(
        pytester,
        f"""
        @pytest.mark.allow_leaks("{kind}")
        @pytest.mark.filterwarnings("ignore::ResourceWarning")
        async def test_allowed(): {test}

        @pytest.mark.allow_leaks
        @pytest.mark.filterwarnings("ignore::ResourceWarning")
        async def test_all_allowed(): {test}

        @pytest.mark.allow_leaks("threads")
        async def test_other(): {test}
        """,
    )
    outcomes = result.parseoutcomes()
    assert outcomes.get("errors", 0) + outcomes.get("failed", 0) == 1
    result.stdout.fnmatch_lines(["*test_other*"])
    result.stdout.no_fnmatch_line("*ERROR*allowed*")


def test_an_unknown_kind_is_refused_with_the_known_ones(pytester: pytest.Pytester) -> None:
    result = run(pytester, "@pytest.mark.allow_leaks('sockets')\ndef test_it(): pass")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*allow_leaks knows errors, resources, tasks, threads*"])


def test_the_plugin_does_nothing_until_it_is_asked(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        STOP = threading.Event()

        @pytest.mark.filterwarnings("ignore")
        async def test_leaky():
            socket.socket()
            threading.Thread(target=STOP.wait, daemon=True).start()
            asyncio.get_running_loop().kept = asyncio.create_task(asyncio.sleep(99))

        def test_after(): STOP.set()
        """,
        conftest="",
    )
    result.assert_outcomes(passed=2)
