"""A causal language model that answers a closed question with one label token."""
