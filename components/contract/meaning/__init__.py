"""Silent drift of meaning: a snapshot's profile against those of the last accepted ones."""
