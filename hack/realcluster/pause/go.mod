module elasti/realcluster/pause

go 1.26.0
