"""What runs, in which order: the retraining pipeline, its compiler and the `pilotline` command."""
