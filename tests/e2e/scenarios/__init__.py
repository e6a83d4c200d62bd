"""The scenarios: each a function over a `Trial`, in the table at `tests.e2e.table`."""
