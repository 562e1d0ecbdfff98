"""The gate's rules by what they look at; each is a pure function that never lets missing evidence pass."""
