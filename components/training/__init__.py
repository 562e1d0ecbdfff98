"""Training set to verified checkpoints to an exported model."""
