"""Files as tables of text: CSV, JSON lines and Parquet, plain or gzipped, local or behind any fsspec URI.

A library room: both ingestion and `pilotline contract check` read through it. Every value is the text that the
source holds, with no guess at missing values: only JSON null, Parquet null and SQL NULL are null.
"""
