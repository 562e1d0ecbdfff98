"""The newest value of each entity: what online reads see. Embedded in SQLite, or in Redis; neither knows Feast."""
