"""The whole system by seed: both programs as shipped, on a cluster, a network and a clock in memory; see README.md."""
