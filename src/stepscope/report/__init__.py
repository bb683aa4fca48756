"""Tables, charts and the files that show them. Reads records, never measures."""
