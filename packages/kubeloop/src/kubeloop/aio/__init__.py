"""Time, retries and tasks on asyncio. Knows nothing of Kubernetes.

Monotonic time is always the running loop's (`loop.time()`), so that a virtual-time loop moves
everything at once; wall time comes from a `Clock` that the caller may replace.
"""
