"""What measures the rules: Great Expectations, DuckDB, the fenced SQL of a contract; failing rows as marks."""
