"""Values that the layers of the operator share: read, decided, remembered. Pure, and below everything else."""
