-- Has wrk print what a gate asks for: the 95th percentile, and every kind of failure.
done = function(summary, latency, requests)
   local e = summary.errors
   local failed = e.connect + e.read + e.write + e.status + e.timeout
   io.write(string.format("gate p95 %.3f failed %d\n", latency:percentile(95) / 1000, failed))
end
