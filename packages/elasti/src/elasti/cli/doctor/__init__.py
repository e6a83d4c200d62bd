"""`elasti doctor`: whether Elasti can work on a cluster, and what is missing."""
