"""The scenarios: each a function over a `Play`, in the table at `tests.e2e.table`."""
