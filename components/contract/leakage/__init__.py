"""Whether a training set tells its outcomes: known too late, shared between splits, or seen too early."""
