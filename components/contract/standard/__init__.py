"""What a contract says: the Open Data Contract Standard's YAML as engine-neutral rules, and one reading of values."""
