"""`elasti demo`: a cluster, two apps, and what happens to them while nobody needs them."""
